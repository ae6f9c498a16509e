"""What each engine costs over consumers, slots and sizes, and whether the cost model chooses the cheapest.

    python -m scripts.bench.engines --out docs/benchmarks/engines.json --page docs/benchmarks/engines.md

With `--read FILE` nothing is measured, and page and plot are made from that file.

The model's coefficients are measured first and apart from the sweep, at other points. At each point a function whose
inputs move in every call is recorded with each engine; the latency of a call (submission, replay, wait) is compared
with the one of a call in which nothing moved. Before all that, `table_refresh` measures its part of the page. Needs a
CUDA device.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from pygraph_inductor.driver.protocol import Driver
from pygraph_inductor.selection.cost_model import Coefficients, Consumers, CostModel, SlotUse, cost_of, value
from scripts.bench import facts, table_refresh

CONSUMERS = (1, 8, 32, 128, 256)
SLOTS = (1, 8, 64, 512)
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30)
SIZED = ((1, 1), (1, 8), (32, 1), (32, 8))  # consumers and slots at which all sizes are measured
MAX_NODES = 2048
MAX_BYTES = 12 << 30  # of inputs; there are two sets of them, and staging buffers
ENGINES = ("patch", "indirect", "copy")
TOLERATED = 1.05  # the choice's latency over the best engine's
COLOURS = {"patch": "#1f6feb", "indirect": "#d29922", "copy": "#9aa5b1"}


@dataclass(frozen=True)
class Point:
    """Each of `slots` inputs of `nbytes` is used by `consumers` kernels."""

    consumers: int
    slots: int
    nbytes: int


@dataclass(frozen=True)
class Measured:
    """Latencies at a point, in µs. `still`: nothing moved. Predictions are what an engine adds to that."""

    point: Point
    still: float
    latency: dict[str, float]
    predicted: dict[str, float]

    @property
    def chosen(self) -> str:
        """By the model."""
        return min(ENGINES, key=lambda engine: self.predicted[engine])

    @property
    def best(self) -> str:
        return min(ENGINES, key=lambda engine: self.latency[engine])

    @property
    def excess(self) -> float:
        """The choice's latency over the best one's."""
        return self.latency[self.chosen] / self.latency[self.best]


def points() -> list[Point]:
    """Consumers by slots at the smallest size; all sizes with few consumers and with many. In an order in which any
    first part of them covers the whole space: each is as far from all before it as there is one.
    """
    grid = [Point(c, s, SIZES[0]) for c, s in itertools.product(CONSUMERS, SLOTS)]
    sized = [Point(c, s, size) for (c, s), size in itertools.product(SIZED, SIZES[1:])]
    rest = [p for p in grid + sized if p.consumers * p.slots <= MAX_NODES and p.slots * p.nbytes <= MAX_BYTES]
    ordered = [rest.pop(0)]
    while rest:
        farthest = max(rest, key=lambda point: min(_distance(point, other) for other in ordered))
        rest.remove(farthest)
        ordered.append(farthest)
    return ordered


def _distance(one: Point, other: Point) -> float:
    """Of their logarithms, each range as long as the others."""
    pairs = ((one.consumers, other.consumers, CONSUMERS), (one.slots, other.slots, SLOTS))
    pairs += ((one.nbytes, other.nbytes, SIZES),)
    return math.hypot(*(math.log(a / b) / math.log(range_[-1] / range_[0]) for a, b, range_ in pairs))


def predicted(point: Point, coefficients: Coefficients) -> dict[str, float]:
    """What each engine adds to a call in which nothing moved, in µs."""
    slots = {}
    for number in range(point.slots):
        nodes = frozenset(range(number * point.consumers, (number + 1) * point.consumers))
        slots[number] = Consumers(nodes, nodes)
    copying = value(CostModel(coefficients).copy(SlotUse(point.consumers, point.consumers, point.nbytes)))
    slots = {number: replace(consumers, copying=copying) for number, consumers in slots.items()}
    return {engine: cost_of(dict.fromkeys(slots, engine), slots, coefficients) for engine in ENGINES}


def measure(driver: Driver, calls: int, sweep: Sequence[Point], seconds: float = math.inf) -> dict[str, Any]:
    """Coefficients, then the sweep: as many of its points as `seconds` allow, including those of the coefficients."""
    import torch

    from pygraph_inductor.selection import calibrating

    end = time.monotonic() + seconds
    coefficients = calibrating.measure(driver, calls)
    found: list[Measured] = []
    with driver.guard():
        for point in sweep:
            one = _measured(driver, calls, point, coefficients, end)
            if one is None:
                break
            found.append(one)
            driver.release_cached()
            print(row_of(one), flush=True)
    return {
        "device": driver.identity()["device"],
        "torch": str(torch.__version__),
        "coefficients": coefficients.to_dict(),
        "points": [asdict(one) for one in found],
        "left_out": len(sweep) - len(found),
    }


def _measured(driver: Driver, calls: int, point: Point, coefficients: Coefficients, end: float) -> Measured | None:
    """None if time is over."""
    from pygraph_inductor.selection import calibrating

    times = {}
    for engine, moving in {"patch": (False, True), "indirect": (True,), "copy": (True,)}.items():
        if time.monotonic() >= end:
            return None
        times[engine] = calibrating.latencies(
            driver, engine, point.consumers, moving, slots=point.slots, size=point.nbytes // 4, calls=calls
        )
    latency = {engine: found[-1] for engine, found in times.items()}
    return Measured(point, times["patch"][0], latency, predicted(point, coefficients))


def loaded(content: dict[str, Any]) -> list[Measured]:
    """The points of a file."""
    return [
        Measured(Point(**one["point"]), one["still"], one["latency"], one["predicted"]) for one in content["points"]
    ]


def share_within(found: Sequence[Measured]) -> float:
    """At how many of the points the model's choice is as good as the best engine, nearly."""
    return sum(one.excess <= TOLERATED for one in found) / len(found)


def readable(nbytes: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes} {unit}"
        nbytes //= 1024
    return f"{nbytes} GiB"


def row_of(one: Measured) -> str:
    """A line of the table."""
    p = one.point
    cells = [str(p.consumers), str(p.slots), readable(p.nbytes), f"{one.still:.1f}"]
    cells += [f"{one.latency[e] - one.still:.1f} ({one.predicted[e]:.1f})" for e in ENGINES]
    return "| " + " | ".join([*cells, one.best, one.chosen, f"{one.excess:.2f}"]) + " |"


def page(content: dict[str, Any], plot: str | None) -> str:
    """The page, from what was measured alone. `plot`: its file, if there is one."""
    found = loaded(content)
    left_out = content.get("left_out", 0)
    also = f"; {left_out} more were left out, since time was over" if left_out else ""
    heads = ["consumers", "slots", "size", "still", *ENGINES, "best", "model", "over best"]
    lines = [
        "# What engines cost",
        "",
        "Made by `python -m scripts.bench.engines`; do not edit.",
        "",
        f"{content['device']}, torch {content['torch']}{origin(content)}. Each slot is an",
        "input that is elsewhere in every call and is used by so many kernels of its own. *still* is the latency of a",
        "call in which nothing moved, in µs; each engine's cell is what it adds to that, measured, and in brackets as",
        "the model predicted it from these coefficients, which were measured before and apart from the sweep:",
        "",
        "| coefficient | µs |",
        "|---|---|",
        *(f"| `{name}` | {number:.3f} |" for name, number in content["coefficients"].items()),
        "",
        f"The model's choice is within {TOLERATED - 1:.0%} of the best engine's latency at "
        f"{share_within(found):.0%} of the {len(found)} points{also}.",
        "",
        f"![which engine is cheapest]({plot})" if plot else "There is no plot: matplotlib was not installed.",
        "",
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
        *(row_of(one) for one in sorted(found, key=lambda one: astuple(one.point))),
        "",
    ]
    if content.get("table_refresh"):
        lines += table_refresh.section(content["table_refresh"])
    return "\n".join(lines)


def origin(content: dict[str, Any]) -> str:
    """The driver and the commit, where they are known."""
    named = {"driver": content.get("environment", {}).get("driver"), "commit": content.get("commit", {}).get("id")}
    return "".join(f", {what} {name[:12]}" for what, name in named.items() if name)


def draw(content: dict[str, Any], file: Path) -> bool:
    """Which engine is cheapest over consumers and slots; and measured costs over predicted ones.

    False, and no file, where matplotlib is not installed.
    """
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError:
        return False
    rcParams["svg.hashsalt"] = "pygraph"
    found = loaded(content)
    figure = Figure(figsize=(10, 4))
    left, right = figure.subplots(1, 2)
    for engine in ENGINES:
        wins = [one.point for one in found if one.best == engine and one.point.nbytes == SIZES[0]]
        left.scatter([p.consumers for p in wins], [p.slots for p in wins], s=90, label=engine, color=COLOURS[engine])
        pairs = [(one.predicted[engine], one.latency[engine] - one.still) for one in found]
        pairs = [(x, y) for x, y in pairs if x > 0 and y > 0]
        right.scatter([x for x, _ in pairs], [y for _, y in pairs], s=12, label=engine, color=COLOURS[engine])
    left.set(
        xscale="log", yscale="log", xlabel="kernels that use a slot", ylabel="slots", title="cheapest engine, 4 KiB"
    )
    right.set(xscale="log", yscale="log", xlabel="predicted µs", ylabel="measured µs", title="what an engine adds")
    right.axline((1, 1), (10, 10), color="black", linewidth=0.8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(file, metadata={"Date": None}, bbox_inches="tight")
    return True


def measured_here(calls: int, seconds: float, commit: str | None) -> dict[str, Any]:
    """The whole sweep on the current CUDA device, and the ways to refresh a table."""
    where = {"environment": facts.environment("cuda"), "commit": facts.commit(commit)}
    import torch

    from pygraph_inductor.recording.function import driver_for

    start = time.monotonic()
    driver = driver_for(torch.device("cuda", torch.cuda.current_device()))
    with driver.guard():
        refresh = table_refresh.measure()
    content = measure(driver, calls, points(), seconds - (time.monotonic() - start))
    return content | where | {"table_refresh": refresh}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    parser.add_argument("--page", type=Path, help="where the page goes; its plot goes beside it")
    parser.add_argument("--read", type=Path, help="make the page from this file instead of measuring")
    parser.add_argument("--seconds", type=float, default=100, help="no point is begun after so long")
    parser.add_argument("--calls", type=int, default=60, help="timed calls per engine and point")
    parser.add_argument("--commit", help="the commit's name, where git cannot tell")
    arguments = parser.parse_args()
    if arguments.read:
        content = json.loads(arguments.read.read_text())
    else:
        content = measured_here(arguments.calls, arguments.seconds, arguments.commit)
    if arguments.out:
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    found = loaded(content)
    if not found:
        print("no point was measured: time was over")
        return 1
    if arguments.page:
        plot = arguments.page.with_suffix(".svg")
        drawn = draw(content, plot)
        if not drawn:
            print("no plot: matplotlib is not installed")
        arguments.page.write_text(page(content, plot.name if drawn else None))
    print(f"the model's choice is within {TOLERATED - 1:.0%} of the best at {share_within(found):.0%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
