"""What every field report is written with: compiled functions, comparison with eager, and what became of the graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters

import pygraph_inductor


class Field:
    """The ground that one report runs on: a device, and the account of what was replayed on it."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._earlier = len(pygraph_inductor.report().functions)

    def compiled(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """As the reports compiled it."""
        return torch.compile(function, mode="reduce-overhead", **options)

    def randn(self, *size: int, **options: Any) -> torch.Tensor:
        return torch.randn(*size, device=self.device, **options)

    def same(self, got: Any, wanted: Any, what: str, tolerance: float = 2e-3) -> None:
        """Tensors are close and of one shape, everything else is equal."""
        if isinstance(wanted, (tuple, list)):
            assert len(got) == len(wanted), f"{what}: {len(got)} results, expected {len(wanted)}"
            for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
                self.same(one, other, f"{what}, result {number}", tolerance)
        elif isinstance(wanted, torch.Tensor):
            explain = lambda message: f"{what}: {message}"
            torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance, msg=explain)
        else:
            assert got == wanted, f"{what}: {got!r}, expected {wanted!r}"

    @property
    def functions(self) -> Sequence[Any]:
        """Facts of the functions compiled for this report."""
        return pygraph_inductor.report().functions[self._earlier :]

    @property
    def replays(self) -> int:
        """Calls of them that came from a graph."""
        return sum(one.replays for one in self.functions)

    @property
    def recordings(self) -> int:
        """Graphs that were recorded for them, those given up included."""
        return sum(len(one.recordings) + one.retired for one in self.functions)

    @property
    def reasons(self) -> list[str]:
        """Everything that names a reason against a graph: ours, and graph breaks of the front end."""
        ours = itertools.chain.from_iterable(one.reasons for one in self.functions)
        return [*ours, *pygraph_inductor.report().declined, *map(str, counters["graph_break"])]

    def account(self) -> str:
        lines = [f"{one.name}: {one.verdict}, {one.calls} calls, {one.replays} replays" for one in self.functions]
        return "; ".join([*(lines or ["no function was handed to us"]), f"reasons: {self.reasons}"])

    def expect_replays(self, least: int = 3) -> None:
        """The outcome came from graphs, not from plain calls."""
        assert self.replays >= least, f"{self.replays} replays, expected {least} or more; {self.account()}"

    def expect_replays_or_a_reason(self, *words: str, least: int = 1) -> None:
        """From graphs; or the reports says why not, in words that contain one of these."""
        named = [reason for reason in self.reasons if any(word in reason.lower() for word in words)]
        assert self.replays >= least or named, f"neither replayed nor a reason about {words}; {self.account()}"

    def expect_recordings(self, most: int) -> None:
        """Recordings did not follow what they should not follow."""
        assert self.recordings <= most, f"{self.recordings} recordings, expected {most} at most; {self.account()}"


class WithoutGraphs(Field):
    """The same report with PyTorch's default mode: shows whether an error has anything to do with graphs."""

    def compiled(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return torch.compile(function, **options)

    def expect_replays(self, least: int = 3) -> None:
        """Nothing is replayed here."""

    def expect_replays_or_a_reason(self, *words: str, least: int = 1) -> None:
        """Nothing is replayed here."""

    def expect_recordings(self, most: int) -> None:
        """Nothing is recorded here."""
