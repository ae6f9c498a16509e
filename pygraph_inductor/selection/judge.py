"""From timings to a choice: what a call costs, when the answer is clear, and in which words it is given.

Pure functions over numbers; `measuring` collects them.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pygraph_inductor.driver.protocol import Timing
from pygraph_inductor.selection.spread import Spread, spread

MIN_ROUNDS = 3
_ERRORS = 2.5  # standard errors between the gain and a threshold, for the answer to be clear
_HOST_GAIN = 0.1  # the part of the host's time that has to be saved where nothing else tells variants apart


class Variant(enum.Enum):
    """A way to answer a call. All give fresh outputs, so that a timing never changes what a program means."""

    PLAIN = "plain"
    GRAPH = "graph"  # with the plan that the model made
    COPY = "copy"  # the graph whose tensors are all copied to where it expects them, and from there


_NAMES = {Variant.GRAPH: "the graph", Variant.COPY: "the graph with copies of all tensors"}


@dataclass(frozen=True)
class Rules:
    """What counts, from the knobs."""

    objective: str
    min_gain: float


@dataclass(frozen=True)
class Measured:
    """One variant's timings in short, in ns."""

    variant: Variant
    host: Spread
    device: Spread
    cost: Spread


@dataclass(frozen=True)
class Verdict:
    """The choice, why, and the timings behind it."""

    chosen: Variant
    reason: str
    table: tuple[Measured, ...]

    @property
    def cost(self) -> Spread:
        """What a call of the chosen variant cost."""
        return next(one.cost for one in self.table if one.variant is self.chosen)


def cost(timing: Timing, objective: str) -> float:
    """What a call costs by the objective, in ns."""
    host, device = timing.host_ns, timing.device_ns
    if objective == "latency" and timing.behind:
        return host + device  # alone, the device would have had to wait for the host
    if objective == "throughput" and not timing.behind:
        return host  # the device keeps up; its time contains waiting for the host
    return max(host, device)


def measured(variant: Variant, timings: Sequence[Timing], objective: str) -> Measured:
    """At least one timing in short."""
    return Measured(
        variant,
        spread([timing.host_ns for timing in timings]),
        spread([timing.device_ns for timing in timings]),
        spread([cost(timing, objective) for timing in timings]),
    )


def table_of(samples: Mapping[Variant, Sequence[Timing]], objective: str) -> tuple[Measured, ...]:
    """All variants with timings, in short."""
    return tuple(measured(variant, timings, objective) for variant, timings in samples.items() if timings)


def saved_ns(table: Sequence[Measured], chosen: Variant, min_gain: float) -> float:
    """What a call by the chosen variant saves; where costs are equal, that is the host's time."""
    by_variant = {one.variant: one for one in table}
    plain, one = by_variant[Variant.PLAIN], by_variant[chosen]
    saved = plain.cost.median - one.cost.median
    return max(saved if saved >= min_gain * plain.cost.median else plain.host.median - one.host.median, 0.0)


def lost_ns(table: Sequence[Measured]) -> float:
    """What the timed calls cost more than plain ones."""
    plain = [one.cost.median for one in table if one.variant is Variant.PLAIN]
    return sum(max(one.cost.median - least, 0.0) * one.cost.count for least in plain for one in table)


def judge(
    samples: Mapping[Variant, Sequence[Timing]], rules: Rules, final: bool, incumbent: Variant | None = None
) -> Verdict | None:
    """A verdict, or None while it is not clear and may be measured further. `final`: it has to be given now.

    `incumbent` is what was chosen before: another choice needs more than a small difference. Needs `MIN_ROUNDS`.
    """
    if any(len(timings) < MIN_ROUNDS for timings in samples.values()):
        return None
    table = table_of(samples, rules.objective)
    plain = next(one for one in table if one.variant is Variant.PLAIN)
    graphs = [one for one in table if one.variant is not Variant.PLAIN]
    verdicts = [_against_plain(plain, graph, table, samples, rules, final, incumbent) for graph in graphs]
    if all(verdict is not None and verdict.chosen is Variant.PLAIN for verdict in verdicts):
        return verdicts[0]
    better = _better(graphs, rules, final)
    return verdicts[graphs.index(better)] if better is not None else None


def _better(graphs: Sequence[Measured], rules: Rules, final: bool) -> Measured | None:
    """The cheapest graph; None while that is not clear. The first one needs least memory: others have to save some."""
    best = graphs[0]
    for other in graphs[1:]:
        gain, error = _gain(other.cost, best.cost)
        if gain - _ERRORS * error >= rules.min_gain or (final and gain >= rules.min_gain):
            best = other
        elif not final and gain + _ERRORS * error >= rules.min_gain:
            return None
    return best


def _against_plain(
    plain: Measured,
    graph: Measured,
    table: tuple[Measured, ...],
    samples: Mapping[Variant, Sequence[Timing]],
    rules: Rules,
    final: bool,
    incumbent: Variant | None,
) -> Verdict | None:
    name = _NAMES[graph.variant]
    gain, error = _gain(graph.cost, plain.cost)
    needed, tolerated = rules.min_gain, rules.min_gain
    if incumbent is Variant.PLAIN:
        needed = 2 * rules.min_gain
    elif incumbent is not None:
        needed = 0.0
    low, high = gain - _ERRORS * error, gain + _ERRORS * error
    if low >= needed or (final and gain >= needed):
        return Verdict(graph.variant, f"{name} is {gain:.0%} cheaper: {_figures(plain, graph)}", table)
    if high < -tolerated or (final and gain < -tolerated):
        return Verdict(Variant.PLAIN, f"{name} is slower: {_figures(plain, graph)}", table)
    if final or (low >= -tolerated and high < needed):
        return _tied(plain, graph, table, samples, rules)
    return None


def _gain(new: Spread, old: Spread) -> tuple[float, float]:
    """The part of `old` that `new` saves, and its standard error."""
    before = max(old.median, 1.0)
    ratio = new.median / before
    return 1 - ratio, math.hypot(new.error, ratio * old.error) / before


def _tied(
    plain: Measured,
    graph: Measured,
    table: tuple[Measured, ...],
    samples: Mapping[Variant, Sequence[Timing]],
    rules: Rules,
) -> Verdict:
    """No difference that counts. A graph that leaves the host free still helps a program that waits for its host."""
    behind = statistics.fmean(one.behind for variant in (plain.variant, graph.variant) for one in samples[variant])
    saved, error = _gain(graph.host, plain.host)
    if rules.objective == "auto" and behind < 0.5 and saved - _ERRORS * error >= _HOST_GAIN:
        reason = f"as fast, and the host, which the device waits for, is free {saved:.0%} earlier"
        return Verdict(graph.variant, f"{reason}: {_figures(plain, graph)}", table)
    return Verdict(
        Variant.PLAIN, f"{_NAMES[graph.variant]} saves too little (config.min_gain): {_figures(plain, graph)}", table
    )


def _figures(plain: Measured, graph: Measured) -> str:
    return f"{graph.cost.median / 1e3:.1f} µs a call, plainly {plain.cost.median / 1e3:.1f} µs"
