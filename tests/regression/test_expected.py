"""Simulated workloads do at least as well as the checked-in expectations: graphs, cuts, kernels, slots, Python calls.

`make bench DEVICE=sim` holds every workload to its expectation; these three stand for them in `make test`.
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
from scripts.bench.results import Graphs, save, write_json
from tests.simulated.hand_written import HandWritten, check
from tests.unit.bench_data import result

INSTALLED = regression.installed()


@pytest.mark.skipif(INSTALLED not in MINORS, reason=f"torch {INSTALLED} is none of {', '.join(MINORS)}")
@pytest.mark.parametrize("name", regression.TESTED)
def test_nothing_got_worse(name):
    expected = regression.expected(INSTALLED)
    assert name in expected, missing(INSTALLED, name)
    with config.patch(engine="auto"):  # with a table, graphs are captured again
        _, found = regression.simulated(all_workloads()[name])
    assert regression.worse(found, expected[name]) == []


@pytest.mark.parametrize("minor", MINORS)
def test_every_supported_torch_has_expectations(minor):
    """Complete ones, on any torch: the test above looks at one file only."""
    expected = regression.expected(minor)
    absent = [name for name in regression.TESTED if name not in expected]
    assert not absent, missing(minor, *absent)
    for name, counts in expected.items():
        assert name in all_workloads()
        assert counts.keys() == set(regression.KEYS)


def missing(minor: str, *names: str) -> str:
    listed = " ".join(names)
    return f"{listed}: not in {regression.path(minor)}; with torch {minor}, `python -m scripts.bench expect {listed}`"


GOOD: dict[str, Any] = {
    "functions": 2, "replayed": 2, "recordings": 2, "kernels_inside": 20, "slots": {"patch": 5, "copy": 1},
    "bindings": 9, "copies_inside": 2, "updates": 10.0, "staged": 0.0, "python_calls": 100, "cuts": ["a reason"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("functions", 3),
        ("replayed", 1),
        ("recordings", 3),
        ("kernels_inside", 19),
        ("slots", {"patch": 4, "copy": 2}),
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
    better = {**copy.deepcopy(GOOD), "python_calls": 10, "kernels_inside": 25, "slots": {"patch": 6}, "cuts": []}
    assert regression.worse(better, GOOD) == []


def test_a_copy_at_the_end_of_a_graph_is_worse(monkeypatch):
    """Of an output that an operator allocates; in a larger graph than this, all other counts would allow it."""

    def counted() -> dict[str, Any]:
        function = HandWritten(lambda namespace, x: list(torch.ops.aten.sort.default(x)))
        check(function, lambda: (torch.randn(8, 8),))
        return {**regression.counts(facts.graphs_of([function.log])), "python_calls": 0}

    without = counted()
    monkeypatch.setattr(capture_pair, "in_place", lambda *arguments: None)
    assert "copies_inside: 2, expected 0, allowed 0" in regression.worse(counted(), without)


def test_what_a_run_did_not_count_is_not_taken_for_good(tmp_path, monkeypatch):
    """Neither compared nor expected: a result file that was written before copies were counted."""
    old = result("MLP8", 100, 80, 50, 45)
    ours = old.variants["ours"].graphs
    assert ours is not None and ours.copies_inside is None
    ours.python_calls = 100
    assert regression.worse(regression.counts(ours), GOOD) == ["not counted: copies_inside; run it again with --again"]

    monkeypatch.setattr(regression, "EXPECTED", tmp_path / "expected")
    assert regression.refresh([], save(tmp_path, old)) == 1
    assert not regression.expected(INSTALLED)
    ours.copies_inside = 1
    assert regression.refresh([], save(tmp_path, old)) == 0
    assert regression.expected(INSTALLED)["MLP8"]["copies_inside"] == 1


def test_a_count_that_is_new_is_not_worse_than_before(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(regression, "EXPECTED", tmp_path)
    before = {key: value for key, value in GOOD.items() if key != "copies_inside"}
    write_json(regression.path(INSTALLED), {"MLP8": before})
    now = result("MLP8", 100, 80, 50, 45)
    now.variants["ours"].graphs = Graphs(**{**GOOD, "python_calls": 500})
    assert regression.refresh([], save(tmp_path / "results", now)) == 0
    assert "worse than before: python_calls" in capsys.readouterr().out
    assert regression.expected(INSTALLED)["MLP8"]["copies_inside"] == GOOD["copies_inside"]
