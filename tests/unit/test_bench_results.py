"""The benchmark's numbers: statistics, the schema, comparisons with confidence, goals."""

from __future__ import annotations

import json
import math
import typing

import pytest

from scripts.bench import facts, goals, resources, results
from scripts.bench.compare import compared
from scripts.bench.results import Result, VariantResult
from scripts.bench.stats import Spread, geomean, quantile, ratio
from tests.unit.bench_data import WOBBLE, result, timing


def test_quantiles_interpolate():
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([1.0], 0.99) == 1.0


def test_spread_shows_the_tail():
    spread = Spread.of([1.0] * 98 + [50.0] * 2)
    assert spread.median == 1.0
    assert spread.p99 > 25


def test_paired_ratio_is_surer_than_an_unpaired_one():
    slow_moments = [1.0, 1.0, 3.0, 1.0, 2.0, 1.0, 4.0, 1.0, 1.0]
    half = [value / 2 for value in slow_moments]
    paired, unpaired = ratio(slow_moments, half), ratio(slow_moments, half, paired=False)
    assert paired.low == paired.value == paired.high == 2.0
    assert unpaired.high - unpaired.low > 0.5


def test_a_machine_that_slows_down_on_the_way_does_not_change_a_paired_ratio():
    slower_and_slower = [10.0 * 1.3**number for number in range(9)]
    other = [value * factor for value, factor in zip(slower_and_slower, [1.0, 1.1, 1.0] * 3, strict=True)]
    found = ratio(other, slower_and_slower)
    assert math.isclose(found.value, 1.0)
    assert 1.0 <= found.low <= found.high < 1.11


def test_rounds_of_unequal_number_are_no_pairs():
    """Which of them one of the two lacks is not known."""
    found = ratio([10.0, 20.0, 30.0], [10.0, 20.0])
    assert math.isclose(found.value, 20.0 / 15.0)
    assert found == ratio([10.0, 20.0, 30.0], [10.0, 20.0], paired=False)


def test_geomean_of_a_factor_and_its_inverse_is_one():
    assert math.isclose(geomean([4.0, 0.25]), 1.0)
    assert geomean([]) is None


def test_result_survives_json():
    one = result("A", 100, 80, 50, 45)
    assert results.from_json(json.loads(json.dumps(results.encode(one)))) == one


def test_older_data_without_decisions_is_read():
    data = results.encode(result("A", 100, 80, 50, 45))
    for variant in data["variants"].values():
        del variant["decisions"]
    assert results.from_json(data).variants["ours"].decisions == []


def test_decisions_keep_what_was_expected_beside_what_was_measured():
    from pygraph_inductor.reporting.facts import DecisionFacts, ExpectedFacts, FunctionFacts, VariantFacts

    decision = DecisionFacts("f32[4]", "graph", "cheaper", "measured", plain_host_at_most_us=60.0)
    decision.variants = [VariantFacts("graph", 3, 5.0, 20.0, 20.0, 1.0)]
    decision.expected = [ExpectedFacts("graph", 6.0, 1.5), ExpectedFacts("plain", 16.0, 0.0)]
    [found] = facts.decisions_of([FunctionFacts("inference 0/0", "inference", "", "cpu", decisions=[decision])])
    graph, plain = found.variants
    assert (graph.host_us, graph.expected_host_us, graph.expected_added_us) == (5.0, 6.0, 1.5)
    assert (plain.name, plain.host_us, plain.expected_host_us) == ("plain", None, 16.0)
    assert (found.function, found.chosen, found.plain_host_at_most_us) == ("inference 0/0", "graph", 60.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "schema 99"),
        ({"statuss": "ok"}, "no field statuss"),
        ({"workload": None}, r"Result.workload: expected str"),
        ({"variants": {"ours": {"timing": {"kind": "measured"}}}}, r"Timing lacks .*latency_us"),
    ],
)
def test_wrong_field_is_named(change, message):
    data = {**results.encode(result("A", 100, 80, 50, 45)), **change}
    with pytest.raises(ValueError, match=message):
        results.from_json(data)


def test_results_are_collected_into_one_file_and_read_back(tmp_path):
    both = [result("A", 100, 80, 50, 45), result("B", 10, 12, 9, 8)]
    for one in both:
        results.save(tmp_path / "parts", one)
    results.collect(results.load(tmp_path / "parts"), tmp_path / "all.json")
    assert results.load(tmp_path / "all.json") == both


def test_a_failed_write_leaves_the_old_file(tmp_path):
    results.write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(TypeError):
        results.write_json(tmp_path / "a.json", {"new": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"old": 1}


def test_every_field_is_documented():
    text = (facts.ROOT / "docs" / "benchmarks" / "SCHEMA.md").read_text()
    for kind in (Result, VariantResult, results.Timing, results.Startup, results.Memory, results.Profile,
                 results.Accuracy, results.Graphs, Spread):  # fmt: skip
        for field in typing.get_type_hints(kind):
            assert f"`{field}`" in text, f"{kind.__name__}.{field}"


def changes_of(old: Result, new: Result) -> dict[tuple[str, str], str]:
    return {(change.variant, change.measure): change.verdict for change in compared([old], [new])}


def test_slower_beyond_noise_is_a_regression():
    verdicts = changes_of(result("A", 100, 80, 50, 45), result("A", 100, 80, 60, 45))
    assert verdicts["ours", "time, in flight"] == "worse"
    assert verdicts["ours", "latency"] == "worse"
    assert verdicts["stock", "time, in flight"] == "same"


def test_a_slower_machine_is_no_regression():
    verdicts = changes_of(result("A", 100, 80, 50, 45), result("A", 150, 120, 75, 68))
    assert verdicts["ours", "time, in flight"] == "same"


def test_a_difference_within_noise_is_not_called():
    old, new = result("A", 100, 80, 50, 45), result("A", 100, 80, 50, 45)
    noisy = [50 * (1 + 20 * (factor - 1)) for factor in WOBBLE]
    new.variants["ours"].timing.rounds_throughput_us = noisy
    assert changes_of(old, new)["ours", "time, in flight"] == "unsure"


def test_one_extra_byte_on_the_device_is_a_regression():
    old, new = result("A", 100, 80, 50, 45), result("A", 100, 80, 50, 45)
    new.variants["ours"].profile.copied_bytes["device_to_device"] = 1.0
    assert changes_of(old, new)["ours", "bytes device_to_device"] == "worse"


def test_fewer_kernels_in_graphs_is_a_regression():
    old, new = result("A", 100, 80, 50, 45), result("A", 100, 80, 50, 45)
    new.variants["ours"].profile.kernels_in_graphs = 10.0
    assert changes_of(old, new)["ours", "kernels in graphs"] == "worse"


def test_a_workload_that_stopped_working_is_a_regression():
    verdicts = changes_of(result("A", 100, 80, 50, 45), result("A", 100, 80, 50, 45, status="failed", reason="why"))
    assert verdicts["", "status"] == "worse"


def test_two_commits_are_not_compared_as_one():
    other = result("A", 100, 80, 50, 45, commit={"id": "f" * 40, "sources": "beef", "changed": False})
    with pytest.raises(SystemExit, match="two results of A"):
        compared([result("A", 100, 80, 50, 45), other], [result("A", 100, 80, 50, 45)])


def test_goals_are_computed_whatever_they_are():
    rows = [result("A", 100, 80, 50, 45), result("B", 100, 110, 101, 60)]
    by_name = {goal.what: goal for goal in goals.all_goals(rows)}
    slower = by_name["workloads slower than the better baseline by over 2 %"]
    assert slower.verdict == "yes"
    assert by_name["workloads of the paper that copy extra bytes on the device"].found == "0 copy"
    assert by_name["workloads of the paper that copy extra bytes on the device"].stock == "2 of 2 copy"
    assert by_name["reserved memory over no graphs, steady, geomean"].found.startswith("1.05")
    assert by_name["distance to the floor, inference, geomean"].verdict == "no"


def test_copies_within_graphs_count_and_where_nobody_looked_it_is_said():
    rows = [result("A", 100, 80, 50, 45), result("B", 100, 80, 50, 45)]
    assert goals.no_copies(rows).verdict == "yes"
    rows[1].variants["ours"].profile.copies = 24.0
    goal = goals.no_copies(rows)
    assert (goal.verdict, goal.found) == ("no", "1 copy: B")
    assert resources.copied(rows[1], "ours") == "0 B and 24 in graphs"
    rows[1].variants["inductor"].profile.copies = 24.0
    assert goals.no_copies(rows).verdict == "yes", "the program's own"
    rows[1].variants["ours"].profile.copies = None
    goal = goals.no_copies(rows)
    assert goal.verdict == "unsure" and goal.found == "0 copy outside of graphs; inside nobody looked"
    rows[0].variants["ours"].profile.copied_bytes["device_to_device"] = 1.0
    assert goals.no_copies(rows).verdict == "no"


def test_a_wrong_answer_is_in_no_average():
    good, bad = result("A", 100, 80, 50, 45), result("B", 100, 80, 1, 45)
    bad.variants["ours"].status = "wrong"
    assert goals.over(bad, "ours", "inductor") is None
    assert goals.over(good, "ours", "inductor") == pytest.approx(0.5)


def test_a_slower_workload_misses_the_goal():
    goal = goals.never_slower({"A": result("A", 100, 80, 90, 45)})
    assert goal.verdict == "no"
    assert goal.found.startswith("1 surely, 0 perhaps: A 1.12")


@pytest.mark.parametrize("ours", [90.0, 86.0])
def test_a_workload_that_may_be_slower_leaves_the_goal_unsure(ours):
    """Whichever side of the limit its median is on."""
    may_be = result("A", 100, 80, 90, 45)
    may_be.variants["stock"].timing.rounds_throughput_us = [100.0, 88.0, 86.0, 80.0, 86.0]
    may_be.variants["ours"].timing.rounds_throughput_us = [ours] * 5
    goal = goals.never_slower({"A": may_be, "B": result("B", 100, 80, 50, 45)})
    assert goal.verdict == "unsure"
    assert goal.found.startswith("0 surely, 1 perhaps: A ")


def test_rounds_keep_their_order():
    assert timing(10.0).rounds_throughput_us[3] == pytest.approx(10.1)


def test_nothing_measured_meets_no_goal():
    assert {goal.verdict for goal in goals.all_goals([])} == {"-"}
