"""The page about the host's cost says what its committed data says; where that has them, the floor and our parts."""

from __future__ import annotations

import itertools
import json
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from scripts.bench import bare_frame, facts, host_cost
from scripts.bench.host_cost_page import page as page_of
from scripts.bench.registry import call_once
from scripts.bench.variants import INDUCTOR, OURS
from tests.simulated.hand_written import HandWritten

FOLDER = facts.ROOT / "docs" / "benchmarks"


@pytest.fixture
def undisturbed() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def with_split(data: dict[str, Any], training: bool) -> dict[str, Any]:
    """The data with one row, whose parts are known."""
    hosts = {"nothing": 30.0, "guards": 12.5, "stock": 70.0, "ours": 41.0, "replay": 3.0, "floor": 33.0}
    row: dict[str, Any] = {name: {"host": host, "latency": 60.0} for name, host in hosts.items()}
    row["phases"] = {"accept": 1.0, "allocate": 2.5, "tell": 0.5, "launch": 6.0, "wrap": 1.0}
    row["split"] = host_cost.split(row, outputs=3.0)
    return {**data, "rows": {"a row": {**row, "training": training}}}


def test_committed_page_is_generated_from_the_committed_data() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    assert page_of(data) == (FOLDER / "host_cost.md").read_text()


def test_floor_and_the_distance_to_it_are_shown_where_they_were_measured() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    for variants in data["rows"].values():
        variants["ours"]["host"] = 30.0
        variants["replay"] = variants["floor"] = {"host": 20.0, "latency": 25.0}
    page = page_of(data)
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
    page = page_of(data)
    assert "| a training step | 4000 (4900) | 16 (3900) | - | - |" in page
    assert "(of training steps, a sixth as many)" in page


def test_how_far_a_training_step_is_from_its_floor_is_a_ratio() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    steps = {"host": 3000.0, "latency": 3900.0}
    variants = {"nothing": steps, "stock": steps, "ours": {"host": 3300.0, "latency": 4095.0}, "replay": steps}
    data["rows"]["a step"] = {**variants, "floor": steps, "training": True}
    page = page_of(data)
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
    page = page_of(data)
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


def test_parts_are_all_of_our_time() -> None:
    [row] = with_split({}, training=False)["rows"].values()
    assert row["split"] == {"guards": 12.5, "frame": 14.5, "outputs": 3.0, "path": 7.5, "driver": 6.5}
    assert sum(row["split"].values()) - row["split"]["outputs"] == row["ours"]["host"]


@pytest.mark.parametrize(
    "training, frame", [(False, "AOTAutograd"), (True, "AOTAutograd, autograd, and around")], ids=["call", "step"]
)
def test_page_says_where_our_time_goes_and_what_of_it_is_above_the_floor(training: bool, frame: str) -> None:
    page = page_of(with_split(json.loads((FOLDER / "host_cost.json").read_text()), training))
    assert page.count("## Where our time goes") == 1
    assert f"| guards | {frame} | our path (launcher) | driver | total |" in page
    # 41 is 8 above the floor, 30 and 3.
    assert "| a row | 12.5 | 14.5 | 7.5 (4.5) | 6.5 | 41.0 | 3.0 | 3.0 | +8.0 |" in page
    assert "| a row | 1.0 | 2.5 | 0.5 | 6.0 | 1.0 |\n" in page and "the rest" not in page


def test_page_without_parts_has_no_table_of_them() -> None:
    data = with_split(json.loads((FOLDER / "host_cost.json").read_text()), training=False)
    [row] = data["rows"].values()
    del row["split"], row["guards"]
    page = page_of(data)
    assert "## Where" not in page and "making outputs |" not in page
    assert "| a row | 1.0 | 2.5 | 0.5 | 6.0 | 1.0 | 30 |" in page


def test_stopwatch_runs_only_within_the_calls() -> None:
    def slow(number: int, *, more: int) -> int:
        time.sleep(0.01)
        return number + more

    watch = host_cost.Stopwatch(slow)

    def drive() -> int:
        time.sleep(0.5)
        return watch(1, more=1) + watch(2, more=2)

    start = watch.read()
    assert start == 0 and drive() == 6
    assert 0.02 <= watch.read() < 0.4


def test_making_outputs_is_a_part_of_the_frame_and_grows_with_their_number(undisturbed: None) -> None:
    few = [torch.randn(8)]
    many = [torch.randn(8) for _ in range(64)]
    frame = bare_frame.bare_frame(host_cost.each)
    spent = [host_cost.making_outputs(lambda one: call_once(frame, one), [inputs] * 4) for inputs in (few, many)]
    start = time.perf_counter()
    for _ in range(100):
        call_once(frame, many)
    assert 0 < 4 * spent[0] < spent[1] < (time.perf_counter() - start) / 100 * 1e6


def test_every_burst_is_timed_on_its_own(undisturbed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = bare_frame.bare_frame(host_cost.double)
    clock = itertools.count(step=500)
    monkeypatch.setattr(bare_frame, "time", types.SimpleNamespace(perf_counter_ns=lambda: next(clock)))
    assert host_cost.making_outputs(lambda one: call_once(frame, one), [[torch.randn(8)]]) == 0.5


def test_a_row_is_measured_with_its_parts(undisturbed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def drive(call: Any, inputs: Any) -> Any:
        time.sleep(0.001)  # what the step does around its function
        return call_once(call, inputs)

    def phases(one: Any, sets: Any) -> dict[str, float]:
        one(sets[0])
        return {"accept": 1.0, "allocate": 1.0, "tell": 0.5, "launch": 1.5, "wrap": 1.0}

    monkeypatch.setattr(host_cost, "compiled", lambda variant, function: function)
    monkeypatch.setattr(host_cost, "captured", lambda row, call: lambda: None)
    monkeypatch.setattr(host_cost, "phases", phases)
    monkeypatch.setattr(host_cost, "SETTLE", 2)
    row = host_cost.Row("a step", lambda: host_cost.double, lambda: [torch.randn(8)], drive, training=True)
    found = host_cost.measure(row, rounds=4)
    assert 0 < found["guards"]["host_q1"] <= found["guards"]["host"] < 900 < found["nothing"]["host"]
    assert "latency" not in found["guards"] and "latency" in found["nothing"]
    parts = found["split"]
    assert parts["guards"] == found["guards"]["host"] and parts["outputs"] > 0 and parts["driver"] == 2.0
    assert sum(parts.values()) - parts["outputs"] == pytest.approx(found[OURS.name]["host"], abs=0.001)
    assert "| a step |" in page_of({**json.loads((FOLDER / "host_cost.json").read_text()), "rows": {"a step": found}})


def test_rows_that_share_a_function_are_compiled_for_their_own_sizes(
    undisturbed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamic = []

    def compiled(variant: Any, function: Any) -> Any:
        def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            dynamic.extend(size for one in inputs for size in one.size() if not isinstance(size, int))
            return graph

        return torch.compile(function, backend=backend) if variant is INDUCTOR else function

    monkeypatch.setattr(host_cost, "compiled", compiled)
    monkeypatch.setattr(host_cost, "captured", lambda row, call: lambda: call_once(call, row.draw()))
    monkeypatch.setattr(host_cost, "phases", lambda one, sets: {})
    monkeypatch.setattr(host_cost, "SETTLE", 1)
    for size in ((8,), (4, 6)):
        row = host_cost.Row("a call", lambda: host_cost.double, lambda size=size: [torch.randn(size)])
        assert "split" not in host_cost.measure(row, rounds=2), "without the launcher its parts are unknown"
    assert not dynamic
