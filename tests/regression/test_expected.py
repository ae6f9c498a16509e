"""Simulated workloads do at least as well as the checked-in expectations: graphs, cuts, kernels, slots, Python calls.

`make bench DEVICE=sim` holds every workload to its expectation; these stand for them in `make test`, some of them also
with tables.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from pygraph_inductor import config
from pygraph_inductor.recording import capture_pair
from pygraph_inductor.seams.table import MINORS
from scripts.bench import facts, regression
from scripts.bench.registry import all_workloads
from scripts.bench.results import Graphs, VariantResult, save, write_json
from scripts.bench.variants import OURS, TABLES
from tests.launching import needs_launcher
from tests.simulated.hand_written import HandWritten, check
from tests.unit.bench_data import result

INSTALLED = regression.installed()


@needs_launcher("the expectations are of replays that it answers")
@pytest.mark.skipif(INSTALLED not in MINORS, reason=f"torch {INSTALLED} is none of {', '.join(MINORS)}")
@pytest.mark.parametrize("name", regression.TESTED)
def test_nothing_got_worse(name):
    expected = regression.expected(INSTALLED)
    assert name in expected[OURS.name], missing(INSTALLED, name)
    with config.patch(engine="auto"):  # the variant with tables asks for them itself
        found = regression.simulated(all_workloads()[name])
    assert set(found) == {OURS.name} | ({TABLES.name} if name in regression.TABLED else set())
    for variant, counts in found.items():
        assert regression.worse(counts, expected[variant][name]) == [], variant


@pytest.mark.parametrize("minor", MINORS)
def test_every_supported_torch_has_expectations(minor):
    """Complete ones, on any torch: the test above looks at one file only."""
    expected = regression.expected(minor)
    absent = {name for name in regression.TESTED if name not in expected[OURS.name]}
    absent |= {name for name in regression.TABLED if name not in expected[TABLES.name]}
    assert not absent, missing(minor, *sorted(absent))
    assert expected.keys() == {OURS.name, TABLES.name}
    for held in expected.values():
        for name, counts in held.items():
            assert name in all_workloads()
            assert counts.keys() == set(regression.KEYS)


@pytest.mark.parametrize("minor", MINORS)
def test_tables_are_used_where_they_are_asked_for(minor):
    """A refresh after tables broke would otherwise expect of nobody to use them."""
    for name, counts in regression.expected(minor)[TABLES.name].items():
        assert counts["twins"] and counts["slots"]["indirect"], name


def missing(minor: str, *names: str) -> str:
    listed = " ".join(names)
    return f"{listed}: not in {regression.path(minor)}; with torch {minor}, `python -m scripts.bench expect {listed}`"


GOOD: dict[str, Any] = {
    "functions": 2, "replayed": 2, "recordings": 2, "kernels_inside": 20, "slots": {"indirect": 5, "copy": 1},
    "bindings": 9, "copies_inside": 2, "updates": 10.0, "staged": 0.0, "python_calls": 100, "cuts": ["a reason"],
    "twins": 4, "kernels_in_graphs": 20, "kernels_outside": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("functions", 3),
        ("replayed", 1),
        ("recordings", 3),
        ("kernels_inside", 19),
        ("slots", {"indirect": 4, "copy": 2}),
        ("slots", {"patch": 5, "copy": 1}),  # the table is used no more
        ("slots", {"indirect": 5}),  # nobody can tell from here whether that is better
        ("twins", 3),
        ("kernels_in_graphs", 19),
        ("kernels_outside", 4),
        ("bindings", 10),
        ("copies_inside", 3),
        ("updates", 13.0),
        ("staged", 1.0),
        ("python_calls", 111),
        ("cuts", ["a reason", "another"]),
    ],
)
def test_each_count_can_get_worse(key, value):
    found = copy.deepcopy(GOOD)
    found[key] = value
    assert len(regression.worse(found, GOOD)) == 1


def test_better_is_no_complaint():
    better = {**copy.deepcopy(GOOD), "python_calls": 10, "kernels_inside": 25, "kernels_outside": 0, "cuts": []}
    assert regression.worse(better, GOOD) == []


def test_a_copy_at_the_end_of_a_graph_is_worse(monkeypatch):
    """Of an output that an operator allocates; in a larger graph than this, all other counts would allow it."""

    def counted() -> dict[str, Any]:
        function = HandWritten(lambda namespace, x: list(torch.ops.aten.sort.default(x)))
        check(function, lambda: (torch.randn(8, 8),))
        unlaunched = {"python_calls": 0, "kernels_in_graphs": 0, "kernels_outside": 0}
        return {**regression.counts(facts.graphs_of([function.log])), **unlaunched}

    without = counted()
    monkeypatch.setattr(capture_pair, "in_place", lambda *arguments: None)
    assert "copies_inside: 2, expected 0, allowed 0" in regression.worse(counted(), without)


def test_what_a_run_did_not_count_is_not_taken_for_good(tmp_path, monkeypatch):
    """Neither compared nor expected: a result file that was written before copies were counted."""
    old = result("MLP8", 100, 80, 50, 45)
    ours = old.variants["ours"].graphs
    assert ours is not None and ours.copies_inside is None
    ours.python_calls, ours.twins, ours.kernels_in_graphs, ours.kernels_outside = 100, 0, 20, 0
    assert regression.worse(regression.counts(ours), GOOD) == ["not counted: copies_inside; run it again with --again"]

    monkeypatch.setattr(regression, "EXPECTED", tmp_path / "expected")
    assert regression.refresh([], save(tmp_path, old)) == 1
    assert not any(regression.expected(INSTALLED).values())
    ours.copies_inside = 1
    assert regression.refresh([], save(tmp_path, old)) == 0
    assert regression.expected(INSTALLED)[OURS.name]["MLP8"]["copies_inside"] == 1


def test_a_count_that_is_new_is_not_worse_than_before(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(regression, "EXPECTED", tmp_path)
    before = {key: value for key, value in GOOD.items() if key != "copies_inside"}
    write_json(regression.path(INSTALLED), {OURS.name: {"MLP8": before}})
    now = result("MLP8", 100, 80, 50, 45)
    now.variants["ours"].graphs = Graphs(**{**GOOD, "python_calls": 500})
    assert regression.refresh([], save(tmp_path / "results", now)) == 0
    assert "worse than before: python_calls" in capsys.readouterr().out
    assert regression.expected(INSTALLED)[OURS.name]["MLP8"]["copies_inside"] == GOOD["copies_inside"]


def test_what_was_run_with_another_engine_is_neither_compared_nor_expected(tmp_path, monkeypatch):
    monkeypatch.setattr(regression, "EXPECTED", tmp_path)
    write_json(regression.path(INSTALLED), {OURS.name: {"MLP8": GOOD}})
    run = result("MLP8", 100, 80, 50, 45)
    run.variants["ours"].graphs = Graphs(**{**GOOD, "slots": {"indirect": 6}})
    assert len(regression.complaints([run])) == 1
    run.configuration["knobs"] = {"PYGRAPH_ENGINE": "indirect"}
    assert regression.complaints([run]) == []
    assert regression.refresh([], save(tmp_path / "results", run)) == 1
    assert regression.expected(INSTALLED)[OURS.name]["MLP8"] == GOOD


def test_each_variant_has_expectations_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(regression, "EXPECTED", tmp_path)
    run = result("MLP8", 100, 80, 50, 45)
    run.variants[OURS.name].graphs = Graphs(**{**GOOD, "slots": {"patch": 6}, "twins": 0})
    run.variants[TABLES.name] = VariantResult(graphs=Graphs(**GOOD))
    assert regression.refresh([], save(tmp_path / "results", run)) == 0
    assert regression.complaints([run]) == []
    run.variants[TABLES.name] = run.variants[OURS.name]
    twins, slots = regression.complaints([run])
    assert twins == "MLP8, ours with tables: twins: 0, expected at least 4"
    assert slots.startswith("MLP8, ours with tables: slots: ")
