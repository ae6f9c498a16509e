"""Simulated workloads do at least as well as the checked-in expectations: graphs, cuts, kernels, slots, Python calls.

`make bench DEVICE=sim` holds every workload to its expectation; these three stand for them in `make test`.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pygraph_inductor.seams.table import MINORS
from scripts.bench import regression
from scripts.bench.registry import all_workloads

INSTALLED = regression.installed()


@pytest.mark.skipif(INSTALLED not in MINORS, reason=f"torch {INSTALLED} is none of {', '.join(MINORS)}")
@pytest.mark.parametrize("name", regression.TESTED)
def test_nothing_got_worse(name):
    expected = regression.expected(INSTALLED)
    assert name in expected, missing(INSTALLED, name)
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
    "bindings": 9, "updates": 10.0, "staged": 0.0, "python_calls": 100, "cuts": ["a reason"],
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
