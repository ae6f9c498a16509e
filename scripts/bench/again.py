"""Workloads measured again at a later commit: shown beside the page's rows, in no average, and believed where it asks
of each workload by itself whether ours is slower.
"""

from __future__ import annotations

from collections.abc import Sequence

from scripts.bench import goals
from scripts.bench.choosing import marked, order, switches_off, was_timed
from scripts.bench.markdown import table
from scripts.bench.measure import ALIKE
from scripts.bench.results import Result, commit_name
from scripts.bench.variants import INDUCTOR, OURS, STOCK, Variant

HOPELESS = 3.0  # times as long as without graphs


def measured_again(results: Sequence[Result], main: Sequence[Result]) -> list[Result]:
    """Rows newer than the page's of their workloads, each commit's newest: the same measurement but for the commit."""
    rows = {result.workload: result for result in main}
    newest: dict[tuple[str, str], Result] = {}
    for result in sorted(filter(was_timed, results), key=lambda result: result.finished):
        row = rows.get(result.workload)
        if row is not None and result.finished > row.finished and not switches_off(result) and comparable(result, row):
            newest[(result.workload, commit_name(result))] = result
    return order(newest.values())


def comparable(one: Result, other: Result) -> bool:
    """Whether what was measured differs in the commit at most. A run with knobs set is about these."""
    machines = [[result.environment.get(key) for key in ("gpu", "torch")] for result in (one, other)]
    set_up = [(r.configuration.get("size"), r.configuration.get("knobs", {})) for r in (one, other)]
    return machines[0] == machines[1] and set_up[0] == set_up[1]


def judging(main: Sequence[Result], again: Sequence[Result]) -> list[Result]:
    """For each workload, the row that says whether it is slower: the newest that has what that takes."""
    judges = {row.workload: row for row in main}
    for result in sorted(again, key=lambda result: result.finished):
        if not lacking(result, judges[result.workload]):
            judges[result.workload] = result
    return list(judges.values())


def lacking(newer: Result, older: Result) -> list[Variant]:
    """What keeps a newer row from judging: without a baseline that ran before, the better one may be missing, unless it
    took several times as long as the other.
    """

    def took(result: Result, variant: Variant) -> float | None:
        timing = result.timing(variant.name) if goals.good(result, variant.name) else None
        return timing.throughput_us.median if timing is not None else None

    plain, stock = took(older, INDUCTOR), took(older, STOCK)
    hopeless = stock is None or (plain is not None and stock > HOPELESS * plain)
    needed = [OURS, INDUCTOR, *([] if hopeless else [STOCK])]
    return [variant for variant in needed if took(newer, variant) is None]


def again_table(main: Sequence[Result], again: Sequence[Result]) -> str:
    """What was measured again, whether or not it is slower: before and since, and which of the rows is believed."""
    before, judges = goals.by_workload(main), judging(main, again)
    rows = []
    for name, result in marked(again, main).items():
        old = before[result.workload]
        slower = [goals.over_better({name: row}).get(name, "-") for row in (result, old)]
        missing = ", ".join(variant.label for variant in lacking(result, old))
        judged_by = "this row" if any(result is judge for judge in judges) else "another row"
        rows.append((name, f"{judged_by}: this one lacks {missing}" if missing else judged_by, *slower))
    values = ", all variants of a round on the same values"
    same = all(result.configuration.get("values") == ALIKE for result in again)
    return (
        "Whether ours is slower is asked of each workload by itself, and answered by its newest row that has ours and "
        f"every baseline that ran before, but for stock graphs where they had taken over {HOPELESS:.0f} times as long "
        f"as no graphs. Measured again since{values if same else ''}:\n\n"
        + table(("workload", "judged by", "ours over the better baseline", "before"), rows, left=2)
    )
