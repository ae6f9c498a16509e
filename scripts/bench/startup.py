"""What starting takes, as a table: the first call, which compiles, and those that record, until calls are steady."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.bench import goals
from scripts.bench.compare import times
from scripts.bench.markdown import table
from scripts.bench.results import Result, Startup
from scripts.bench.stats import geomean
from scripts.bench.variants import INDUCTOR, OURS, STOCK, VARIANTS

STARTED = (INDUCTOR.name, STOCK.name, OURS.name)


def starts(result: Result) -> dict[str, Startup]:
    """By variant, of those that a process of their own told of."""
    found = {name: result.variants[name].startup for name in STARTED if name in result.variants}
    return {name: startup for name, startup in found.items() if startup is not None}


def startup_table(named: Mapping[str, Result]) -> str:
    """A row for each workload of which anything is known, by the name that it shall have; averages by kind of cache."""
    known = {row: found for row, result in named.items() if (found := starts(result))}
    names = [name for name in STARTED if any(name in found for found in known.values())]
    rows, ratios = [], dict[str, list[float]]()
    for row, found in known.items():
        compiling = [f"{found[name].first_call_s:.1f} s" if name in found else "-" for name in names]
        recording = [f"{recording_s(found[name]):.2f} s" if name in found else "-" for name in names]
        ratio = goals.startup_ratio(named[row])
        caches = "/".join(sorted({startup.cache for startup in found.values()}))
        rows.append((row, caches, *compiling, *recording, times(ratio)))
        if ratio is not None:
            ratios.setdefault(found[OURS.name].cache, []).append(ratio)
    if not rows:
        return "Not measured in these rows."
    blank = [""] * (2 * len(names))
    for cache, values in ratios.items():
        rows.append((f"**geomean of {len(values)}**", cache, *blank, times(geomean(values))))
    heads = [f"{what}, {VARIANTS[name].label}" for what in ("first call", "then to steady") for name in names]
    return table(("workload", "cache", *heads, "in all, ours over stock"), rows, left=2)


def recording_s(startup: Startup) -> float:
    """What the calls after the first one take until calls are steady."""
    return startup.to_steady_s - startup.first_call_s
