"""The paper's figures beside ours: none is left out, and ours are what they are called."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator

from scripts.bench import paper
from scripts.bench.stats import TIMES
from tests.unit.bench_data import OTHER, OTHER_NAME, compiled_from_nothing, result, variant


def changed(figure):
    """Another value of a figure, or of each of its parts."""
    return [2 * part + 1 for part in figure] if isinstance(figure, list) else 2 * figure + 1


def test_every_published_figure_has_a_row():
    published = paper.published()
    main = [result(name, 100, 80, 50, 45) for name in published["workloads"]]
    measured = paper.Measured.of(main, [], [])
    shown = {
        "overall": lambda figures: paper.overall_table(measured, figures),
        "workloads": lambda figures: paper.workloads_table(main, [], figures),
        "tensor_parallel": lambda figures: paper.differences(main, figures),
    }
    assert published.keys() == {"title", "setup", "second_hand", *shown}
    for part, text in shown.items():
        before = text(published)
        for path in paths(published[part]):
            after = copy.deepcopy(published)
            *way, last = [part, *path]
            inside = functools.reduce(operator.getitem, way, after)
            inside[last] = changed(inside[last])
            assert text(after) != before, f"{part}: {path} is not shown"


def paths(figures, above=()):
    for key, value in figures.items():
        yield from paths(value, (*above, key)) if isinstance(value, dict) else [(*above, key)]


def overall(measured):
    """The cells of the paper's figures over all workloads: ours, and over how many workloads."""
    lines = paper.overall_table(measured, paper.published()).splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return dict(zip(paper.published()["overall"], [tuple(row[3:5]) for row in cells], strict=True))


def test_graphs_kept_are_decisions_for_one_of_all_that_were_made():
    kept, plain, wrong, foreign = (result(name, 100, 80, 50, 45) for name in ("TKE", "VM", "EOS", "MLP8"))
    ours = plain.variants["ours"]
    origins = (("plain", "predicted"), ("copy", "measured"), ("", ""))
    ours.decisions = [dataclasses.replace(ours.decisions[0], chosen=name, origin=why) for name, why in origins]
    wrong.variants["ours"].status = "wrong"
    foreign.facts["paper"] = False
    measured = paper.Measured.of([kept, plain, wrong, foreign], [], [])
    assert overall(measured)["graphs_kept"] == ("2 of 3, 1 undecided", "2")
    assert overall(paper.Measured.of([wrong], [], []))["graphs_kept"] == ("-", "0")


def test_figures_of_runs_of_their_own_are_marked_with_their_commit():
    main = [result("TKE", 100, 80, 40, 35), result("EOS", 100, 80, 40, 35)]
    off = result("TKE", 100, 80, 40, 35, commit=OTHER)
    off.variants["ours-no-addresses"] = variant(60)
    cold = [compiled_from_nothing("TKE", 18.0, commit=OTHER), compiled_from_nothing("EOS", 15.0, commit=OTHER)]
    found = overall(paper.Measured.of(main, [off], cold))
    assert found["addresses_gained"] == (f"1 of 1 ({OTHER_NAME})", "1")
    assert found["compile_ratio"] == (f"1.38{TIMES} ({OTHER_NAME})", "2")
    assert found["compile_ratio_worst"] == (f"1.50{TIMES} (TKE) ({OTHER_NAME})", "2")


def test_what_graphs_gain_is_compared_where_both_are_known():
    both, alone = result("TKE", 100, 80, 50, 45), result("VM", 100, 80, 10, 9)
    alone.variants["stock"].timing = None
    found = overall(paper.Measured.of([both, alone], [], []))
    assert found["benefit_over_stock"] == (f"4.00{TIMES}", "1"), "100 over 50, less 1, by 100 over 80, less 1"
    worse = result("TKE", 100, 120, 50, 45)
    assert overall(paper.Measured.of([worse], [], []))["benefit_over_stock"][0] == "-", "stock graphs gain nothing"


def test_kernels_out_of_reach_of_graphs_are_told_apart():
    found = result("VM", 100, 80, 50, 45)
    profile = found.variants["ours"].profile
    profile.kernels, profile.kernels_in_graphs = 100.0, 30.0
    shares = {None: "30.00 %", 100.0: "30.00 %", 60.0: "30.00 % (50.00 % of compiled code's)"}
    for compiled, expected in shares.items():
        profile.kernels_compiled = compiled
        table = paper.workloads_table([found], [], {"workloads": {"VM": {"in_graphs_ours": 71.01}}})
        assert f"| 71.01 % | {expected} |" in table
