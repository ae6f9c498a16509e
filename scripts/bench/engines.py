"""What each engine costs over consumers, slots and sizes, and whether the cost model chooses the cheapest.

    python -m scripts.bench.engines --out docs/benchmarks/engines.json --page docs/benchmarks/engines.md

With `--read FILE` nothing is measured, and page and plot are made from that file.

The model's coefficients are measured first and apart from the sweep, at other points. At each point a function whose
inputs move in every call is recorded with each engine; the latency of a call (submission, replay, wait) is compared
with the one of a call in which nothing moved. The engines and that call take turns: what is compared is medians of
differences within rounds. There are rounds until each of them is known to 1 % of the latency, with 95 % confidence, or
the point's time is over; no point is left out for what it shows, or measured again. Before all that, `table_refresh`
measures its part of the page. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygraph_inductor.driver.protocol import Driver
from pygraph_inductor.recording import engines as plans
from pygraph_inductor.selection.cost_model import Coefficients, Consumers, CostModel, SlotUse, cost_of, value
from scripts.bench import facts, stats, table_refresh

if TYPE_CHECKING:
    from pygraph_inductor.selection.probing import Case, Turns

CONSUMERS = (1, 4, 8, 16, 32, 64, 128, 256)
SLOTS = (1, 8, 64, 512)
SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 256 << 20, 1 << 30)
SIZED = ((1, 1), (1, 8), (32, 1), (32, 8))  # consumers and slots at which all sizes are measured
MAX_NODES = 2048
MAX_BYTES = 12 << 30  # of inputs; there are two sets of them, and staging buffers
ENGINES = ("patch", "indirect", "copy")
TOLERATED = 1.05  # the choice's latency over the best engine's
MIN_ROUNDS = 9
LEAST_SECONDS, MOST_SECONDS = 0.15, 0.6  # of rounds at a point, unless the few above take longer
PRECISE = 0.01  # half an interval over the latency, below which no more rounds are needed
SECONDS = 68.0  # with starting and drawing, 75
COLOURS = {"patch": "#1f6feb", "indirect": "#d29922", "copy": "#9aa5b1"}


@dataclass(frozen=True)
class Point:
    """Each of `slots` inputs of `nbytes` is used by `consumers` kernels."""

    consumers: int
    slots: int
    nbytes: int


@dataclass(frozen=True)
class Measured:
    """Latencies at a point, in µs. `still`: nothing moved. Predictions are what an engine adds to that; `error` is half
    the interval in which what it adds lies, with 95 % confidence.
    """

    point: Point
    still: float
    latency: dict[str, float]
    error: dict[str, float]
    predicted: dict[str, float]
    rounds: int

    @property
    def chosen(self) -> str:
        """By the model."""
        return min(ENGINES, key=lambda engine: self.predicted[engine])

    @property
    def planned(self) -> str:
        """By a recording, for which the model is not all: a twin has to save what compiling it takes, and a copy has to
        save more than a little, and is not made of what is large. All kernels of a point share one twin.
        """
        gain = self.predicted["patch"] - self.predicted["indirect"]
        uncopied = "indirect" if gain > 0 and gain * plans.PAID_BACK >= plans.COMPILING else "patch"
        saved = self.predicted[uncopied] - self.predicted["copy"]
        worth = saved >= plans.LEAST_SAVED_BY_COPIES and self.point.nbytes <= plans.MOST_COPIED
        return "copy" if worth else uncopied

    @property
    def best(self) -> str:
        return min(ENGINES, key=lambda engine: self.latency[engine])

    @property
    def precise(self) -> bool:
        """Whether more rounds would hardly tell more."""
        return all(self.error[engine] <= PRECISE * self.latency[engine] for engine in ENGINES)

    def over_best(self, engine: str) -> float:
        return self.latency[engine] / self.latency[self.best]

    @property
    def excess(self) -> float:
        """The choice's latency over the best one's."""
        return self.over_best(self.chosen)


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


def measure(driver: Driver, sweep: Sequence[Point], seconds: float = math.inf) -> dict[str, Any]:
    """Coefficients, then the sweep: as many of its points as `seconds` allow, including those of the coefficients."""
    import torch

    from pygraph_inductor.selection import calibrating

    end = time.monotonic() + seconds
    coefficients = calibrating.measure(driver)
    found: list[Measured] = []
    with driver.guard():
        for point in sweep:
            one = _measured(driver, point, coefficients, end)
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


def _measured(driver: Driver, point: Point, coefficients: Coefficients, end: float) -> Measured | None:
    """None if time is over before there is enough."""
    from pygraph_inductor.selection import probing

    size = point.nbytes // 4
    cases = {e: probing.Case(e, point.consumers, point.slots, size, moving=True) for e in ENGINES}
    with probing.Turns(driver) as turns:
        for case in (cases[ENGINES[0]].still, *cases.values()):
            if time.monotonic() >= end:
                return None
            turns.add(case)
        begin = time.monotonic()
        while True:
            turns.round()
            now = time.monotonic()
            if now < end and (turns.rounds < MIN_ROUNDS or now < begin + LEAST_SECONDS):
                continue
            if turns.rounds < MIN_ROUNDS:
                return None
            one = _of_rounds(turns, cases, point, coefficients)
            if one.precise or now >= min(end, begin + MOST_SECONDS):
                return one


def _of_rounds(turns: Turns, cases: Mapping[str, Case], point: Point, coefficients: Coefficients) -> Measured:
    latency, error = {}, {}
    for engine, case in cases.items():
        still = statistics.median(turns.times(case.still))
        added = turns.differences(case, case.still)
        latency[engine] = still + statistics.median(added)
        error[engine] = stats.half_interval(added)
    return Measured(point, still, latency, error, predicted(point, coefficients), turns.rounds)


def loaded(content: dict[str, Any]) -> list[Measured]:
    """The points of a file."""
    return [Measured(**{**one, "point": Point(**one["point"])}) for one in content["points"]]


def share_within(found: Sequence[Measured], planned: bool = False) -> float:
    """At how many of the points the model's choice (or a recording's) is as good as the best engine, nearly."""
    excess = [one.over_best(one.planned if planned else one.chosen) for one in found]
    return sum(one <= TOLERATED for one in excess) / len(found)


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
    cells += [f"{one.latency[e] - one.still:.1f} ± {one.error[e]:.1f} ({one.predicted[e]:.1f})" for e in ENGINES]
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
        "call in which nothing moved, in µs. Engines take turns with it; a cell is what an engine adds, ± half the",
        "interval that holds it with 95 % confidence, and in brackets what the model predicted from these",
        "coefficients, which were measured before and apart from the sweep:",
        "",
        "| coefficient | µs, or bytes in one |",
        "|---|---|",
        *(f"| `{name}` | {number:.3f} |" for name, number in content["coefficients"].items()),
        "",
        f"The model's choice is within {TOLERATED - 1:.0%} of the best engine's latency at "
        f"{share_within(found):.1%} of the {len(found)} points{also}.",
        "A recording chooses by the model, but a twin has to pay for its "
        f"{plans.COMPILING / 1e6:.1f} s of compiling within {plans.PAID_BACK:,} calls,",
        f"and a copy, of {readable(plans.MOST_COPIED)} at most, has to save {plans.LEAST_SAVED_BY_COPIES:.0f} µs: its "
        "choice is that good at",
        f"{share_within(found, planned=True):.1%} of the points. (These two limits were set with the sweep in view; "
        "the coefficients were not.)",
        "",
        f"Consumers go from {CONSUMERS[0]} to {CONSUMERS[-1]}, slots from {SLOTS[0]} to {SLOTS[-1]}, sizes from "
        f"{readable(SIZES[0])} to {readable(SIZES[-1])}; but there are at most",
        f"{MAX_NODES:,} kernels and {readable(MAX_BYTES)} of inputs, and sizes other than the smallest are measured "
        "for these consumers and slots only:",
        ", ".join(f"{consumers} and {slots}" for consumers, slots in SIZED) + ".",
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


def measured_here(seconds: float, commit: str | None) -> dict[str, Any]:
    """The whole sweep on the current CUDA device, and the ways to refresh a table."""
    start = time.monotonic()
    where = {"environment": facts.environment("cuda"), "commit": facts.commit(commit)}
    import torch

    from pygraph_inductor.driver.devices import driver_for

    driver = driver_for(torch.device("cuda", torch.cuda.current_device()))
    with driver.guard():
        refresh = table_refresh.measure()
    content = measure(driver, points(), seconds - (time.monotonic() - start))
    print(f"measuring took {time.monotonic() - start:.0f} s")
    return content | where | {"table_refresh": refresh}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    parser.add_argument("--page", type=Path, help="where the page goes; its plot goes beside it")
    parser.add_argument("--read", type=Path, help="make the page from this file instead of measuring")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="what is not measured by then is left out")
    parser.add_argument("--commit", help="the commit's name, where git cannot tell")
    arguments = parser.parse_args()
    if arguments.read:
        content = json.loads(arguments.read.read_text())
    else:
        content = measured_here(arguments.seconds, arguments.commit)
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
    share, left_out = share_within(found), content.get("left_out", 0)
    print(f"the model's choice is within {TOLERATED - 1:.0%} of the best at {share:.1%} of {len(found)} points")
    print(f"{left_out} more were left out, since time was over" if left_out else "no point was left out")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
