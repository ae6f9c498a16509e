"""Workloads measured again at a later commit: seen, averaged nowhere, and believed where that takes nothing away."""

from __future__ import annotations

import pytest

from scripts.bench import again, choosing, facts, page, plots
from scripts.bench.stats import TIMES
from tests.unit.bench_data import OTHER, OTHER_NAME, compiled_from_nothing, result, variant

TEMPLATE = (facts.ROOT / "docs" / "benchmarks" / page.TEMPLATE).read_text()
LATER = "2026-02-01T00:00:00+00:00"
THIRD = {"id": "e" * 40, "sources": "cafe", "changed": False}
OWN_VALUES = {"size": "full", "throughput": "steady", "knobs": {}}
SLOWER = "workloads slower than the better baseline by over 2 %"


def ordinary(name, *microseconds, without=(), **changes):
    """A row of a run in which no technique was switched off."""
    row = result(name, *microseconds, **changes)
    for gone in ("ours-no-transform", *without):
        row.variants.pop(gone, None)
    return row


def newer(name, *microseconds, **changes):
    return ordinary(name, *microseconds, **{"commit": OTHER, "finished": LATER, **changes})


def unsure(row):
    """The same row, with rounds that leave open whether ours is slower."""
    row.variants["ours"].timing.rounds_throughput_us = [70.0, 95.0, 70.0, 95.0, 79.0, 70.0, 95.0, 70.0, 95.0, 81.0]
    return row


def rows():
    """Twelve workloads of one commit, of which one is left open."""
    fine = [ordinary(f"FINE{n}", 100, 80, 50, 45) for n in range(11)]
    return [*fine, unsure(ordinary("MOE", 100, 80, 80, 45))]


def whole(results, pool=False):
    return page.page(TEMPLATE, results, pool=pool, plots={})


def lines_of(text, start):
    return [line for line in text.splitlines() if line.startswith(start)]


def test_newer_row_of_another_commit_is_shown_marked_in_every_table_of_times():
    text = whole([*rows(), newer("MOE", 100, 80, 40, 45)])
    shown = lines_of(text, f"| MOE ({OTHER_NAME}) |")
    assert len(shown) == 4, "below the goals, speed, quartiles, single calls"
    speed = text.split("## Speed")[1].split("###")[0].splitlines()
    places = [n for n, line in enumerate(speed) if line.startswith(("| MOE |", f"| MOE ({OTHER_NAME})", "| **geomean"))]
    assert len(places) == 3 and speed[places[1]].startswith(f"| MOE ({OTHER_NAME})"), "after the rows, before averages"
    assert "1 row marked with its commit is newer, of workloads measured again, and in no average." in text


def test_newer_row_changes_no_average():
    before, after = whole(rows()), whole([*rows(), newer("MOE", 100, 10, 1, 1)])

    def averages(text):
        goal = [line for line in lines_of(text, "|") if "geomean" in line or "median of" in line]
        return goal + lines_of(text, "| speed-up") + lines_of(text, "| **")

    assert averages(before) == averages(after)
    assert whole([*rows(), newer("MOE", 100, 80, 40, 45)], pool=True).count(f"| MOE ({OTHER_NAME}) |") == 4


def test_newer_row_says_whether_ours_is_slower():
    assert f"| {SLOWER} | 0 | 0 surely, 1 perhaps: MOE 1.00" in whole(rows())
    text = whole([*rows(), newer("MOE", 100, 80, 40, 45)])
    assert f"| {SLOWER} | 0 | 0 surely, 0 perhaps | - | yes | 12 of 12 |" in text
    assert "Measured again since, all variants of a round on the same values:" in text
    [line] = [line for line in lines_of(text, f"| MOE ({OTHER_NAME}) |") if "| this row |" in line]
    assert f"| this row | 0.50{TIMES} [0.50, 0.50] | 1.00{TIMES} [" in line, "that it was in doubt is still to be seen"


def test_newer_row_that_is_slower_is_named_with_its_commit():
    text = whole([*rows(), newer("FINE1", 100, 80, 90, 45)])
    assert f"1 surely, 1 perhaps: FINE1 ({OTHER_NAME}) 1.12{TIMES} [1.12, 1.12], MOE 1.00{TIMES}" in text


def test_nothing_is_said_of_measuring_again_where_nothing_was():
    assert "easured again" not in whole(rows())


def test_values_are_called_the_same_only_where_they_were():
    text = whole([*rows(), newer("MOE", 100, 80, 40, 45, configuration=OWN_VALUES)])
    assert "Measured again since:" in text and f"where each drew its own: MOE ({OTHER_NAME})." in text


@pytest.mark.parametrize("lost", ["ours", "inductor", "stock"])
@pytest.mark.parametrize("how", ["missing", "failed", "wrong"])
def test_newer_row_without_what_the_verdict_takes_is_shown_but_not_believed(lost, how):
    row = newer("MOE", 100, 80, 40, 45)
    if how == "missing":
        del row.variants[lost]
    else:
        row.variants[lost].status = how
    if how == "failed":
        row.variants[lost].timing = None
    [older] = [r for r in rows() if r.workload == "MOE"]
    assert again.judging([older], [row]) == [older]
    text = whole([*rows(), row])
    assert f"| {SLOWER} | 0 | 0 surely, 1 perhaps: MOE 1.00" in text
    label = {"ours": "ours", "inductor": "no graphs", "stock": "stock graphs"}[lost]
    [line] = [line for line in lines_of(text, f"| MOE ({OTHER_NAME}) |") if "another row" in line]
    assert f"| another row: this one lacks {label} |" in line


def test_baseline_that_failed_before_need_not_be_tried_again():
    """Its failure is still listed, of the row that has it."""
    older = unsure(ordinary("VM", 80, 80, 80, 45))
    older.variants["stock"].timing, older.variants["stock"].status = None, "failed"
    row = newer("VM", 100, 80, 90, 45, without=("stock",))
    assert again.judging([older], [row]) == [row]
    text = whole([*rows(), older, row])
    assert "1 perhaps: MOE" in text and "| VM | stock graphs | failed |" in text


@pytest.mark.parametrize(("stock", "believed"), [(310, True), (290, False)])
def test_stock_graphs_that_took_several_times_as_long_before_need_not_be_tried_again(stock, believed):
    older = newer("VM", 100, stock, 110, 45, finished="2026-01-02T00:00:00+00:00")
    row = newer("VM", 100, 80, 90, 45, without=("stock",))
    main = unsure(ordinary("VM", 80, 80, 80, 45))
    main.variants["stock"].timing, main.variants["stock"].status = None, "failed"
    assert again.judging([main], [older, row]) == [row if believed else older]


def test_failure_of_a_newer_row_is_listed_with_its_commit():
    row = newer("MOE", 100, 80, 40, 45, status="timeout", reason="timeout: no answer within 300 s", variants={})
    text = whole([*rows(), row])
    assert f"| MOE ({OTHER_NAME}) |  | timeout |" in text
    assert "1 perhaps: MOE 1.00" in text and "another row: this one lacks ours, no graphs, stock graphs |" in text


def test_newest_row_with_all_it_takes_is_believed():
    first = newer("MOE", 100, 80, 40, 45)
    second = newer("MOE", 100, 80, 60, 45, commit=THIRD, finished="2026-03-01T00:00:00+00:00")
    [older] = [r for r in rows() if r.workload == "MOE"]
    assert again.judging([older], [second, first]) == [second]
    del second.variants["stock"]
    assert again.judging([older], [second, first]) == [first]
    table = again.again_table([older], [first, second])
    assert table.count("| this row |") == 1 and table.count("| another row: this one lacks stock graphs |") == 1


def test_what_is_no_repetition_is_not_taken_for_one():
    main = rows()
    off = newer("MOE", 100, 80, 40, 45, without=("stock",))
    off.variants["ours-no-transform"] = variant(60)
    lost = newer("MOE", 100, 80, 40, 45, variants={})
    lost.configuration = {**lost.configuration, "variants": ["eager", "inductor", "ours", "ours-no-transform"]}
    knobs = newer("MOE", 100, 80, 40, 45)
    knobs.configuration = {**knobs.configuration, "knobs": {"PYGRAPH_ENGINE": "indirect"}}
    machine = newer("MOE", 100, 80, 40, 45)
    machine.environment = {**machine.environment, "gpu": "Another GPU"}
    simulated = newer("MOE", 100, 80, 40, 45)
    simulated.environment = {**simulated.environment, "device": "sim"}
    older = newer("MOE", 100, 80, 40, 45, finished="2025-12-01T00:00:00+00:00")
    cold = compiled_from_nothing("MOE", 18.0, commit=OTHER)
    for row in (off, lost, knobs, machine, simulated, older, cold, newer("ELSE", 100, 80, 40, 45)):
        assert again.measured_again([*main, row], main) == []
    good = newer("MOE", 100, 80, 40, 45)
    assert again.measured_again([*main, good, off, lost, knobs], main) == [good]


def test_rows_that_the_commit_lacks_are_called_older_only_if_they_are():
    main = rows()
    old = ordinary("ELSE", 100, 80, 40, 45, commit=OTHER, finished="2025-12-01T00:00:00+00:00")
    assert "1 row marked with its commit is older and in no average." in page.origin(main, [old])
    new = newer("ELSE2", 100, 80, 40, 45)
    assert "1 row marked with its commit is in no average." in page.origin(main, [new])
    both = page.origin(main, [old], [newer("MOE", 100, 80, 40, 45), newer("FINE1", 100, 80, 40, 45)])
    assert "1 row marked with its commit is older and in no average." in both
    assert "2 rows marked with their commit are newer, of workloads measured again, and in no average." in both


def switched_off(name, commit, finished):
    row = ordinary(name, 100, 80, 40, 35, without=("stock",), commit=commit, finished=finished)
    row.variants["ours-no-transform"] = variant(60)
    return row


def test_runs_with_techniques_switched_off_of_several_commits_are_beside_each_other():
    main = rows()
    off = [switched_off(f"FINE{n}", OTHER, "2025-12-01T00:00:00+00:00") for n in range(4)]
    off += [switched_off(f"FINE{n}", THIRD, LATER) for n in range(3, 8)]
    text = whole([*main, *off])
    section = text.split("## Techniques switched off")[1].split("## Bytes")[0]
    commits = [OTHER_NAME] * 3 + ["e" * 12] * 5
    for n, commit in enumerate(commits):
        assert len(lines_of(section, f"| FINE{n} ({commit}) |")) == 1, "one row each, the newest"
    assert len(lines_of(section, "| FINE")) == 8
    assert f"are of eeeeeeeeeeee or {OTHER_NAME} where marked" in text
    assert "easured again" not in text and text.split("## Speed")[1].split("###")[0].count("| FINE7 ") == 1


def test_plot_of_techniques_switched_off_has_the_rows_of_every_commit():
    pytest.importorskip("matplotlib", reason="plots need matplotlib (the bench extra)")
    off = [switched_off("FINE1", OTHER, LATER), switched_off("FINE2", THIRD, LATER)]
    figure = plots.ablation(choosing.ablated([*rows(), *off], rows()))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["FINE1", "FINE2"]


def test_run_with_techniques_switched_off_does_not_hide_an_older_row_of_what_the_commit_lacks():
    old = ordinary("ELSE", 100, 80, 40, 45, commit=OTHER, finished="2025-12-01T00:00:00+00:00")
    off = switched_off("ELSE", THIRD, LATER)
    main, others = choosing.chosen([*rows(), old, off], pool=False)
    assert others == [old]
    assert choosing.ablated([*rows(), old, off], [*main, *others]) == [off]
    assert "| ELSE (eeeeeeeeeeee) |" in whole([*rows(), old, off]).split("## Techniques switched off")[1]
