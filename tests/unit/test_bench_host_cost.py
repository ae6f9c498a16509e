"""The page about the host's cost is what its committed data says, and shows the floor where the data has one."""

from __future__ import annotations

import json

import pytest
import torch

from scripts.bench import facts, host_cost
from tests.simulated.hand_written import HandWritten

FOLDER = facts.ROOT / "docs" / "benchmarks"


def test_committed_page_is_generated_from_the_committed_data() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    assert host_cost.page(data) == (FOLDER / "host_cost.md").read_text()


def test_floor_and_the_distance_to_it_are_shown_where_they_were_measured() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    for variants in data["rows"].values():
        variants["ours"]["host"] = 30.0
        variants["replay"] = variants["floor"] = {"host": 20.0, "latency": 25.0}
    page = host_cost.page(data)
    assert "| replay | floor | ours over the floor |" in page and "| 20 (25) | 20 (25) | +10 |" in page


def test_floor_of_a_training_step_is_no_less_than_its_kernels() -> None:
    least, replay = {"host": 30.0, "latency": 50.0}, {"host": 3.0, "latency": 40.0}
    assert host_cost.floor(least, replay, training=False) == {"host": 33.0, "latency": 70.0}
    assert host_cost.floor(least, replay, training=True) == {"host": 33.0, "latency": 40.0}
    assert host_cost.floor(least, {"host": 3.0, "latency": 20.0}, training=True) == {"host": 33.0, "latency": 33.0}


def test_a_replay_alone_is_no_floor() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    replay = {"host": 16.0, "latency": 3900.0}
    data["rows"] = {"a training step": {"ours": {"host": 4000.0, "latency": 4900.0}, "replay": replay, "floor": replay}}
    page = host_cost.page(data)
    assert "| a training step | 4000 (4900) | 16 (3900) | - | - |" in page
    assert "(of training steps, a sixth as many)" in page


def test_how_far_a_training_step_is_from_its_floor_is_a_ratio() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    steps = {"host": 3000.0, "latency": 3900.0}
    variants = {"nothing": steps, "stock": steps, "ours": {"host": 3300.0, "latency": 4095.0}, "replay": steps}
    data["rows"]["a step"] = {**variants, "floor": steps, "training": True}
    page = host_cost.page(data)
    assert (
        "| a step | 3000 (3900) | - | - | 3000 (3900) | 3300 (4095) | 3000 (3900) | 3000 (3900) | 1.10x (1.05x) |"
        in page
    )
    assert "a new gradient for every parameter" in page


def test_phases_and_the_rest_add_up_to_our_time() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    name, variants = next(iter(data["rows"].items()))
    variants["ours"]["host"] = 30.0
    variants["phases"] = {"accept": 1.0, "allocate": 2.5, "tell": 0.5, "launch": 6.0, "wrap": 1.0}
    page = host_cost.page(data)
    assert "| accept | allocate | tell | launch | wrap | the rest |" in page
    assert f"| {name} | 1.0 | 2.5 | 0.5 | 6.0 | 1.0 | 19 |" in page


def test_launcher_says_where_its_time_goes() -> None:
    function = HandWritten(lambda namespace, x: (namespace["empty_strided_cpu"]((4,), (1,), torch.float32).copy_(x),))
    inputs = [[torch.randn(4)] for _ in range(4)]
    for one in inputs:
        function(*one)
    if not any(recording.launcher for recording in function.recordings):
        pytest.skip("there is no compiler for the launcher in C")
    spent = host_cost.phases(lambda one: function(*one), inputs)
    assert set(spent) == {"accept", "allocate", "tell", "launch", "wrap"} and all(spent.values())
    function(*inputs[0])
    [recording] = function.recordings
    assert not any(recording.launcher.spent().values()), "measuring has ended"
