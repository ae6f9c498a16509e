"""The goal figures, computed from results: how far each is met, beside stock graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass

from scripts.bench.compare import slower_than_baselines, times
from scripts.bench.results import Result
from scripts.bench.stats import SLOWER, Ratio, geomean
from scripts.bench.variants import FLOOR, INDUCTOR, OURS, STOCK

MEMORY = ("steady_reserved", "peak_reserved")


@dataclass(frozen=True)
class Goal:
    """A goal, what was found for it, and over how many workloads."""

    what: str
    goal: str
    found: str
    stock: str
    verdict: str
    over: str


def good(result: Result, name: str) -> bool:
    """Whether a variant's numbers may be averaged: it ran, and what it computed is right."""
    variant = result.variants.get(name)
    return variant is not None and variant.status in ("ok", "not available")


def over(result: Result, name: str, base: str) -> float | None:
    """Time of `name` over time of `base`; None where one is missing or wrong."""
    mine, other = result.timing(name), result.timing(base)
    if mine is None or other is None or not good(result, name) or not good(result, base):
        return None
    return mine.throughput_us.median / other.throughput_us.median


def extra_bytes(result: Result, name: str, kind: str = "device_to_device") -> float | None:
    """Bytes a variant copies per iteration beyond the plain call."""
    mine, plain = result.variants.get(name), result.variants.get(INDUCTOR.name)
    if not mine or not plain or mine.profile is None or plain.profile is None:
        return None
    return mine.profile.copied_bytes.get(kind, 0.0) - plain.profile.copied_bytes.get(kind, 0.0)


def extra_copies(result: Result, name: str) -> float | None:
    """How much more often a variant copies on the device per iteration than the plain call; None in older data."""
    mine, plain = result.variants.get(name), result.variants.get(INDUCTOR.name)
    if not mine or not plain or mine.profile is None or plain.profile is None:
        return None
    if mine.profile.copies is None or plain.profile.copies is None:
        return None
    return mine.profile.copies - plain.profile.copies


def copies_more(result: Result, name: str) -> bool | None:
    """Whether a variant copies bytes on the device beyond those of the plain call; None where nobody looked."""
    amount, count = extra_bytes(result, name), extra_copies(result, name)
    if amount is None:
        return None
    return amount > 0 or (count is not None and count > 0)


def memory_ratio(result: Result, name: str, measure: str) -> float | None:
    mine, plain = result.variants.get(name), result.variants.get(INDUCTOR.name)
    if not mine or not plain or mine.memory is None or plain.memory is None:
        return None
    base = getattr(plain.memory, measure)
    return getattr(mine.memory, measure) / base if base else None


def startup_ratio(result: Result) -> float | None:
    """Our time to the steady state over stock's, where both compiled from nothing or both from a shared cache."""
    ours, stock = result.variants.get(OURS.name), result.variants.get(STOCK.name)
    if not ours or not stock or ours.startup is None or stock.startup is None:
        return None
    if ours.startup.cache != stock.startup.cache or not stock.startup.to_steady_s:
        return None
    return ours.startup.to_steady_s / stock.startup.to_steady_s


def cold_startup_ratio(result: Result) -> float | None:
    """The same, where both compiled from nothing."""
    ours = result.variants.get(OURS.name)
    cold = ours is not None and ours.startup is not None and ours.startup.cache == "cold"
    return startup_ratio(result) if cold else None


def all_goals(
    results: Sequence[Result], cold: Sequence[Result] = (), judges: Mapping[str, Result] | None = None
) -> list[Goal]:
    """Every goal. `cold`: rows that were compiled from nothing, for how long the start takes. `judges`: by the name
    that each shall have, the rows that say which workloads are slower, where these are not the ones that are averaged.
    """
    paper = [result for result in results if result.facts.get("paper")]
    inference = [result for result in results if result.facts.get("mode") == "inference"]
    return [
        mean_goal("distance to the floor, inference, geomean", 1.10, inference, lambda r, n: over(r, n, FLOOR.name)),
        never_slower(by_workload(results) if judges is None else judges),
        benefit(paper),
        no_copies(paper),
        mean_goal(
            "reserved memory over no graphs, steady, geomean", 1.10, results, lambda r, n: memory_ratio(r, n, MEMORY[0])
        ),
        mean_goal(
            "reserved memory over no graphs, peak, geomean", 1.05, results, lambda r, n: memory_ratio(r, n, MEMORY[1])
        ),
        quick_start("shared cache", [result for result in results if cold_startup_ratio(result) is None], results),
        quick_start("nothing compiled before", cold, results),
    ]


def mean_goal(what: str, most: float, results: Sequence[Result], value: Callable[[Result, str], float | None]) -> Goal:
    """A geometric mean that should stay below `most`; stock graphs' is over what both have, with ours there."""
    ours = [v for r in results if (v := value(r, OURS.name)) is not None]
    pairs = [(value(r, OURS.name), value(r, STOCK.name)) for r in results]
    both = [(mine, stock) for mine, stock in pairs if mine is not None and stock is not None]
    mine, stock = geomean(ours), times(geomean(stock for _, stock in both))
    if both and len(both) < len(ours):
        stock += f" (ours there {times(geomean(mine for mine, _ in both))}, {len(both)})"
    verdict = "-" if mine is None else yes(mine <= most)
    return Goal(what, f"<= {times(most)}", times(mine), stock, verdict, counted(ours, results))


def by_workload(results: Sequence[Result]) -> dict[str, Result]:
    return {result.workload: result for result in results}


def over_better(named: Mapping[str, Result]) -> dict[str, Ratio]:
    """Our time over that of the better baseline, by the names given."""
    return {n: s for n, r in named.items() if (s := slower_than_baselines(r)) is not None and good(r, OURS.name)}


def slower(found: Mapping[str, Ratio]) -> tuple[list[str], list[str]]:
    """The workloads that are surely slower than the better baseline, and those that may be.

    Whose interval holds what is called slower and what is not may be either, whatever its median is.
    """
    late = sorted((name for name, s in found.items() if s.high > SLOWER), key=lambda name: -found[name].value)
    return [name for name in late if found[name].low > SLOWER], [name for name in late if found[name].low <= SLOWER]


def never_slower(named: Mapping[str, Result]) -> Goal:
    """A verdict on each workload, not an average: the rows may be of several commits."""
    found = over_better(named)
    sure, perhaps = slower(found)
    listed = ", ".join(f"{name} {found[name]}" for name in sorted([*sure, *perhaps], key=lambda n: -found[n].value))
    text = f"{len(sure)} surely, {len(perhaps)} perhaps" + (f": {listed}" if listed else "")
    return Goal(
        "workloads slower than the better baseline by over 2 %", "0", text if found else "-", "-",
        ("no" if sure else "unsure" if perhaps else "yes") if found else "-", counted(found, named),
    )  # fmt: skip


def benefit(paper: Sequence[Result]) -> Goal:
    """What graphs bring over none, on the paper's workloads that have both."""
    pairs = [(over(r, INDUCTOR.name, OURS.name), over(r, INDUCTOR.name, STOCK.name)) for r in paper]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    mine, stock = geomean(a for a, _ in both), geomean(b for _, b in both)
    verdict = "-" if mine is None or stock is None else yes(mine - 1 >= 2 * (stock - 1))
    what = "speed-up over no graphs on the paper's 25, geomean"
    return Goal(what, "benefit at least twice stock's", times(mine), times(stock), verdict, counted(both, paper))


def no_copies(paper: Sequence[Result]) -> Goal:
    ours = {r.workload: copying for r in paper if (copying := copies_more(r, OURS.name)) is not None}
    stock = [copying for r in paper if (copying := copies_more(r, STOCK.name)) is not None]
    copying = [name for name, copies in ours.items() if copies]
    text = f"{len(copying)} copy" + (f": {', '.join(copying)}" if copying else "")
    what = "workloads of the paper that copy extra bytes on the device"
    verdict = yes(not copying) if ours else "-"
    if ours and not copying and any(extra_copies(r, OURS.name) is None for r in paper if r.workload in ours):
        text, verdict = f"{text} outside of graphs; inside nobody looked", "unsure"
    return Goal(
        what,
        "0",
        text if ours else "-",
        f"{sum(stock)} of {len(stock)} copy",
        verdict,
        counted(ours, paper),
    )


def quick_start(where: str, started: Sequence[Result], results: Sequence[Result]) -> Goal:
    """From a shared cache recording weighs more than from nothing, since both then compile less beside it."""
    found = [v for r in started if (v := startup_ratio(r)) is not None]
    mine = geomean(found)
    what = f"first call to steady state over stock's, geomean, {where}"
    verdict = "-" if mine is None else yes(mine <= 1.2)
    return Goal(what, f"<= {times(1.2)}", times(mine), "-", verdict, counted(found, results))


def yes(met: bool) -> str:
    return "yes" if met else "no"


def counted(found: Sized, results: Sized) -> str:
    return f"{len(found)} of {len(results)}"
