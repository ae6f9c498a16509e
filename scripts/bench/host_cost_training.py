"""What a training step spends on our path outside of the launcher, told apart by two more frames.

The first is "nothing", except that it makes those activations in every call that ours makes anew (`made_anew.py`), by
the function that makes outputs, so that autograd frees as many of them: what it takes longer than "nothing", without
making them, is `freeing`. The second is the first, and each of its pieces also launches a graph, raw, of as many
kernels as ours has there, which are as small as kernels get: what it takes longer than the first, without launching, is
what everything around takes longer `amid` launches. What ours takes beyond the second frame, when its launcher stands
for making and launching, is `left`.

Both are timed in the rounds of everything else, after the others; making and launching by a clock of their own in
another burst each. A failure here is told in place of the numbers, and costs a row no others.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pygraph_inductor.recording.record import Recording
from pygraph_inductor.replay.plan import Layout
from scripts.bench import bare_frame
from scripts.bench.host_cost_recordings import served
from scripts.bench.host_cost_rows import Row
from scripts.bench.host_cost_timing import (
    Calls,
    Function,
    Iterate,
    Times,
    in_a_burst,
    one_by_one,
    one_round,
    settle,
)
from scripts.bench.made_anew import made_anew
from scripts.bench.reasons import or_reason, reason_of
from scripts.bench.variants import Variant, active

ANEW = Variant("anew", "activations made anew", "default")
AMID = Variant("amid", "activations made anew, amid launches", "default")
LAUNCHER = ("accept", "allocate", "wrap")  # its phases that are no driver's
Launch = Callable[[], Any]


def graph_of(kernels: int) -> Launch:
    """A replay of a graph of so many kernel nodes, each of which adds to one number. Nobody may be capturing yet."""
    number = torch.zeros(1, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        number.add_(1)  # loads the kernel, which a capture could not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # A capture that fails leaves its stream the current one; the outer context puts ours back.
    with (
        torch.cuda.stream(torch.cuda.current_stream()),
        torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"),
    ):
        for _ in range(kernels):
            number.add_(1)
    launch = functools.partial(_replay, graph, number)
    launch()
    torch.cuda.synchronize()  # the first launch takes longer, and what is wrong with it is found here
    return launch


def _replay(graph: torch.cuda.CUDAGraph, memory: torch.Tensor) -> None:
    """On the stream and the device of whoever calls, as autograd's thread. `memory` is what the kernels write to."""
    graph.replay()


@dataclass
class Frame:
    """One frame, the pieces in place of its code, and what it took: in all, to make tensors, to launch."""

    call: Function
    pieces: list[bare_frame.Piece]
    times: Times = field(default_factory=Times)
    making: Times = field(default_factory=Times)
    launching: Times = field(default_factory=Times)


class Frames:
    """Both frames of a row over its rounds."""

    def __init__(self, row: Row, function: Function, graph_of: Callable[[int], Launch] | None = None) -> None:
        """`graph_of` makes what launches so many kernels."""
        self._row = row
        self._graph_of = graph_of
        self._since = time.monotonic_ns()
        self._ours: dict[str, list[Recording]] = {}
        self._launched: dict[str, list[int]] = {}  # kernels of each graph, by kind of piece
        self._failed: str | None = None
        self._frames: dict[Variant, Frame] = {}
        for variant in (ANEW, AMID):
            pieces: list[bare_frame.Piece] = []
            self._frames[variant] = Frame(bare_frame.bare_frame(function, made_anew, pieces), pieces)

    def turn(self, number: int) -> None:
        """Time both. In the first turn, 0, they are made ready; ours has to be by then, and nothing counts yet."""
        if self._failed is not None:
            return
        try:
            for variant, frame in self._frames.items():
                with active(variant):
                    self._turn(variant, frame, number)
        except Exception as error:
            self._failed = reason_of(error)
            self._frames.clear()

    def _turn(self, variant: Variant, frame: Frame, number: int) -> None:
        sets = [self._row.draw() for _ in range(4)]
        one = functools.partial(self._row.drive, frame.call)
        if not number:
            settle(one, sets)
            if variant is AMID:
                self._give_launches(frame.pieces)
        in_burst, singles = one_round(one, sets)
        graphs = sum(piece.launch is not None for piece in frame.pieces)
        made, launched = spent(one, sets, in_a_burst, graphs)
        made_alone, launched_alone = spent(one, sets, one_by_one, graphs)
        if number:
            frame.times.add(in_burst, singles)
            frame.making.add(made, [(made_alone, 0.0)], waits=False)
            frame.launching.add(launched, [(launched_alone, 0.0)], waits=False)

    def _give_launches(self, pieces: Sequence[bare_frame.Piece]) -> None:
        """To every piece a graph of its own; here, since a backward is in autograd's thread."""
        self._ours = served(self._since)
        if not self._ours:
            raise ValueError("no graph of ours answers")
        for kind, recordings in sorted(self._ours.items(), reverse=True):  # the forward first
            of_kind = [piece for piece in pieces if piece.kind == kind]
            if not of_kind:
                raise ValueError(f"ours has a {kind}, and the frame has none")
            shares = spread(sum(one.log.kernels for one in recordings), len(of_kind))
            self._launched[kind] = [kernels for kernels in shares if kernels]
            for piece, kernels in zip(of_kind, shares, strict=True):
                if kernels:
                    piece.launch = (self._graph_of or graph_of)(kernels)

    def summary(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The frames' times, what they made and launched, and the parts of our time, where `found` has its `split`."""
        return {"failed": self._failed} if self._failed is not None else or_reason(lambda: self._summary(found))

    def _summary(self, found: Mapping[str, Any]) -> dict[str, Any]:
        summary: dict[str, Any] = {
            variant.name: {
                **frame.times.summary(),
                "making": frame.making.summary(),
                "launching": frame.launching.summary(),
            }
            for variant, frame in self._frames.items()
        }
        summary["kernels"] = self._launched
        summary["made"] = {
            "frame": amount([layout for piece in self._frames[AMID].pieces for layout in piece.layouts]),
            "ours": amount(
                made.layout
                for recordings in self._ours.values()
                for one in recordings
                for made in one.player.plan.allocations
                if not made.keep
            ),
        }
        if "split" in found:
            summary["parts"] = parts(found, summary, "host", "split", "phases")
            summary["parts_alone"] = parts(found, summary, "alone", "split_alone", "phases_alone")
        return summary


def spent(one: Iterate, sets: Sequence[Sequence[Any]], make_calls: Calls, graphs: int) -> tuple[float, float]:
    """Microseconds per iteration in which a frame makes tensors, and in which it launches so many graphs."""
    with bare_frame.timed_outputs() as made, bare_frame.timed_launches() as launched:
        number = make_calls(one, sets)
    if len(launched) != graphs * number:  # as if it had been compiled once more
        raise ValueError(f"{number} steps of the frame launched {len(launched)} graphs, not {graphs} each")
    return sum(made) / number / 1e3, sum(launched) / number / 1e3


def spread(kernels: int, pieces: int) -> list[int]:
    """So many kernels over so many pieces, evenly."""
    return [kernels // pieces + (number < kernels % pieces) for number in range(pieces)]


def amount(layouts: Any) -> dict[str, int]:
    """How many tensors, and of how many bytes."""
    spans = [layout.span for layout in layouts if isinstance(layout, Layout)]
    return {"tensors": len(spans), "bytes": sum(spans)}


def parts(
    found: Mapping[str, Any], frames: Mapping[str, Any], figure: str, split: str, phases: str
) -> dict[str, float]:
    """Our host time in parts that add up to it.

    `figure` is "host", of a burst, or "alone", and `split` and `phases` are the keys of what is of such calls. Frames
    count without what they make and launch: what the launcher takes for that is in its own parts.
    """
    around = {
        name: frames[name][figure] - frames[name]["making"][figure] - frames[name]["launching"][figure]
        for name in (ANEW.name, AMID.name)
    }
    nothing = found["nothing"][figure] - found["outputs"][figure]
    launcher = sum(found[phases][phase] for phase in LAUNCHER)
    values = {
        "guards": found[split]["guards"],
        "frame": found[split]["frame"],
        "freeing": around[ANEW.name] - nothing,
        "amid": around[AMID.name] - around[ANEW.name],
        "launcher": launcher,
        "driver": found[split]["driver"],
        "left": found["ours"][figure] - around[AMID.name] - launcher - found[split]["driver"],
    }
    return {name: round(value, 2) for name, value in values.items()}
