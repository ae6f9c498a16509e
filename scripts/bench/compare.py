"""What changed between two sets of results, and with what confidence.

Times of different runs are compared through the plain call of each run, which takes the machine's mood out; without it
the raw times are compared and the row says so.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from scripts.bench.results import Result, Timing, VariantResult, commit_name
from scripts.bench.stats import CONFIDENCE, RESAMPLES, TIMES, Ratio, quantile, ratio
from scripts.bench.variants import EAGER, FLOOR, INDUCTOR, OURS

COLOURS = {"worse": "red", "better": "green", "unsure": "yellow"}
MACHINE = ("gpu", "device", "torch", "cpu", "driver")


@dataclass(frozen=True)
class Change:
    """One measure of one variant. `interval` is there where the measure has noise."""

    workload: str
    variant: str
    measure: str
    old: str
    new: str
    verdict: str
    interval: Ratio | None = None
    note: str = ""


def one_each(results: Iterable[Result]) -> dict[str, Result]:
    """Results by workload. Two of one workload would have to be pooled or chosen from, and that is the caller's."""
    found: dict[str, Result] = {}
    for result in results:
        if result.workload in found:
            commits = f"{commit_name(found[result.workload])} and {commit_name(result)}"
            raise SystemExit(f"two results of {result.workload} ({commits}); compare one commit with one other")
        found[result.workload] = result
    return found


def compared(old: Iterable[Result], new: Iterable[Result], threshold: float = 0.02) -> list[Change]:
    """Every measure that both sides have, worst first."""
    before, after = one_each(old), one_each(new)
    changes: list[Change] = []
    for name in sorted(before.keys() & after.keys()):
        a, b = before[name], after[name]
        note = machine_note(a, b)
        changes += status_changes(a, b)
        for variant in sorted(a.variants.keys() & b.variants.keys()):
            if variant not in (EAGER.name, FLOOR.name):
                changes += time_changes(a, b, variant, threshold, note)
                changes += count_changes(name, variant, a.variants[variant], b.variants[variant], threshold)
    order = ("worse", "unsure", "better", "same")
    return sorted(changes, key=lambda change: (order.index(change.verdict), change.workload, change.variant))


def machine_note(a: Result, b: Result) -> str:
    """How the machines or versions differ."""
    differ = [key for key in MACHINE if a.environment.get(key) != b.environment.get(key)]
    return f"another {', '.join(differ)}" if differ else ""


def status_changes(a: Result, b: Result) -> list[Change]:
    if a.status == b.status:
        return []
    verdict = "worse" if a.status == "ok" else "better" if b.status == "ok" else "unsure"
    return [Change(a.workload, "", "status", a.status, b.status, verdict, note=b.reason or "")]


def time_changes(a: Result, b: Result, variant: str, threshold: float, note: str) -> list[Change]:
    """Throughput and latency of a variant, through each run's plain call where it can be."""
    mine, theirs = a.timing(variant), b.timing(variant)
    if mine is None or theirs is None or variant == INDUCTOR.name:
        return []
    bases = (a.timing(INDUCTOR.name), b.timing(INDUCTOR.name))
    changes = []
    for measure, series in (("time, in flight", "rounds_throughput_us"), ("latency", "rounds_latency_us")):
        before, after = getattr(mine, series), getattr(theirs, series)
        if bases[0] is not None and bases[1] is not None:
            interval = ratio_of_ratios(before, getattr(bases[0], series), after, getattr(bases[1], series))
            how = "against each run's plain call"
        else:
            interval = ratio(after, before, paired=False)
            how = "raw times"
        changes.append(
            Change(
                a.workload,
                variant,
                measure,
                f"{statistics.median(before):,.1f} us",
                f"{statistics.median(after):,.1f} us",
                verdict_of(interval, threshold),
                interval,
                ", ".join(part for part in (how, note) if part),
            )
        )
    return changes


def ratio_of_ratios(
    a: Sequence[float], a_base: Sequence[float], b: Sequence[float], b_base: Sequence[float], seed: int = 0
) -> Ratio:
    """(b / its base) over (a / its base). Rounds within a run are paired, runs are not."""
    draw = random.Random(seed)

    def resampled(values: Sequence[float], base: Sequence[float]) -> float:
        picks = [draw.randrange(min(len(values), len(base))) for _ in range(min(len(values), len(base)))]
        return statistics.median(values[i] for i in picks) / statistics.median(base[i] for i in picks)

    found = [resampled(b, b_base) / resampled(a, a_base) for _ in range(RESAMPLES)]
    value = (statistics.median(b) / statistics.median(b_base)) / (statistics.median(a) / statistics.median(a_base))
    tail = (1 - CONFIDENCE) / 2
    return Ratio(value, quantile(found, tail), quantile(found, 1 - tail))


def verdict_of(interval: Ratio, threshold: float) -> str:
    """Worse or better only if the whole interval is beyond the threshold; the same only if all of it is within."""
    if interval.low > 1 + threshold:
        return "worse"
    if interval.high < 1 - threshold:
        return "better"
    return "same" if interval.low >= 1 - threshold and interval.high <= 1 + threshold else "unsure"


def count_changes(workload: str, variant: str, a: VariantResult, b: VariantResult, threshold: float) -> list[Change]:
    """Measures without noise to speak of: bytes, kernels, memory, recordings. Less is better, except in graphs."""
    changes = []
    for measure, before, after, slack in counted(a, b, threshold):
        if before is None or after is None or before == after:
            continue
        grew = after > before * (1 + slack) if before else after > 0
        shrank = after < before * (1 - slack)
        verdict = "worse" if grew else "better" if shrank else "same"
        if measure == "kernels in graphs":
            verdict = {"worse": "better", "better": "worse"}.get(verdict, verdict)
        changes.append(Change(workload, variant, measure, f"{before:,.6g}", f"{after:,.6g}", verdict))
    return changes


def counted(
    a: VariantResult, b: VariantResult, threshold: float
) -> list[tuple[str, float | None, float | None, float]]:
    """Measure, old, new, and the share by which it may wobble."""
    rows: list[tuple[str, float | None, float | None, float]] = []
    if a.profile and b.profile:
        for kind in ("device_to_device", "host_to_device"):
            rows.append((f"bytes {kind}", a.profile.copied_bytes.get(kind), b.profile.copied_bytes.get(kind), 0.0))
        rows.append(("kernels in graphs", a.profile.kernels_in_graphs, b.profile.kernels_in_graphs, 0.0))
        rows.append(("graph launches", a.profile.graph_launches, b.profile.graph_launches, 0.0))
    if a.memory and b.memory:
        rows.append(("steady reserved bytes", a.memory.steady_reserved, b.memory.steady_reserved, threshold))
        rows.append(("peak reserved bytes", a.memory.peak_reserved, b.memory.peak_reserved, threshold))
    if a.startup and b.startup and a.startup.cache == b.startup.cache == "cold":
        rows.append(("seconds to steady", a.startup.to_steady_s, b.startup.to_steady_s, 0.15))
    if a.graphs and b.graphs:
        rows.append(("recordings", a.graphs.recordings, b.graphs.recordings, 0.0))
        rows.append(("cuts", len(a.graphs.cuts), len(b.graphs.cuts), 0.0))
    return rows


def comparison_table(changes: Sequence[Change]) -> Table:
    """Everything that is not the same, and how much was."""
    same = sum(change.verdict == "same" for change in changes)
    table = Table(title=f"{len(changes)} measures compared, {same} the same", title_justify="left")
    for heading in ("workload", "variant", "measure", "old", "new", f"new / old, {CONFIDENCE:.0%}", "verdict", "note"):
        table.add_column(heading)
    for change in changes:
        if change.verdict != "same":
            colour = COLOURS[change.verdict]
            cells = (
                change.workload,
                change.variant,
                change.measure,
                change.old,
                change.new,
                str(change.interval or ""),
            )
            table.add_row(*cells, f"[{colour}]{change.verdict}[/{colour}]", change.note)
    return table


def slower_than_baselines(result: Result, variant: str = OURS.name) -> Ratio | None:
    """A variant's time over the better of no graphs and stock graphs, with its interval."""
    mine = result.timing(variant)
    baselines = [t for name in ("inductor", "stock") if (t := result.timing(name)) is not None]
    if mine is None or not baselines:
        return None
    best: Timing = min(baselines, key=lambda timing: timing.throughput_us.median)
    return ratio(mine.rounds_throughput_us, best.rounds_throughput_us)


def times(value: float | None, digits: int = 2) -> str:
    """A factor for a table."""
    return "-" if value is None else f"{value:.{digits}f}{TIMES}"
