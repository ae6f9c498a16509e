"""What the paper published, from paper.json, beside what was measured here."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench import goals, resources
from scripts.bench.compare import times
from scripts.bench.markdown import human_bytes, table
from scripts.bench.results import Result, VariantResult, commit_name
from scripts.bench.stats import geomean
from scripts.bench.variants import INDUCTOR, OURS, STOCK

PAPER = Path(__file__).with_name("paper.json")
PLAIN = "plain"  # a decision against a graph
NO_ADDRESSES = "ours-no-addresses"


def published() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(PAPER.read_text())
    return figures


@dataclass(frozen=True)
class Measured:
    """The page's rows of the paper's workloads, and rows of them from runs of their own: with techniques switched off,
    and compiled from nothing. What is found is by workload, of those that have what it takes.
    """

    rows: Sequence[Result]
    off: Sequence[Result]
    cold: Sequence[Result]

    @staticmethod
    def of(main: Sequence[Result], off: Sequence[Result], cold: Sequence[Result]) -> Measured:
        return Measured(*([row for row in rows if row.facts.get("paper")] for rows in (main, off, cold)))

    def over(self, name: str, base: str) -> dict[str, float]:
        return ratios(self.rows, name, base)

    def starts(self) -> dict[str, float]:
        return {row.workload: value for row in self.cold if (value := goals.cold_startup_ratio(row))}

    def peaks(self) -> dict[str, float]:
        """Our peak of reserved memory over that of stock graphs."""
        found = {}
        for row in self.rows:
            ours, stock = (row.variants.get(name, VariantResult()).memory for name in (OURS.name, STOCK.name))
            if ours and stock and goals.good(row, OURS.name) and goals.good(row, STOCK.name):
                found[row.workload] = ours.peak_reserved / stock.peak_reserved
        return found

    def marked(self, cell: tuple[str, int], rows: Iterable[Result]) -> tuple[str, int]:
        """What was found in rows from runs of their own, with their commits that no row of the page is of."""
        commits = sorted({commit_name(row) for row in rows} - {commit_name(row) for row in self.rows})
        return f"{cell[0]} ({', '.join(commits)})" if commits else cell[0], cell[1]


def ratios(rows: Sequence[Result], name: str, base: str) -> dict[str, float]:
    """The time of one variant over another's."""
    return {row.workload: value for row in rows if (value := goals.over(row, name, base)) is not None}


def overall_table(measured: Measured, paper: Mapping[str, Any]) -> str:
    """The paper's figures over all its workloads, beside ours."""
    rows = []
    for key, value in paper["overall"].items():
        what, there, (here, count) = OVERALL[key](value, measured)
        rows.append((what, f"{there} (read from a figure)" if key in paper["second_hand"] else there, here, count))
    return table(("figure", "paper", "here", "workloads"), rows)


def mean(found: Mapping[str, float], average: Callable[[Iterable[float]], float | None] = geomean) -> tuple[str, int]:
    return times(average(found.values()) if found else None), len(found)


def benefit(measured: Measured) -> tuple[str, int]:
    """What our graphs gain over none, over what stock graphs gain, on the workloads that have both."""
    ours, stock = (measured.over(INDUCTOR.name, name) for name in (OURS.name, STOCK.name))
    both = ours.keys() & stock.keys()
    gained, gained_by_stock = ((geomean(found[name] for name in both) or 1.0) - 1 for found in (ours, stock))
    return times(gained / gained_by_stock if gained_by_stock > 0 else None), len(both)


def extreme(
    found: Mapping[str, float], pick: Callable[[Iterable[tuple[float, str]]], tuple[float, str]]
) -> tuple[str, int]:
    """The largest or the least, with its workload."""
    if not found:
        return "-", 0
    value, name = pick((value, name) for name, value in found.items())
    return f"{times(value)} ({name})", len(found)


def those(found: Mapping[str, float], which: Callable[[float], bool]) -> tuple[str, int]:
    return f"{sum(map(which, found.values()))} of {len(found)}", len(found)


def slower_than_better(rows: Sequence[Result]) -> tuple[str, int]:
    found = goals.over_better(goals.by_workload(rows))
    sure, perhaps = goals.slower(found)
    return f"{len(sure)} surely, {len(perhaps)} perhaps" if found else "-", len(found)


def graphs_kept(rows: Sequence[Result]) -> tuple[str, int]:
    """Decisions for a graph, of all that were made: there is one for each function and its sizes."""
    good = [row.variants[OURS.name] for row in rows if goals.good(row, OURS.name)]
    chosen = [[one.chosen for one in variant.decisions if one.chosen] for variant in good]
    undecided = sum(not one.chosen for variant in good for one in variant.decisions)
    made = [one for each in chosen for one in each]
    kept = f"{sum(one != PLAIN for one in made)} of {len(made)}" if made else "-"
    return f"{kept}, {undecided} undecided" if undecided else kept, sum(map(bool, chosen))


def addresses_gained(measured: Measured) -> tuple[str, int]:
    found = ratios(measured.off, NO_ADDRESSES, OURS.name)
    return measured.marked(those(found, lambda ratio: ratio > 1.04), (r for r in measured.off if r.workload in found))


def so_many(figures: Sequence[int]) -> str:
    """How many, and of how many where the paper says that."""
    return " of ".join(map(str, figures))


# The paper's figure -> its row: what it is, its value there, its value here with the number of workloads.
OVERALL: dict[str, Callable[[Any, Measured], tuple[str, str, tuple[str, int]]]] = {
    "geomean_stock": lambda v, m: (
        "stock graphs over none, geomean", times(v), mean(m.over(INDUCTOR.name, STOCK.name))
    ),
    "geomean_ours": lambda v, m: (
        "all techniques over none, geomean", times(v), mean(m.over(INDUCTOR.name, OURS.name))
    ),
    "benefit_over_stock": lambda v, m: (
        "what all techniques gain over none, over what stock graphs gain", f"over {times(v)}", benefit(m)
    ),
    "best_over_stock": lambda v, m: (
        "best over stock graphs", times(v), extreme(m.over(STOCK.name, OURS.name), max)
    ),
    "slower_than_none": lambda v, m: (
        "stock graphs slower than none by 3 % or more",
        so_many(v),
        those(m.over(INDUCTOR.name, STOCK.name), lambda ratio: ratio < 0.97),
    ),
    "slower_than_better": lambda v, m: (
        "all techniques slower than the better of none and stock graphs (here: by over 2 %)",
        so_many(v),
        slower_than_better(m.rows),
    ),
    "addresses_gained": lambda v, m: (
        "addresses as parameters gain over 4 % (with over without)",
        so_many(v),
        addresses_gained(m),
    ),
    "graphs_kept": lambda v, m: (
        "graphs kept by selection (here: of functions and their sizes)", so_many(v), graphs_kept(m.rows)
    ),
    "compile_ratio": lambda v, m: (
        "time to the steady state over stock's (paper: compile time)",
        times(v),
        m.marked(mean(m.starts(), statistics.mean), m.cold),
    ),
    "compile_ratio_worst": lambda v, m: (
        "time to the steady state over stock's, worst workload", times(v), m.marked(extreme(m.starts(), max), m.cold)
    ),
    "peak_memory_least": lambda v, m: (
        "peak reserved memory over stock graphs', least", times(v), extreme(m.peaks(), min)
    ),
}  # fmt: skip


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
PUBLISHED: dict[str, Callable[[Any, Result, Result], tuple[str, str, str]]] = {
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
    "selection_gain": lambda v, r, off: ("selection (with over without)", times(1 + v), _gain_of(off, "selection", r)),
    "graphs_kept": lambda v, r, _: ("graphs kept by selection", so_many(v), graphs_kept([r])[0]),
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
    spread = paper["tensor_parallel"]
    lines.append(
        f"The paper's tensor-parallel figures (up to {times(spread['best_over_stock'])} over stock graphs, "
        f"{times(spread['mean_over_stock'])} on average, on up to {spread['gpus']} GPUs) are not measured here: every "
        "row is of one GPU."
    )
    return "\n".join(lines)
