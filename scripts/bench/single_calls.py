"""What one call at a time takes, from an idle device: on the host, on the device, and until its results are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scripts.bench import goals
from scripts.bench.markdown import table
from scripts.bench.results import Result, Timing
from scripts.bench.variants import INDUCTOR, OURS, STOCK, VARIANTS

MEASURES: dict[str, Callable[[Timing], float | None]] = {
    "host": lambda timing: timing.host_us.median,
    "device": lambda timing: timing.device_us.median if timing.device_us else None,
    "latency": lambda timing: timing.latency_us.median,
    "p99": lambda timing: timing.latency_us.p99,
}


def calls_table(named: Mapping[str, Result]) -> str:
    """Microseconds of the three variants, by the name that the row shall have."""
    names = (INDUCTOR.name, STOCK.name, OURS.name)
    heads = ("workload", *(f"{what}, {VARIANTS[name].label}" for what in MEASURES for name in names))
    rows = [
        (row, *(cell(result, name, of) for of in MEASURES.values() for name in names)) for row, result in named.items()
    ]
    return table(heads, rows)


def cell(result: Result, name: str, of: Callable[[Timing], float | None]) -> str:
    """What became of it where its time says nothing, because it computed something else or did not run."""
    timing = result.timing(name)
    if name in result.variants and not goals.good(result, name):
        return result.variants[name].status
    value = of(timing) if timing else None
    return "-" if value is None else f"{value:,.0f}"
