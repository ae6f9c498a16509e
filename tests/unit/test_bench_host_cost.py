"""The page about the host's cost says what its committed data says; where that has them, the floor and our parts."""

from __future__ import annotations

import copy
import itertools
import json
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from scripts.bench import (
    bare_frame,
    facts,
    host_cost,
    host_cost_goals,
    host_cost_recordings,
    host_cost_rows,
    host_cost_timing,
)
from scripts.bench.host_cost_page import page as page_of
from scripts.bench.registry import call_once
from scripts.bench.variants import INDUCTOR, OURS
from tests.simulated.hand_written import HandWritten

SEVERAL = 10
FOLDER = facts.ROOT / "docs" / "benchmarks"


@pytest.fixture
def undisturbed() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def with_split(data: dict[str, Any], training: bool) -> dict[str, Any]:
    """The data with one row, whose parts are known."""
    hosts = {"nothing": 30.0, "outputs": 3.0, "guards": 12.5, "stock": 70.0, "ours": 41.0, "replay": 3.0, "floor": 33.0}
    row: dict[str, Any] = {name: {"host": host, "latency": 60.0} for name, host in hosts.items()}
    row["phases"] = {"accept": 1.0, "allocate": 2.5, "tell": 0.5, "launch": 6.0, "wrap": 1.0}
    row["split"] = host_cost.split(row, "host", row["phases"])
    return {**data, "rows": {"a row": {**row, "training": training}}}


def test_committed_page_is_generated_from_the_committed_data() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    assert page_of(data) == (FOLDER / "host_cost.md").read_text()


def without_single_calls(data: dict[str, Any]) -> dict[str, Any]:
    """As in data from before calls were timed alone."""
    for variants in data["rows"].values():
        for one in variants.values():
            if isinstance(one, dict):
                for figure in ("alone", "wait", "device"):
                    one.pop(figure, None)
        variants.pop("phases_alone", None)
        variants.pop("split_alone", None)
    return data


def test_floor_and_the_distance_to_it_are_shown_where_they_were_measured() -> None:
    data = without_single_calls(json.loads((FOLDER / "host_cost.json").read_text()))
    for variants in data["rows"].values():
        variants["ours"] = {"host": 30.0, "latency": 53.0}
        variants["replay"] = variants["floor"] = {"host": 20.0, "latency": 25.0}
    page = page_of(data)
    assert "| replay | floor | ours over the floor |" in page and "| 20 (25) | 20 (25) | +10 (+28) |" in page


def test_floor_of_a_latency_is_of_calls_alone_and_of_a_training_step_no_less_than_its_kernels() -> None:
    least = {"host": 30.0, "alone": 45.0, "latency": 55.0}
    replay = {"host": 3.0, "alone": 5.0, "latency": 60.0}
    assert host_cost.floor(least, replay, training=False) == {"host": 33.0, "latency": 105.0}
    assert host_cost.floor(least, replay, training=True) == {"host": 33.0, "latency": 60.0}
    assert host_cost.floor(least, {**replay, "latency": 20.0}, training=True) == {"host": 33.0, "latency": 50.0}


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


def test_every_row_has_a_goal() -> None:
    names = [row.name for row in host_cost_rows.ROWS] + [title for _, title in host_cost.TRAINING]
    assert list(host_cost_goals.GOALS) == names
    assert "Not measured" not in host_cost_goals.about(dict.fromkeys(names))
    assert host_cost_goals.about(dict.fromkeys(names[1:])).endswith("Not measured: one small kernel (22, eager's).")


def test_goals_are_met_by_the_host_s_time_or_by_what_they_say() -> None:
    def cells(name: str, **variants: float) -> list[str]:
        return host_cost_goals.cells(name, {v: {"host": us, "latency": 10 * us} for v, us in variants.items()})

    assert cells("one small kernel", ours=21, eager=21) == ["22, eager's", "yes"]
    assert cells("one small kernel", ours=21, eager=20)[1] == cells("one small kernel", ours=23, eager=24)[1] == "no"
    assert cells("one small kernel", ours=21) == ["22, eager's", "-"], "nothing was measured to compare with"
    assert cells("a cache of 200 MB in place", ours=46, floor=40) == ["1.15x the floor", "yes"]
    assert cells("a cache of 200 MB in place", ours=47, floor=40)[1] == "no"
    slow = {"ours": {"host": 1, "latency": 60}, "inductor": {"host": 2, "latency": 50}}
    assert host_cost_goals.cells("one input of 256 MB", slow) == ["latency of no graphs", "no"]
    assert cells("a row", ours=1) == ["-", "-"]


def test_phases_and_the_rest_add_up_to_our_time() -> None:
    data = without_single_calls(json.loads((FOLDER / "host_cost.json").read_text()))
    for row in data["rows"].values():
        del row["split"]  # as in data from before there were parts
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
    for calls in (host_cost_timing.in_a_burst, host_cost_timing.one_by_one):
        spent = host_cost_recordings.phases(lambda one: function(*one), inputs, host_cost.launchers(), calls)
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

    watch = host_cost_timing.Stopwatch(slow)

    def drive() -> int:
        time.sleep(0.5)
        return watch(1, more=1) + watch(2, more=2)

    start = watch.read()
    assert start == 0 and drive() == 6
    assert 0.02 <= watch.read() < 0.4


def test_making_outputs_is_a_part_of_the_frame_and_grows_with_their_number(undisturbed: None) -> None:
    few = [torch.randn(8)]
    many = [torch.randn(8) for _ in range(64)]
    frame = bare_frame.bare_frame(host_cost_rows.each)

    def least(inputs: list[torch.Tensor]) -> float:
        """Of several times: whoever else is at work here makes single ones longer."""
        one = lambda sets: call_once(frame, sets)
        return min(host_cost.making_outputs(one, [inputs] * 4, host_cost_timing.in_a_burst) for _ in range(SEVERAL))

    def whole() -> float:
        start = time.perf_counter()
        for _ in range(host_cost_timing.BURST):
            call_once(frame, many)
        return (time.perf_counter() - start) / host_cost_timing.BURST * 1e6

    assert 0 < 4 * least(few) < least(many) < min(whole() for _ in range(SEVERAL))


@pytest.mark.parametrize("calls", [host_cost_timing.in_a_burst, host_cost_timing.one_by_one])
def test_every_burst_is_timed_on_its_own(
    undisturbed: None, monkeypatch: pytest.MonkeyPatch, calls: host_cost_timing.Calls
) -> None:
    frame = bare_frame.bare_frame(host_cost_rows.double)
    clock = itertools.count(step=500)
    monkeypatch.setattr(bare_frame, "time", types.SimpleNamespace(perf_counter_ns=lambda: next(clock)))
    for _ in range(2):
        assert host_cost.making_outputs(lambda one: call_once(frame, one), [[torch.randn(8)]], calls) == 0.5


class Clock:
    """Time that passes where it is said to, in microseconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def pass_by(self, us: float) -> None:
        self.now += us

    def read(self) -> float:
        return self.now / 1e6


def test_single_calls_are_timed_until_they_returned_and_in_the_wait_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls, waits = Clock(), itertools.count(), []

    def one(inputs: Any) -> None:
        waits.append(0)
        clock.pass_by(next(calls))  # each takes a microsecond longer than the one before

    def wait() -> None:
        waits.append(1)
        clock.pass_by(1000)

    monkeypatch.setattr(host_cost_timing, "wait", wait)
    burst, singles = host_cost_timing.one_round(one, [[1], [2]], clock.read)
    assert burst == pytest.approx(2 + 9.5) and host_cost_timing.BURST == 20
    assert singles == [pytest.approx((22 + number, 1000)) for number in range(host_cost_timing.SINGLES)]
    assert waits == [0, 0, 1, *[0] * 20, 1, *[0, 1] * host_cost_timing.SINGLES], "each finds an idle device"
    waits.clear()
    assert (
        host_cost_timing.one_by_one(one, [[1], [2]]) == host_cost_timing.SINGLES
        and waits == [0, 1] * host_cost_timing.SINGLES
    )
    waits.clear()
    assert host_cost_timing.in_a_burst(one, [[1], [2]]) == host_cost_timing.BURST and waits == [*[0] * 20, 1]


def test_a_latency_is_the_median_of_whole_calls() -> None:
    times = host_cost_timing.Times(host=[1.0, 2.0, 3.0], alone=[1.0, 2.0, 30.0], wait=[10.0, 40.0, 5.0])
    summary = times.summary()
    assert (summary["alone"], summary["wait"], summary["latency"]) == (2.0, 10.0, 35.0)
    only = host_cost_timing.Times(host=[1.0, 2.0, 3.0], alone=[4.0]).summary()
    assert only["alone"] == 4.0 and "wait" not in only and "latency" not in only


class Device:
    """Takes work in order, each piece no sooner than it was handed over."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.free_at, self.slept = clock, 0.0, []

    def run(self, us: float) -> None:
        self.free_at = max(self.free_at, self.clock.now) + us

    def sleep(self, cycles: int) -> None:
        self.slept.append(cycles / host_cost.CYCLES)
        self.run(self.slept[-1])

    def event(self, enable_timing: bool) -> Any:
        event = types.SimpleNamespace(at=None)
        event.record = lambda: vars(event).update(at=max(self.free_at, self.clock.now))
        event.elapsed_time = lambda end: (end.at - event.at) / 1e3
        return event


@pytest.mark.parametrize("host", [50.0, 5000.0])
def test_what_the_device_takes_has_no_wait_for_the_host(monkeypatch: pytest.MonkeyPatch, host: float) -> None:
    clock = Clock()
    device, seen = Device(clock), []

    def one(inputs: Any) -> None:
        seen.append(inputs)
        for _ in range(2):
            clock.pass_by(host / 2)
            device.run(7.0 if len(seen) > 1 else 700.0)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: vars(clock).update(now=device.free_at))
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "_sleep", device.sleep)
    assert host_cost.on_device(one, [[1], [2]], host) == {"device": 14.0}
    assert seen[:3] == [[1], [2], [1]] and len(seen) == len(device.slept) == host_cost.ON_DEVICE + 1
    assert min(device.slept) == max(1000.0, 4 * host)


def test_nothing_is_said_of_a_device_that_is_not_there() -> None:
    if torch.cuda.is_available():
        pytest.skip("it is there")
    assert host_cost.on_device(lambda inputs: 1 / 0, [[]], 1.0) == {}


class Launcher:
    """As the one in C, of which a call is any; every burst takes longer in `launch`, the last one much.

    Of each round it is timed in a burst and in single calls, which take longer in `tell`.
    """

    def __init__(self) -> None:
        self.on, self.times = False, 0

    def time(self, on: bool) -> None:
        self.on = on
        self.times += on

    def spent(self) -> dict[str, int]:
        number, alone = divmod(self.times - 1, 2)
        us = {"accept": 0.5, "allocate": 0.5, "tell": 0.25 + alone, "launch": (1, 2, 3, 100)[number], "wrap": 0.25}
        return {
            phase: int(spent * 1e3) * (host_cost_timing.SINGLES if alone else host_cost_timing.BURST)
            for phase, spent in us.items()
        }


class Named:
    """A function that is compiled to itself."""

    def __init__(self, name: str, function: Any) -> None:
        self.name, self.function = name, function

    def __call__(self, *inputs: Any) -> Any:
        return self.function(*inputs)


@pytest.fixture
def without_gpu(undisturbed: None, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(host_cost, "compiled", lambda variant, function: Named(variant.name, function))
    monkeypatch.setattr(host_cost, "captured", lambda row, call: lambda: None)
    monkeypatch.setattr(host_cost_timing, "SETTLE", 2)
    return monkeypatch


def test_a_row_is_measured_with_its_parts(without_gpu: pytest.MonkeyPatch) -> None:
    def drive(call: Any, inputs: Any) -> Any:
        time.sleep(0.001)  # what the step does around its function
        return call_once(call, inputs)

    first, second = Launcher(), Launcher()
    without_gpu.setattr(host_cost, "launchers", lambda: {first, second})
    row = host_cost_rows.Row("a step", lambda: host_cost_rows.double, lambda: [torch.randn(8)], drive, training=True)
    found = host_cost.measure(row, rounds=4)
    assert 0 < found["guards"]["host_q1"] <= found["guards"]["host"] < 900 < found["nothing"]["host"]
    assert not {"latency", "wait"} & set(found["guards"]) and {"latency", "wait"} < set(found["nothing"])
    assert 0 < found["guards"]["alone"] < 900 < found["nothing"]["alone"] <= found["nothing"]["latency"]
    assert 0 < found["outputs"]["alone"] < 900
    assert 0 < found["outputs"]["host_q1"] <= found["outputs"]["host"] <= found["outputs"]["host_q3"] < 900
    # Two launchers, of whose four bursts each the last is out of line.
    assert found["phases"] == {"accept": 1.0, "allocate": 1.0, "tell": 0.5, "launch": 5.0, "wrap": 0.5}
    assert found["phases_q1"]["launch"] == 2.5 and found["phases_q3"]["launch"] == 151.5
    assert found["phases_q1"]["wrap"] == found["phases_q3"]["wrap"] == 0.5
    assert found["phases_alone"] == {**found["phases"], "tell": 2.5}
    parts = found["split"]
    assert parts["guards"] == found["guards"]["host"] and parts["driver"] == 5.5
    assert parts["outputs"] == found["outputs"]["host"]
    assert sum(parts.values()) - parts["outputs"] == pytest.approx(found[OURS.name]["host"], abs=0.03)
    alone = found["split_alone"]
    assert alone["guards"] == found["guards"]["alone"] and alone["driver"] == 7.5
    assert alone["outputs"] == found["outputs"]["alone"]
    assert sum(alone.values()) - alone["outputs"] == pytest.approx(found[OURS.name]["alone"], abs=0.03)
    page = page_of({**json.loads((FOLDER / "host_cost.json").read_text()), "rows": {"a step": found}})
    assert page.count("| a step |") == 5, "in all tables"


def test_parts_are_timed_in_every_round_after_the_burst_that_counts(without_gpu: pytest.MonkeyPatch) -> None:
    launcher, seen = Launcher(), []

    def drive(call: Any, inputs: Any) -> Any:
        outputs = bare_frame._each is not itertools.starmap
        seen.append((getattr(call, "name", type(call).__name__), launcher.on, outputs))
        return call_once(call, inputs)

    def launchers() -> set[Any]:
        seen.append(("look", launcher.on, False))
        return {launcher}

    class Frames:
        def __init__(self, row: Any, function: Any) -> None:
            pass

        def turn(self, number: int) -> None:
            seen.append(("frames", launcher.on, False))

        def summary(self, found: Any) -> dict[str, Any]:
            assert {"split", "split_alone"} <= set(found)
            return {}

    without_gpu.setattr(host_cost, "launchers", launchers)
    without_gpu.setattr(host_cost, "Frames", Frames)
    row = host_cost_rows.Row("a step", lambda: host_cost_rows.double, lambda: [torch.randn(8)], drive, training=True)
    host_cost.measure(row, rounds=3)
    plain = host_cost_timing.BURST + 4 + host_cost_timing.SINGLES
    parts = host_cost_timing.BURST + host_cost_timing.SINGLES
    frames = ("frames", False, False, 1)
    in_round = [
        ("function", False, False, plain),
        ("function", False, True, parts),
        ("stock", False, False, plain),
        ("ours", False, False, plain),
        ("ours", True, False, parts),
        ("Stopwatch", False, False, plain),
        frames,
    ]
    settling = [
        (name, False, False, plain + host_cost_timing.SETTLE) for name in ("function", "stock", "ours", "Stopwatch")
    ]
    look = ("look", False, False, 1)
    runs = [(*one, len(list(calls))) for one, calls in itertools.groupby(seen)]
    assert runs == [*settling[:3], look, settling[3], frames, *in_round * 3, look]


def test_the_device_s_time_is_of_ours_and_of_the_replay_after_the_rounds(without_gpu: pytest.MonkeyPatch) -> None:
    driven: list[str] = []

    def drive(call: Any, inputs: Any) -> Any:
        driven.append(getattr(call, "name", "another"))
        return call_once(call, inputs)

    def on_device(one: Any, sets: Any, host: float) -> dict[str, float]:
        before = len(driven)
        one(sets[0])
        return {"device": host + 1, "driven": driven[before:]}

    without_gpu.setattr(host_cost, "on_device", on_device)
    row = host_cost_rows.Row("a call", lambda: host_cost_rows.double, lambda: [torch.randn(8)], drive)
    found = host_cost.measure(row, rounds=2)
    assert found[OURS.name]["driven"] == ["ours"] and found[host_cost.REPLAY.name]["driven"] == []
    assert {name for name, one in found.items() if isinstance(one, dict) and "device" in one} == {"ours", "replay"}
    assert all(found[name]["device"] == found[name]["alone"] + 1 for name in ("ours", "replay"))


def test_launchers_of_a_row_are_found_and_timed(without_gpu: pytest.MonkeyPatch) -> None:
    def body(namespace: Any, x: torch.Tensor) -> Any:
        return (namespace["empty_strided_cpu"]((8,), (1,), torch.float32).copy_(x),)

    ours = HandWritten(body)
    without_gpu.setattr(host_cost_timing, "SETTLE", 8)
    without_gpu.setattr(host_cost, "compiled", lambda variant, function: ours if variant is OURS else function)
    row = host_cost_rows.Row("a call", lambda: host_cost_rows.double, lambda: [torch.randn(8)])
    found = host_cost.measure(row, rounds=2)
    if not host_cost.launchers():
        pytest.skip("there is no compiler for the launcher in C")
    assert all(0 < spent < found["ours"]["host"] for spent in found["phases"].values()) and "split" in found
    assert not any(any(launcher.spent().values()) for launcher in host_cost.launchers())


def test_a_graph_recorded_amid_the_rounds_leaves_the_parts_unknown(without_gpu: pytest.MonkeyPatch) -> None:
    first, late = Launcher(), Launcher()
    looks = iter([{first}, {first, late}])
    without_gpu.setattr(host_cost, "launchers", lambda: next(looks))
    row = host_cost_rows.Row("a call", lambda: host_cost_rows.double, lambda: [torch.randn(8)])
    found = host_cost.measure(row, rounds=2)
    assert not {"phases", "split", "phases_alone", "split_alone"} & set(found) and "host" in found["ours"]
    page = page_of({**json.loads((FOLDER / "host_cost.json").read_text()), "rows": {"a call": found}})
    assert "| a call | ours |" in page and "The parts of ours alone" not in page


def test_rows_are_chosen_by_parts_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_cost.facts, "environment", lambda device: {})
    monkeypatch.setattr(host_cost, "measure", lambda row, rounds: {"rounds": rounds})
    monkeypatch.setattr(host_cost, "events", lambda row: {"of": row.name})
    steps = [(lambda title, step=step: host_cost_rows.Row(title, *[lambda: step] * 2), f"step {step}") for step in "AB"]
    monkeypatch.setattr(host_cost, "TRAINING", tuple(steps))
    every = [row.name for row in host_cost_rows.ROWS]
    assert list(host_cost.run(60, "a", training=False)["rows"]) == every
    assert list(host_cost.run(60, "a", training=True)["rows"]) == [*every, "step A", "step B"]
    assert host_cost.run(60, "a", training=True, only=["step B", "MLP"])["rows"] == {
        "8-layer MLP": {"rounds": 60},
        "step B": {"rounds": 30, "events": {"of": "step B"}},
    }


def test_profiles_come_when_all_rows_are_measured_and_cost_them_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launching a graph takes longer in a process that was profiled, and what is written by then stays."""
    done: list[str] = []
    kept: list[dict[str, Any]] = []

    def measure(row: Any, rounds: int) -> dict[str, Any]:
        done.append(row.name)
        return {}

    def events(row: Any) -> dict[str, Any]:
        done.append(f"profile of {row.name}")
        raise ZeroDivisionError("no profiler")

    monkeypatch.setattr(host_cost.facts, "environment", lambda device: {})
    monkeypatch.setattr(host_cost, "measure", measure)
    monkeypatch.setattr(host_cost, "events", events)
    monkeypatch.setattr(host_cost, "ROWS", host_cost_rows.ROWS[:1])
    steps = [(lambda title, step=step: host_cost_rows.Row(title, *[lambda: step] * 2), f"step {step}") for step in "AB"]
    monkeypatch.setattr(host_cost, "TRAINING", tuple(steps))
    host_cost.run(60, "a", training=True, keep=lambda found: kept.append(copy.deepcopy(found["rows"])))
    first = host_cost_rows.ROWS[0].name
    assert done == [first, "step A", "step B", "profile of step A", "profile of step B"]
    assert kept[2] == {first: {}, "step A": {}, "step B": {}}
    assert kept[-1]["step B"] == {"events": {"failed": "ZeroDivisionError: no profiler"}}


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
    monkeypatch.setattr(host_cost, "launchers", set)
    monkeypatch.setattr(host_cost_timing, "SETTLE", 1)
    for size in ((8,), (4, 6)):
        row = host_cost_rows.Row("a call", lambda: host_cost_rows.double, lambda size=size: [torch.randn(size)])
        assert "split" not in host_cost.measure(row, rounds=2), "without the launcher its parts are unknown"
    assert not dynamic
