"""How far the cost model's expectations are from what was measured when graph or plain call was chosen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

from scripts.bench.results import Decision, Estimate, Result
from scripts.bench.stats import TIMES, geomean
from scripts.bench.variants import OURS

UNKNOWN = "No row has both: they were measured before the expectations were kept, or nothing was decided by measuring."


def measured(results: Iterable[Result]) -> Iterator[tuple[str, Decision]]:
    """The decisions of which both is known, with their workloads."""
    for result in results:
        ours = result.variants.get(OURS.name)
        for decision in ours.decisions if ours is not None else ():
            if any(off(one) for one in decision.variants):
                yield result.workload, decision


def off(one: Estimate) -> float | None:
    """Expected over measured time on the host; None where one is not known."""
    if not one.host_us or not one.expected_host_us:
        return None
    return one.expected_host_us / one.host_us


def offs(decisions: Iterable[Decision], variant: str) -> list[float]:
    """The same for one variant of all decisions that know it."""
    found = [off(one) for decision in decisions for one in decision.variants if one.name == variant]
    return [value for value in found if value is not None]


def typical(ratios: Sequence[float]) -> str:
    """The factor by which expectations are off at the median, whichever way."""
    if not ratios:
        return "-"
    return f"{math.exp(statistics.median(abs(math.log(value)) for value in ratios)):.2f}{TIMES}"


def right_order(decision: Decision) -> bool | None:
    """Whether the variant with the least expected host time had the least; None where that is not known."""
    known = [one for one in decision.variants if off(one)]
    if len(known) < 2:
        return None
    return min(known, key=expected) is min(known, key=lambda one: one.host_us or 0.0)


def expected(one: Estimate) -> float:
    return one.expected_host_us or 0.0


def bound_held(decision: Decision) -> bool | None:
    """Whether launching plainly cost the host no more than the bound that rules graphs out."""
    plain = next((one for one in decision.variants if one.name == "plain"), None)
    if plain is None or plain.host_us is None or decision.plain_host_at_most_us is None:
        return None
    return plain.host_us <= decision.plain_host_at_most_us


def share(answers: Iterable[bool | None]) -> str:
    known = [answer for answer in answers if answer is not None]
    return f"{sum(known)} of {len(known)}"


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One row a workload: how many decisions, and over them expected by measured; then all of them."""
    by_workload: dict[str, list[Decision]] = {}
    for workload, decision in measured(results):
        by_workload.setdefault(workload, []).append(decision)
    found = [row(name, decisions) for name, decisions in by_workload.items()]
    every = [decision for decisions in by_workload.values() for decision in decisions]
    return [*found, row("**all**", every)] if found else []


def row(name: str, decisions: Sequence[Decision]) -> tuple[str, ...]:
    factors = []
    for variant in ("plain", "graph"):
        ratios = offs(decisions, variant)
        mean = geomean(ratios)
        factors += [f"{mean:.2f}{TIMES}" if mean else "-", typical(ratios)]
    order, bound = share(map(right_order, decisions)), share(map(bound_held, decisions))
    return (name, str(len(decisions)), *factors, order, bound)


HEADS = (
    "workload", "decisions", "plain, expected over measured", "plain, off by", "graph, expected over measured",
    "graph, off by", "right about which is less", "bound held",
)  # fmt: skip
