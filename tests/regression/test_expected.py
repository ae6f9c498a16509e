"""Simulated workloads do at least as well as the checked-in expectations: graphs, cuts, kernels, slots, Python calls.

`make bench DEVICE=sim` holds every workload to its expectation; these three stand for them in `make test`.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from scripts.bench import regression
from scripts.bench.registry import all_workloads

EXPECTED = regression.expected()


@pytest.mark.parametrize("name", regression.TESTED)
def test_nothing_got_worse(name):
    if name not in EXPECTED:
        pytest.skip(f"no expectation for {name} on this torch; `python -m scripts.bench expect {name}` makes one")
    _, found = regression.simulated(all_workloads()[name])
    assert regression.worse(found, EXPECTED[name]) == []


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


def test_every_expectation_is_of_a_workload_and_complete():
    for name, counts in EXPECTED.items():
        assert name in all_workloads()
        assert counts.keys() == set(regression.KEYS)
