"""What the paper published, from paper.json, beside what was measured here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.bench import goals, resources
from scripts.bench.compare import times
from scripts.bench.markdown import human_bytes, table
from scripts.bench.results import Result, VariantResult, commit_name
from scripts.bench.stats import geomean
from scripts.bench.variants import INDUCTOR, OURS, STOCK

PAPER = Path(__file__).with_name("paper.json")


def published() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(PAPER.read_text())
    return figures


def overall_table(main: Sequence[Result], from_nothing: Sequence[Result], paper: dict[str, Any]) -> str:
    """The paper's averages beside ours over its workloads."""
    own = [result for result in main if result.facts.get("paper")]
    rows = []
    labels = {"geomean_stock": "stock graphs over none, geomean", "geomean_ours": "all techniques over none, geomean"}
    for key, name in (("geomean_stock", STOCK.name), ("geomean_ours", OURS.name)):
        mark = " (read from a figure)" if key in paper["second_hand"] else ""
        values = [v for r in own if (v := goals.over(r, INDUCTOR.name, name))]
        rows.append((labels[key], f"{times(paper['overall'][key])}{mark}", times(geomean(values)), len(values)))
    over_stock = [v for r in own if (v := goals.over(r, STOCK.name, OURS.name))]
    rows.append(
        ("best over stock graphs", times(paper["overall"]["best_over_stock"]), best(over_stock), len(over_stock))
    )
    slower = [v for r in own if (v := goals.over(r, INDUCTOR.name, STOCK.name))]
    count = f"{sum(v < 0.97 for v in slower)} of {len(slower)}"
    rows.append(
        (
            "stock graphs slower than none by 3 % or more",
            f"{paper['overall']['slower_than_none']} of 25",
            count,
            len(slower),
        )
    )
    cold = [v for r in from_nothing if r.facts.get("paper") and (v := goals.cold_startup_ratio(r))]
    average = times(sum(cold) / len(cold)) if cold else "-"
    rows.append(
        (
            "time to the steady state over stock's (paper: compile time)",
            times(paper["overall"]["compile_ratio"]),
            average,
            len(cold),
        )
    )
    return table(("figure", "paper", "here", "workloads"), rows)


def best(values: Sequence[float]) -> str:
    return times(max(values)) if values else "-"


def workloads_table(main: Sequence[Result], ablated: Sequence[Result], paper: dict[str, Any]) -> str:
    """Every figure that the paper gives for a workload, beside ours."""
    rows = []
    without = {result.workload: result for result in ablated}
    for result in main:
        published = paper["workloads"].get(result.workload)
        if not published:
            continue
        for key, value in published.items():
            rows.append((result.workload, *PUBLISHED[key](value, result, without.get(result.workload, result))))
    return table(("workload", "figure", "paper", "here"), rows, left=2) if rows else "None of the paper's workloads."


def _inside(result: Result, name: str) -> str:
    """The share of kernels that graphs launch, and the share of those that could be: kernels of compiled code."""
    variant = result.variants.get(name, VariantResult())
    profile = variant.profile
    if profile is None or not profile.kernels_compiled or profile.kernels_compiled == profile.kernels:
        return resources.share(variant)
    part = 100 * profile.kernels_in_graphs / profile.kernels_compiled
    return f"{resources.share(variant)} ({part:.2f} % of compiled code's)"


def _gain_of(off: Result, technique: str, row: Result) -> str:
    found = goals.over(off, f"ours-no-{technique}", OURS.name)
    if not found:
        return off.variants.get(f"ours-no-{technique}", VariantResult("not measured")).status
    return times(found) if commit_name(off) == commit_name(row) else f"{times(found)} ({commit_name(off)})"


# The paper's figure -> its row: what it is, its value there, its value here. Given are its value, ours, and ours from a
# run in which techniques were switched off.
PUBLISHED: dict[str, Callable[[float, Result, Result], tuple[str, str, str]]] = {
    "over_stock": lambda v, r, _: ("over stock graphs", times(v), times(goals.over(r, STOCK.name, OURS.name))),
    "stock_over_none": lambda v, r, _: (
        "stock graphs over none", times(v), times(goals.over(r, INDUCTOR.name, STOCK.name))
    ),
    "transform_over_stock": lambda v, r, off: (
        "code transformation (paper: alone over stock; here: with it over without)",
        times(v),
        _gain_of(off, "transform", r),
    ),
    "addresses_gain": lambda v, r, off: (
        "addresses as parameters (with over without)", times(1 + v), _gain_of(off, "addresses", r)
    ),
    "in_graphs_stock": lambda v, r, _: ("kernels in graphs, stock", f"{v:.2f} %", _inside(r, STOCK.name)),
    "in_graphs_ours": lambda v, r, _: ("kernels in graphs, ours", f"{v:.2f} %", _inside(r, OURS.name)),
    "copied_stock": lambda v, r, _: ("bytes copied, stock", human_bytes(v), resources.copied(r, STOCK.name)),
    "copied_ours": lambda v, r, _: ("bytes copied, ours", human_bytes(v), resources.copied(r, OURS.name)),
}  # fmt: skip


def differences(main: Sequence[Result], paper: dict[str, Any]) -> str:
    """The paper's setup beside this one, and what is built otherwise."""
    here, there = main[0].environment, paper["setup"]
    rows = [(key, there[key], here.get(key, "-")) for key in ("gpu", "cpu", "cuda", "torch")]
    own = [r.workload for r in main if r.facts.get("paper") and r.facts.get("source") == "ours"]
    lines = [table(("", "paper", "here"), rows, left=3)]
    lines.append("")
    lines.append(f"The paper ran {there['runs']}; here mixed precision means bf16 and not fp16, without a loss scaler.")
    lines.append("Dropout keeps its kernels and random numbers but drops nothing, so that eager is a reference.")
    pure = [r.workload for r in main if r.facts.get("mode") == "training" and r.facts.get("precision") == "bf16"]
    if pure:
        lines.append(
            f"Trained with bf16 weights, not mixed precision, which their code does not bear: {', '.join(pure)}."
        )
    if own:
        lines.append(f"Written for this benchmark after public descriptions, same sizes: {', '.join(own)}.")
    return "\n".join(lines)
