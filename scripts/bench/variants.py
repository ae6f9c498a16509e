"""The variants that are compared, which of them this build has, and how each is compiled and run.

All live in one process on one model: each has an entry of its own in Dynamo's cache, and the package is installed only
while one of its variants compiles or runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

import pygraph_inductor
from pygraph_inductor import config


@dataclass(frozen=True)
class Variant:
    """`mode` is what `torch.compile` gets; `ours` whether the package acts; `without` the technique switched off;
    `engine` the one that serves all slots that it can."""

    name: str
    label: str
    mode: str | None = None
    ours: bool = False
    without: str | None = None
    engine: str | None = None

    @property
    def stock(self) -> bool:
        """Whether graphs are stock PyTorch's."""
        return self.mode == "reduce-overhead" and not self.ours


# Technique -> the knob that switches it off, and the value that does.
TECHNIQUES: dict[str, tuple[str, Any]] = {
    "addresses": ("engine", "copy"),
    "indirect": ("engine", "patch"),  # neither a table nor copies
    "transform": ("transform", False),
    "selection": ("selection", False),
}

EAGER = Variant("eager", "eager")
INDUCTOR = Variant("inductor", "no graphs", "default")
STOCK = Variant("stock", "stock graphs", "reduce-overhead")
OURS = Variant("ours", "ours", "reduce-overhead", ours=True)
FLOOR = Variant("floor", "floor")
ABLATIONS = tuple(Variant(f"ours-no-{t}", f"ours without {t}", "reduce-overhead", True, t) for t in TECHNIQUES)
TABLES = Variant("ours-tables", "ours with tables", "reduce-overhead", True, engine="indirect")

VARIANTS = {v.name: v for v in (EAGER, INDUCTOR, STOCK, OURS, FLOOR, *ABLATIONS, TABLES)}


def unavailable(variant: Variant) -> str | None:
    """Why this build cannot run a variant; None if it can."""
    if variant.without is None:
        return None
    knob, _ = TECHNIQUES[variant.without]
    return None if hasattr(config, knob) else f"not available: this build has no {knob!r} to switch off"


@contextlib.contextmanager
def active(variant: Variant, simulate: bool = False) -> Iterator[None]:
    """While a variant compiles or runs: the package in or out, and its technique off."""
    before = pygraph_inductor.enabled()
    try:
        if not variant.ours:
            pygraph_inductor.disable()
            yield
            return
        pygraph_inductor.enable()
        patches: dict[str, Any] = {"simulate": simulate}
        if variant.without is not None:
            knob, off = TECHNIQUES[variant.without]
            patches[knob] = off
        if variant.engine is not None:
            patches["engine"] = variant.engine
        with config.patch(**patches):
            yield
    finally:
        (pygraph_inductor.enable if before else pygraph_inductor.disable)()


class _OwnEntry(torch._TorchCompileInductorWrapper):
    """Inductor as ever, except that no two are equal: Dynamo would serve one variant with the other's code."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def compiled(variant: Variant, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the variant's user calls it."""
    if variant.mode is None:
        return function
    with mock.patch.object(torch, "_TorchCompileInductorWrapper", _OwnEntry):
        return torch.compile(function, mode=variant.mode)


def begin_iteration(variant: Variant) -> None:
    """What stock graphs ask of their user before an iteration whose outputs replace the last one's."""
    if variant.stock:
        torch.compiler.cudagraph_mark_step_begin()
