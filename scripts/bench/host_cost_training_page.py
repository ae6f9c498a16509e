"""What the page about host cost says of training steps beyond all rows: our path taken apart, and events by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scripts.bench.markdown import human_bytes, table

PARTS = ("freeing", "amid", "launcher", "driver", "left")
_HEADS = ["", "nothing, without making", "freeing", "amid launches", "launcher", "driver", "left", "total"]
_BESIDE = ["making as many", "launching as many"]

_ABOUT_PARTS = """\
Of training steps two more frames, timed in the same rounds, take our path apart. The first makes those activations in
every call that ours makes anew, the larger ones, so that autograd frees as many: what it takes longer than `nothing`,
without making them, is `freeing`. The second also launches, raw, a graph for each of ours, of as many kernels, each as
small as can be: what everything around takes longer then, without launching, is `amid launches`. `left` is what ours
takes beyond the second frame when the launcher in C (`accept`, `allocate` and `wrap`) and the driver stand for making
and launching. The columns before the total add up to it. Beside it is what making and launching take in the
second frame, in place of what the launcher allocates and of the driver."""

_ABOUT_EVENTS = """\
By torch's profiler, of the host alone, in {steps} steps after everything else: autograd's nodes, operators, and what
else has a name, where ours differs most from `nothing`; in microseconds of a step, without what they call, and in
brackets how often they run. The profiler's own cost is in every figure, most of all in launching graphs, and the
launcher is in what calls it: they say where ours takes longer, not how long a step takes."""


def parts(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines for the section about where our time goes."""
    taken = {name: variants["step"] for name, variants in rows.items() if "parts" in variants.get("step", {})}
    lines = []
    if taken:
        cells = [line for name in taken for line in _cells(name, rows[name])]
        lines += ["", *_ABOUT_PARTS.splitlines(), "", table([*_HEADS, *_BESIDE], cells)]
        lines += ["", *(_amounts(name, step) for name, step in taken.items())]
    return [*lines, *_failed(rows, "step", "Our path was not taken apart")]


def _cells(name: str, variants: Mapping[str, Any]) -> list[list[str]]:
    step, lines = variants["step"], []
    for shown, which, figure in ((name, "parts", "host"), ("one alone", "parts_alone", "alone")):
        found = step[which]
        values = [found["guards"] + found["frame"], *(found[part] for part in PARTS)]
        beside = [step["amid"][what][figure] for what in ("making", "launching")]
        lines.append([shown, *(f"{value:.1f}" for value in (*values, sum(values), *beside))])
    return lines


def _amounts(name: str, step: Mapping[str, Any]) -> str:
    """How alike the second frame is to ours."""
    made = {whose: f"{one['tensors']} tensors ({human_bytes(one['bytes'])})" for whose, one in step["made"].items()}
    kernels = "; ".join(f"{kind} {' + '.join(map(str, counts))}" for kind, counts in step["kernels"].items())
    return f"{name}: ours makes {made['ours']} in each step, the frame {made['frame']}. Kernels of graphs: {kernels}."


def events(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The section about events by name."""
    taken = {name: variants["events"] for name, variants in rows.items() if "events" in variants.get("events", {})}
    failed = _failed(rows, "events", "There is no profile")
    if not taken:
        return failed
    lines = ["", "## Events of one training step"]
    lines += ["", *_ABOUT_EVENTS.format(steps=next(iter(taken.values()))["steps"]).splitlines()]
    for name, found in taken.items():
        variants = list(found["sum"])
        heads = ["event", *variants, "ours, beyond nothing"]
        cells = [
            [f"`{one['event']}`", *(f"{one[v]['own']:.1f} ({one[v]['times']:.4g})" for v in variants), _beyond(one)]
            for one in found["events"]
        ]
        total = found["sum"]
        cells.append(["all events", *(f"{total[v]:.1f}" for v in variants), f"{total['ours'] - total['nothing']:+.1f}"])
        lines += ["", f"### {name}", "", table(heads, cells)]
    return [*lines, *failed]


def _beyond(event: Mapping[str, Any]) -> str:
    return f"{event['ours']['own'] - event['nothing']['own']:+.1f}"


def _failed(rows: Mapping[str, Mapping[str, Any]], key: str, what: str) -> list[str]:
    failed = {name: one[key]["failed"] for name, one in rows.items() if "failed" in one.get(key, {})}
    return [line for name, why in failed.items() for line in ("", f"{what} of {name}: {why}")]
