"""What an iteration takes with calls in flight, as a table: median and quartiles over the rounds of every variant."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.bench import goals
from scripts.bench.markdown import table
from scripts.bench.results import Result
from scripts.bench.stats import Spread
from scripts.bench.variants import EAGER, FLOOR, INDUCTOR, OURS, STOCK

COLUMNS = (EAGER, INDUCTOR, STOCK, OURS, FLOOR)


def quartiles_table(named: Mapping[str, Result]) -> str:
    """Microseconds, by the name that the row shall have."""
    rows = [(row, rounds(result), *(cell(result, one.name) for one in COLUMNS)) for row, result in named.items()]
    return table(("workload", "rounds", *(one.label for one in COLUMNS)), rows)


def rounds(result: Result) -> str:
    """How many there were: variants take turns in them."""
    timing = result.timing(OURS.name)
    return str(timing.throughput_us.count) if timing else "-"


def cell(result: Result, name: str) -> str:
    """What became of it where its time says nothing; one sum of kernels' times has no quartiles."""
    timing = result.timing(name)
    if name in result.variants and not goals.good(result, name):
        return result.variants[name].status
    if timing is None:
        return "-"
    return spread(timing.throughput_us) if timing.kind == "measured" else figure(timing.throughput_us.median)


def spread(of: Spread) -> str:
    return f"{figure(of.median)} [{figure(of.low)}, {figure(of.high)}]"


def figure(value: float) -> str:
    """Three figures of what is short, whose spread is below a microsecond."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
