"""Which of all results the page averages, and which it shows beside those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from scripts.bench import goals
from scripts.bench.measure import STEADY
from scripts.bench.results import Result, commit_name
from scripts.bench.variants import ABLATIONS


def chosen(results: Sequence[Result], pool: bool) -> tuple[list[Result], list[Result]]:
    """The rows that are averaged and shown, and rows of workloads that they lack, of other commits, only shown.

    One row a workload: the newest, without techniques switched off if there is one. Without `pool`, averages are over
    the commit that has most rows (then the newest).
    """

    def counts_less(result: Result) -> tuple[bool, str]:
        return not switches_off(result), result.finished

    newest: dict[tuple[str, str], Result] = {}
    for result in sorted(filter(was_timed, results), key=counts_less):
        newest[(commit_name(result), result.workload)] = result
    rows = list(newest.values())
    main = most_common(rows)
    seen: dict[str, Result] = {result.workload: result for result in rows if commit_name(result) == main}
    others: dict[str, Result] = {}
    for result in sorted(rows, key=counts_less):
        if result.workload not in seen:
            others[result.workload] = result
    if pool:
        return order([*seen.values(), *others.values()]), []
    return order(seen.values()), order(others.values())


def was_timed(result: Result) -> bool:
    """Whether the run was one that times, on a device; whether there is a time is another question."""
    return result.environment.get("device") == "cuda" and result.configuration.get("throughput", STEADY) is not None


def switches_off(result: Result) -> bool:
    """Whether the run was one with techniques switched off, also if it failed before it came to that."""
    meant = result.configuration.get("variants", ())
    return has_ablation(result) or any(variant.name in meant for variant in ABLATIONS)


def has_ablation(result: Result) -> bool:
    return any(variant.name in result.variants for variant in ABLATIONS)


def ablated(results: Sequence[Result], shown: Sequence[Result]) -> list[Result]:
    """Rows in which techniques were switched off, in runs of their own."""
    return beside(shown, [result for result in results if has_ablation(result)])


def compiled_from_nothing(results: Sequence[Result], main: Sequence[Result]) -> list[Result]:
    """Rows in which stock graphs and ours each compiled with an empty cache. All of one commit: they are averaged."""
    rows = beside(main, [result for result in results if goals.cold_startup_ratio(result)])
    most = most_common(rows)
    return [result for result in rows if commit_name(result) == most]


def most_common(rows: Sequence[Result]) -> str | None:
    """The commit of most rows; of several such the one with the newest."""
    by_commit = Counter(map(commit_name, rows))
    latest = {name: max(r.finished for r in rows if commit_name(r) == name) for name in by_commit}
    return max(by_commit, key=lambda name: (by_commit[name], latest[name]), default=None)


def beside(shown: Sequence[Result], results: Sequence[Result]) -> list[Result]:
    """For each workload of the page's rows, one of these results: the row's commit's, else the newest."""
    own = {(commit_name(result), result.workload) for result in shown}
    names = {result.workload for result in shown}
    rows = sorted(results, key=lambda result: ((commit_name(result), result.workload) in own, result.finished))
    return order({result.workload: result for result in rows if result.workload in names}.values())


def marked(rows: Iterable[Result], main: Sequence[Result]) -> dict[str, Result]:
    """Rows by their workload's name, with the commit if the page's averages are over a row of another one."""
    own = {(commit_name(row), row.workload) for row in main}
    return {r.workload if (commit_name(r), r.workload) in own else f"{r.workload} ({commit_name(r)})": r for r in rows}


def order(results: Iterable[Result]) -> list[Result]:
    return sorted(results, key=lambda result: (not result.facts.get("paper"), result.workload))
