"""The plots of the page, from results alone. SVG without dates or random ids: the same data gives the same file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.bench import goals
from scripts.bench.results import Result
from scripts.bench.variants import ABLATIONS, FLOOR, INDUCTOR, OURS, STOCK, VARIANTS

COLOURS = {STOCK.name: "#9aa5b1", OURS.name: "#1f6feb"}
Value = Callable[[Result], float | None]


def draw_all(results: Sequence[Result], ablated: Sequence[Result], folder: Path) -> dict[str, Path]:
    """Draw what there is data for; name -> file. `ablated`: the rows with techniques switched off."""
    drawn = {}
    for name, draw in PLOTS.items():
        figure = draw(ablated if draw is ablation else results)
        if figure is not None:
            folder.mkdir(parents=True, exist_ok=True)
            drawn[name] = folder / f"{name}.svg"
            figure.savefig(drawn[name], metadata={"Date": None}, bbox_inches="tight")
    return drawn


def bars(
    results: Sequence[Result], series: Mapping[str, Value], label: str, line: float | None = None, log: bool = False
) -> Any:
    """Grouped bars, a group per workload; None where no workload has a value."""
    rows = [(r.workload, [value(r) for value in series.values()]) for r in results]
    rows = [(name, values) for name, values in rows if any(value is not None for value in values)]
    if not rows:
        return None
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "pygraph"
    figure = Figure(figsize=(max(6.0, 0.42 * len(rows) + 2), 3.6))
    axes = figure.subplots()
    width = 0.8 / len(series)
    for n, name in enumerate(series):
        places = [k + (n - (len(series) - 1) / 2) * width for k in range(len(rows))]
        heights = [values[n] if values[n] is not None else 0.0 for _, values in rows]
        axes.bar(places, heights, width, label=VARIANTS[name].label, color=COLOURS.get(name))
    axes.set_xticks(range(len(rows)), [name for name, _ in rows], rotation=70, fontsize=8)
    axes.set_ylabel(label)
    if line is not None:
        axes.axhline(line, color="black", linewidth=0.8)
    if log:
        axes.set_yscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def time_over(name: str, base: str) -> Value:
    return lambda result: goals.over(result, name, base)


def speed(results: Sequence[Result]) -> Any:
    series = {n: time_over(INDUCTOR.name, n) for n in (STOCK.name, OURS.name)}
    return bars(results, series, "speed-up over no graphs", line=1.0)


def floor(results: Sequence[Result]) -> Any:
    series = {n: time_over(n, FLOOR.name) for n in (STOCK.name, OURS.name)}
    return bars(results, series, "time over the floor's", line=1.0, log=True)


def ablation(results: Sequence[Result]) -> Any:
    series = {v.name: time_over(v.name, OURS.name) for v in ABLATIONS}
    present = {n: value for n, value in series.items() if any(value(r) is not None for r in results)}
    return bars(results, present, "time without over time with", line=1.0) if present else None


def copied(results: Sequence[Result]) -> Any:
    """Zero has no place on a logarithmic axis: a bar that is not there is a byte that is not copied."""

    def megabytes(name: str) -> Value:
        def value(result: Result) -> float | None:
            amount = goals.extra_bytes(result, name)
            return None if amount is None else max(amount, 0.0) / 1e6

        return value

    series = {n: megabytes(n) for n in (STOCK.name, OURS.name)}
    some = any(value(r) for r in results for value in series.values())
    return bars(results, series, "MB copied per iteration beyond the plain call", log=True) if some else None


def memory(results: Sequence[Result]) -> Any:
    def steady(name: str) -> Value:
        return lambda result: goals.memory_ratio(result, name, "steady_reserved")

    series = {n: steady(n) for n in (STOCK.name, OURS.name)}
    return bars(results, series, "steady reserved memory over no graphs", line=1.0)


PLOTS: dict[str, Callable[[Sequence[Result]], Any]] = {
    "speed": speed,
    "floor": floor,
    "ablation": ablation,
    "bytes": copied,
    "memory": memory,
}
