"""The benchmark page and plots come from data alone."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path

import pytest

from scripts.bench import choosing, facts, goals, in_flight, model, page, paper, registry, resources, results, startup
from scripts.bench.results import MemoryParts, Startup
from scripts.bench.stats import TIMES
from tests.unit.bench_data import OTHER, OTHER_NAME, compiled_from_nothing, result, variant

GOLDEN = Path(__file__).with_name("golden") / "bench_page.md"
TEMPLATE = (facts.ROOT / "docs" / "benchmarks" / page.TEMPLATE).read_text()


def rows():
    wrong = result("VM", 100, 80, 20, 18, status="wrong", reason="ours: error 0.3 against eager, allowed 0.05")
    wrong.variants["ours"].status, wrong.variants["ours"].reason = "wrong", "error 0.3 against eager, allowed 0.05"
    lost = result("EOS", 100, 80, 50, 45, status="timeout", reason="timeout: no answer within 300 s", variants={})
    floorless = result("XLNET-I", 100, 140, 45, 40)
    floorless.variants["floor"].timing.kind = "kernels"
    floorless.variants["floor"].reason = "not captured: RuntimeError: operation not permitted"
    return [result("TKE", 100, 90, 60, 50), floorless, wrong, lost, result("MTCG-T", 100, 80, 70, 60)]


def test_page_is_what_it_was():
    """BENCH_ACCEPT=1 rewrites the golden page after a change that was meant."""
    text = page.page(TEMPLATE, rows(), pool=False, plots={"speed": Path("plots/speed.svg")})
    if os.environ.get("BENCH_ACCEPT") == "1":
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_rows_of_another_commit_are_marked_and_in_no_average():
    old = result("DLRM", 100, 80, 10, 9, commit=OTHER)
    main, others = choosing.chosen([*rows(), old], pool=False)
    assert [r.workload for r in others] == ["DLRM"]
    assert "DLRM" not in [r.workload for r in main]
    text = page.page(TEMPLATE, [*rows(), old], pool=False, plots={})
    assert "DLRM (ffffffffffff)" in text
    assert "pool" not in page.origin(main, others)


def test_error_of_the_cost_model_is_on_the_page():
    [row, every] = model.rows([result("TKE", 100, 90, 60, 50)])
    factors = [f"{value}{TIMES}" for value in ("0.80", "1.25", "1.50", "1.50")]
    assert row == ("TKE", "1", *factors, "1 of 1", "1 of 1")
    assert every[1:] == row[1:]


def test_expectation_that_is_wrong_about_order_and_bound_is_counted_as_such():
    wrong = result("TKE", 100, 90, 60, 50)
    [decision] = wrong.variants["ours"].decisions
    decision.variants[0].expected_host_us, decision.plain_host_at_most_us = 500.0, 399.0
    both = model.rows([wrong, result("EOS", 100, 90, 60, 50)])
    assert [cells[-2:] for cells in both] == [("0 of 1", "0 of 1"), ("1 of 1", "1 of 1"), ("1 of 2", "1 of 2")]


def test_decisions_that_were_not_measured_say_nothing_about_the_model():
    unmeasured = result("TKE", 100, 90, 60, 50)
    for one in unmeasured.variants["ours"].decisions[0].variants:
        one.host_us = None
    assert model.rows([unmeasured]) == [] and page.model_table([unmeasured]) == model.UNKNOWN


def test_pooling_is_said():
    main, others = choosing.chosen([*rows(), result("DLRM", 100, 80, 10, 9, commit=OTHER)], pool=True)
    assert not others
    assert "pool rows of several commits" in page.origin(main, others)


def test_the_newest_row_of_a_commit_counts():
    newer = result("TKE", 100, 90, 30, 25, finished="2026-02-01T00:00:00+00:00")
    main, _ = choosing.chosen([newer, *rows()], pool=False)
    assert next(r for r in main if r.workload == "TKE") is newer


def test_simulated_rows_are_not_on_the_page():
    simulated = result("A", 1, 1, 1, 1)
    simulated.environment = {**simulated.environment, "device": "sim"}
    assert choosing.chosen([simulated], pool=False) == ([], [])


def test_page_without_data_says_so():
    text = page.page(TEMPLATE, [], pool=False, plots={})
    assert page.NOTHING in text
    assert "{{" not in text


def test_page_made_without_plots_does_not_say_that_there_is_no_data(tmp_path):
    (tmp_path / page.TEMPLATE).write_text(TEMPLATE)
    results.collect(rows(), tmp_path / "data" / "one.json")
    assert page.publish(tmp_path / "data", tmp_path, pool=False, plots=False) == [tmp_path / "README.md"]
    text = (tmp_path / "README.md").read_text()
    assert "made without plots" in text and "no data" not in text


def test_plots_without_matplotlib_leave_the_page_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="--no-plots"):
        page.publish(tmp_path / "data", tmp_path, pool=False, plots=True)
    assert list(tmp_path.iterdir()) == []


def test_publish_writes_page_and_plots(tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib (the bench extra)")
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / page.TEMPLATE).write_text(TEMPLATE)
    results.collect(rows(), folder / "data" / "one.json")
    written = page.publish(folder / "data", folder, pool=False, plots=True)
    assert {path.name for path in written} >= {"README.md", "speed.svg", "floor.svg", "bytes.svg", "memory.svg"}
    assert "![speed](plots/speed.svg)" in (folder / "README.md").read_text()
    first = (folder / "plots" / "speed.svg").read_bytes()
    page.publish(folder / "data", folder, pool=False, plots=True)
    assert (folder / "plots" / "speed.svg").read_bytes() == first


def test_a_run_with_techniques_switched_off_is_beside_the_row_not_in_its_place():
    ordinary = result("DLRM", 100, 80, 50, 45)
    del ordinary.variants["ours-no-transform"]
    off = result("DLRM", 100, 80, 40, 35, finished="2026-02-01T00:00:00+00:00")
    off.variants["ours-no-transform"] = variant(60)
    elsewhere = result("EOS", 100, 80, 40, 35, commit=OTHER)
    elsewhere.variants.pop("ours-no-transform")
    results = [off, ordinary, elsewhere]
    main, _ = choosing.chosen(results, pool=False)
    assert main == [ordinary]
    assert choosing.ablated(results, main) == [off]
    text = page.ablation_table(choosing.marked([off], main), main)
    assert "| DLRM |" in text and "1.50" in text
    assert "`without indirect` is `engine = 'patch'`" in text and page.switched_off() not in page.ablation_table(
        {}, main
    )
    published = {"workloads": {"DLRM": {"transform_over_stock": 2.0, "stock_over_none": 1.5}}}
    table = paper.workloads_table(main, [off], published)
    assert f"2.00{TIMES} | 1.50{TIMES} |" in table, "60 without, 40 with"
    assert f"1.50{TIMES} | 1.25{TIMES} |" in table, "100 and 80, of the ordinary run"
    assert f"2.00{TIMES} | not measured |" in paper.workloads_table(main, [], published)
    assert choosing.chosen([off], pool=False)[0] == [off], "where there is nothing else, it is the row"


@pytest.mark.parametrize(
    ("slots", "measured", "said"),
    [
        ({"patch": 3, "static": 2}, False, True),
        ({"patch": 3, "copy": 1}, False, False),
        ({"indirect": 3}, False, False),
        (None, False, False),
        ({"patch": 3}, True, False),
    ],
)
def test_page_says_where_tables_and_copies_serve_nothing_that_could_be_switched_off(slots, measured, said):
    ordinary, off = result("DLRM", 100, 80, 50, 45), result("DLRM", 100, 80, 40, 35)
    graphs = ordinary.variants["ours"].graphs
    assert graphs is not None
    graphs.slots = slots
    if slots is None:
        del ordinary.variants["ours"]
    if measured:
        off.variants["ours-no-indirect"] = variant(60)
    text = page.ablation_table({"DLRM (a commit)": off}, [ordinary])
    assert ("Not measured where no slot has either: DLRM (a commit)." in text) is said


def test_a_run_with_techniques_switched_off_at_another_commit_is_marked_with_it():
    ordinary, other = result("DLRM", 100, 80, 50, 45), result("EOS", 100, 80, 50, 45)
    for one in (ordinary, other):
        del one.variants["ours-no-transform"]
    older = result("DLRM", 100, 80, 40, 35, commit=OTHER)
    older.variants["ours-no-transform"] = variant(60)
    results = [ordinary, other, older]
    main, others = choosing.chosen(results, pool=False)
    assert (main, others) == ([ordinary, other], [])
    assert choosing.ablated(results, main) == [older]
    assert list(choosing.marked([older, ordinary], main)) == [f"DLRM ({OTHER_NAME})", "DLRM"]
    assert OTHER_NAME in page.origin(main, others, beside_them=[older])
    assert OTHER_NAME not in page.origin(main, others, beside_them=[ordinary])
    published = {"workloads": {"DLRM": {"transform_over_stock": 2.0}}}
    assert f"1.50{TIMES} ({OTHER_NAME}) |" in paper.workloads_table(main, [older], published)
    own = result("DLRM", 100, 80, 40, 35, finished="2026-01-01T00:00:00+00:00")
    assert choosing.ablated([*results, own], main) == [own], "the row's own commit first"


def test_time_in_flight_of_old_rows_is_explained():
    old = result("DLRM", 100, 80, 50, 45, configuration={"size": "full", "knobs": {}})
    assert "first launch" in page.origin([old], [])
    assert "first launch" not in page.origin(rows(), [])


def test_the_template_names_no_workload():
    """What is true of one is for the data to say. Commands at the end may have names for an example."""
    words = set(re.findall(r"[\w-]+", TEMPLATE.split("## Repeat it")[0]))
    assert not words & set(registry.all_workloads())


def test_values_of_rounds_are_said_to_be_those_that_the_rows_were_measured_with():
    own = result("TKE", 100, 90, 60, 50, configuration={"size": "full", "throughput": "steady"})
    same = result("TKE", 100, 90, 60, 50)
    assert page.values_of_rounds({"TKE": same}) == "All variants of a round get the same values."
    assert page.values_of_rounds({"TKE": own}).startswith("Each variant of a round drew values of its own;")
    assert page.values_of_rounds({"TKE": own, "A": same, "B": same}).endswith("where each drew its own: TKE.")
    mostly = page.values_of_rounds({"TKE": own, "A": own, "B": own, "TKE (new)": same})
    assert mostly.startswith("Each variant of a round drew values of its own, except where")
    assert mostly.endswith("the same ones: TKE (new).")


def test_kernels_outside_of_graphs_are_counted_by_workload():
    all_in, two, more, unknown = (result(name, 100, 90, 60, 50) for name in ("TKE", "BERT", "MOE", "VM"))
    for row, outside in ((all_in, 0), (two, 2), (more, 1000)):
        row.variants["ours"].profile.kernels_compiled = 20.0 + outside
    text = resources.outside_of_graphs([more, all_in, unknown, two])
    assert text == "Kernels of compiled code outside of graphs: none in 1 of 3 workloads; 2 in BERT; 1,000 in MOE."
    assert "not measured" in resources.outside_of_graphs([unknown])


def test_small_differences_have_the_spread_of_rounds_beside_them():
    calm, restless = result("TKE", 100, 90, 60, 50), result("WIDE", 100, 90, 60, 50)
    spread = restless.variants["ours"].timing.throughput_us
    restless.variants["ours"].timing.throughput_us = dataclasses.replace(spread, median=60, low=54, high=66)
    assert "and 20.0 % in WIDE" in page.unrest({"TKE": calm, "WIDE": restless})
    assert page.unrest({}) == ""


def test_averages_are_over_the_same_workloads_in_every_column():
    both, other = result("TKE", 100, 50, 25, 20), result("EOS", 100, 80, 20, 10)
    failed = result("TEFD", 100, 50, 10, 5)
    failed.variants["stock"] = variant(1)
    failed.variants["stock"].timing, failed.variants["stock"].status = None, "failed"
    text = page.speed_table([both, other, failed], [])
    [mean, middle] = text.splitlines()[-2:]
    assert mean.startswith("| **geomean of 2** |") and middle.startswith("| **median of 2** |")
    assert [cell.strip() for cell in mean.split("|")[7:10]] == [f"{v}{TIMES}" for v in ("1.58", "4.47", "2.83")]
    row = next(line for line in text.splitlines() if line.startswith("| TEFD |")).split("|")
    assert row[7].strip() == "failed" and row[8].strip().startswith("10.00") and row[9].strip() == "-"


def test_what_lacks_memory_or_start_up_is_listed_with_its_variant():
    whole, cut, failed = (result(name, 100, 80, 50, 45) for name in ("TKE", "EOS", "VM"))
    cut.variants["ours"].memory = None
    failed.variants["stock"].memory = failed.variants["stock"].startup = None
    failed.variants["stock"].status = "failed"
    text = resources.unmeasured([whole, cut, failed])
    assert "memory: EOS (ours)" in text and "memory and start-up: VM (stock graphs, which failed)" in text
    completed = result("ALNET", 100, 80, 50, 45)
    for one in completed.variants.values():
        one.startup = None
    assert "start-up: ALNET." in resources.unmeasured([whole, completed])
    assert "TKE" not in text and resources.unmeasured([whole]) == "Every variant has both."


def test_closeness_to_eager_that_proves_nothing_is_said():
    far = result("RN50-T", 100, 80, 50, 45)
    far.variants["ours"].accuracy.tolerance = 4.0
    far.variants["ours"].accuracy.against_plain = 0.5
    assert "RN50-T (5.0e-01)" in page.far_from_eager([result("TKE", 100, 80, 50, 45), far])
    assert page.far_from_eager([result("TKE", 100, 80, 50, 45)]) == ""


def test_every_workload_that_is_slower_is_named():
    slow = [result("TKE", 100, 80, 100, 45), result("EOS", 100, 80, 90, 45), result("VM", 100, 80, 50, 45)]
    goal = goals.never_slower(goals.by_workload(slow))
    assert "2 surely, 0 perhaps" in goal.found and "TKE 1.25" in goal.found and "EOS 1.12" in goal.found
    assert "VM" not in goal.found


def test_start_up_from_nothing_is_beside_the_row_not_in_its_place():
    ordinary = result("DLRM", 100, 80, 50, 45)
    for name in ("stock", "ours"):
        ordinary.variants[name].startup = Startup(1.0, 2.0, "shared")
    cold, elsewhere = compiled_from_nothing("DLRM", 18.0), compiled_from_nothing("DLRM", 6.0, commit=OTHER)
    main, others = choosing.chosen([cold, ordinary, elsewhere], pool=False)
    assert (main, others) == ([ordinary], [])
    assert choosing.compiled_from_nothing([cold, ordinary, elsewhere], main) == [cold]
    assert choosing.compiled_from_nothing([ordinary, elsewhere], main) == [elsewhere], "marked, where there is no other"
    text = startup.startup_table({"DLRM": cold})
    assert f"| DLRM | cold | 10.0 s | 10.0 s | 15.0 s | 2.00 s | 2.00 s | 3.00 s | 1.50{TIMES} |" in text
    shared, nothing = goals.all_goals(main, [cold])[-2:]
    assert (shared.found, shared.verdict, "shared cache" in shared.what) == (f"1.00{TIMES}", "yes", True)
    assert (nothing.found, nothing.verdict, "nothing compiled" in nothing.what) == (f"1.50{TIMES}", "no", True)
    assert goals.all_goals([cold])[-2].verdict == "-", "it did not start from a shared cache"


def test_starts_are_averaged_by_what_they_found_in_the_cache():
    shared, cold, cut, unknown = (result(name, 100, 80, 50, 45) for name in ("TKE", "EOS", "VM", "MOE"))
    for name, seconds in (("inductor", 40.0), ("stock", 10.0), ("ours", 11.0)):
        shared.variants[name].startup = Startup(seconds, seconds + 1.0, "shared")
    cut.variants["stock"].startup = None
    for one in unknown.variants.values():
        one.startup = None
    lines = startup.startup_table({row.workload: row for row in (shared, cold, cut, unknown)}).splitlines()
    assert lines[2] == f"| TKE | shared | 40.0 s | 10.0 s | 11.0 s | 1.00 s | 1.00 s | 1.00 s | 1.09{TIMES} |"
    assert lines[4] == "| VM | cold | 10.0 s | - | 10.0 s | 2.00 s | - | 2.00 s | - |"
    assert [line.split(" | ")[:2] for line in lines[5:]] == [
        ["| **geomean of 1**", "shared"],
        ["| **geomean of 1**", "cold"],
    ]
    assert startup.startup_table({"MOE": unknown}) == "Not measured in these rows."


def test_median_and_quartiles_of_every_variant_are_shown():
    row = result("TKE", 1000, 800, 20, 18)
    row.variants["stock"].status, row.variants["floor"].timing.kind = "wrong", "kernels"
    del row.variants["eager"]
    [line] = in_flight.quartiles_table({"TKE": row}).splitlines()[2:]
    assert line == "| TKE | 10 | - | 1,000 [998, 1,002] | wrong | 20.0 [20.0, 20.0] | 18.0 |"


def test_decisions_are_counted_by_what_was_chosen():
    ours = result("TKE", 100, 90, 60, 50).variants["ours"]
    [graph] = ours.decisions
    ours.decisions += [dataclasses.replace(graph, chosen=chosen) for chosen in ("plain", "graph", "")]
    assert resources.decided(ours) == "2 graph / 1 plain / 1 undecided"
    assert resources.decided(variant(60)) == "-"


def test_what_memory_is_for():
    row, without = result("BERT", 100, 80, 50, 45), result("DLRM", 100, 80, 50, 45)
    for name, parts in (
        ("inductor", MemoryParts(0, 30_000_000, 0, 10_000_000, 0)),
        ("stock", MemoryParts(50_000_000, 30_000_000, 30_000_000, 10_000_000, 4_000_000)),
        ("ours", MemoryParts(20_000_000, 30_000_000, 0, 10_000_000, 0)),
    ):
        row.variants[name].memory.parts = parts
    assert resources.parts_table([without]) == "Not measured in these rows."
    head, _, line, total = resources.parts_table([row, without]).splitlines()
    cells = ["BERT", "104.9 MB", "125.8 MB", "110.1 MB", "50.0 MB", "20.0 MB", "30.0 MB", "30.0 MB (30.0 MB)"]
    cells += ["30.0 MB", "10.0 MB", "10.0 MB (4.0 MB)", "10.0 MB"]
    assert line == f"| {' | '.join(cells)} |"
    assert head.count("|") == line.count("|")
    assert total == line.replace("BERT", "**all**")
    both = resources.parts_table([row, row]).splitlines()[-1]
    assert "60.0 MB (60.0 MB)" in both and "20.0 MB (8.0 MB)" in both
