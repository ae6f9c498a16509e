"""Choosing between graph and plain call on a device: real clocks, calls in flight, and what is left behind."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import pygraph_inductor
from pygraph_inductor.driver.devices import driver_for
from pygraph_inductor.driver.stopwatch import EventStopwatch
from pygraph_inductor.recording.function import RecordedFunction
from pygraph_inductor.replay import native
from pygraph_inductor.seams import identity
from pygraph_inductor.selection.prediction import Prediction
from pygraph_inductor.settings import Settings
from tests.gpu.comparing import Counting, compiled, plainly, same_bits
from tests.gpu.test_recorded_function import DEVICE, Generated

pytestmark = pytest.mark.measured
ROOT = Path(__file__).resolve().parents[2]
CALLS = 80  # more than any measurement takes
ATTEMPTS = 3


@pytest.fixture(autouse=True)
def decisions_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "decisions"
    monkeypatch.setattr(identity, "decisions_folder", lambda: str(folder))
    return folder


def busy(milliseconds: float) -> None:
    """Keep the device busy for about so long; launching it takes the host no time."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def slowed(which: str, milliseconds: float) -> Callable[..., Any]:
    """A function whose plain call, or whose graph, keeps the device busy in addition."""

    def body(empty: Any, x: torch.Tensor) -> Any:
        if torch.cuda.is_current_stream_capturing() == (which == "graph"):
            busy(milliseconds)
        out = empty((1024,), (1,), torch.float32)
        torch.add(x, 1, out=out)
        return (out,)

    return body


def call_often(generated: Generated, calls: int = CALLS) -> None:
    for number in range(calls):
        x = torch.randn(1024, device=DEVICE)
        [out] = generated.call([x])
        assert torch.equal(out, x + 1), f"call {number}"


def decision(generated: Generated) -> Any:
    [one] = generated.log.decisions
    return one


def test_stopwatch_tells_time_and_never_waits() -> None:
    first, second = EventStopwatch(), EventStopwatch()
    busy(1)
    torch.cuda.synchronize()
    before = time.perf_counter()
    first.start()
    busy(200)
    first.stop()
    second.start()
    second.stop()
    assert first.read() is None and second.read() is None
    assert time.perf_counter() - before < 0.05, "it waited for the device"
    torch.cuda.synchronize()
    one, two = first.read(), second.read()
    assert one is not None and two is not None
    assert one.device_ns > 50e6 and one.host_ns < 50e6 and not one.behind
    assert two.device_ns < 5e6 and two.behind


@pytest.mark.parametrize("slow", ["plain", "graph"])
def test_slower_variant_loses_whichever_it_is(slow: str) -> None:
    generated = Generated(slowed(slow, 3))
    call_often(generated)
    assert decision(generated).chosen == ("plain" if slow == "graph" else "graph"), decision(generated)
    assert decision(generated).origin == "measured"
    table = {one.name: one for one in decision(generated).variants}
    assert set(table) == {"plain", "graph"} and all(one.rounds >= 3 for one in table.values())
    assert table[slow].device_us > 1000, "the device's time counts, though the host's is the same"
    assert bool(generated.recordings) is (slow == "plain")


@pytest.mark.parametrize("fast", ["graph", "copy", "plain"])
def test_any_of_three_variants_can_win(fast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the graph that copies all tensors, which the model would not have had measured."""
    copying = [False]
    record_copying = RecordedFunction._record_copying

    def recorded(self: RecordedFunction, *rest: Any) -> Any:
        copying[0] = True
        try:
            return record_copying(self, *rest)
        finally:
            copying[0] = False

    monkeypatch.setattr(Prediction, "may_win_by_copies", True)
    monkeypatch.setattr(RecordedFunction, "_record_copying", recorded)

    def body(empty: Any, x: torch.Tensor) -> Any:
        captured = torch.cuda.is_current_stream_capturing()
        if fast != (("copy" if copying[0] else "graph") if captured else "plain"):
            busy(3)
        out = empty((1024,), (1,), torch.float32)
        torch.add(x, 1, out=out)
        return (out,)

    generated = Generated(body)
    call_often(generated, 2 * CALLS)
    assert decision(generated).chosen == fast, decision(generated)
    assert {one.name for one in decision(generated).variants} == {"graph", "copy", "plain"}
    assert [one.variant.value for one in generated.recordings] == ([] if fast == "plain" else [fast])


@pytest.mark.alone
def test_launch_bound_function_gets_its_graph() -> None:
    def body(empty: Any, x: torch.Tensor) -> Any:
        for _ in range(40):
            x = x + 1
        out = empty((1024,), (1,), torch.float32)
        torch.add(x, 1, out=out)
        return (out,)

    generated = Generated(body)
    for _ in range(CALLS):
        x = torch.zeros(1024, device=DEVICE)
        [out] = generated.call([x])
        assert torch.equal(out, x + 41)
    assert decision(generated).chosen == "graph", decision(generated)
    if native.module() is not None:
        [recording] = generated.recordings
        before = recording.launcher.counts()[0]
        for _ in range(10):
            generated.call([x])
        assert recording.launcher.counts()[0] == before + 10


def test_nothing_waits_while_it_is_measured() -> None:
    """Torch reports every wait that it knows of; the host is done with all calls long before the device."""
    generated = Generated(slowed("neither", 0))

    def slow_body(empty: Any, x: torch.Tensor) -> Any:
        busy(10)
        out = empty((1024,), (1,), torch.float32)
        torch.add(x, 1, out=out)
        return (out,)

    generated.body = slow_body
    x = torch.randn(1024, device=DEVICE)
    for _ in range(2):
        generated.call([x])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        started = time.perf_counter()
        for _ in range(20):
            generated.call([x])
        host = time.perf_counter() - started
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    device = time.perf_counter() - started
    assert device > 0.1 and host < device / 2, f"host {host:.3f} s, device {device:.3f} s"
    for _ in range(CALLS):
        generated.call([x])
        torch.cuda.synchronize()
    assert decision(generated).chosen, "once the device has come to them, timings count"


@pytest.mark.alone
def test_host_time_alone_does_not_win_while_the_device_is_the_bottleneck() -> None:
    def body(empty: Any, x: torch.Tensor) -> Any:
        busy(3)
        out = empty((1024,), (1,), torch.float32)
        torch.add(x, 1, out=out)
        return (out,)

    x = torch.randn(1024, device=DEVICE)
    found = []
    for _ in range(ATTEMPTS):  # other processes on the device may make one variant look better
        generated = Generated(body)
        for _ in range(3 * CALLS):
            busy(0.5)
            generated.call([x])
        torch.cuda.synchronize()
        generated.call([x])
        found.append(decision(generated))
        if found[-1].chosen == "plain" and "min_gain" in found[-1].reason:
            return
    raise AssertionError(found)


def test_plain_choice_gives_the_memory_of_the_graph_back() -> None:
    size = 64 << 20  # 256 MiB

    def body(empty: Any, x: torch.Tensor) -> Any:
        if torch.cuda.is_current_stream_capturing():
            busy(5)
        middle = empty((size,), (1,), torch.float32)
        middle.fill_(2)
        out = empty((1024,), (1,), torch.float32)
        torch.add(x, middle[0], out=out)
        return (out,)

    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    generated = Generated(body)
    with torch.cuda.stream(torch.cuda.Stream()):  # whose pool has no other recording that would keep the memory
        for _ in range(CALLS):
            x = torch.randn(1024, device=DEVICE)
            [out] = generated.call([x])
            assert torch.equal(out, x + 2)
    assert decision(generated).chosen == "plain"
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < size, "less than a fourth of what the pool had"


def test_graphs_beyond_the_memory_they_may_take_are_given_up() -> None:
    def body(empty: Any, x: torch.Tensor) -> Any:
        middle = empty((16 << 20,), (1,), torch.float32)
        middle.fill_(2)
        out = empty((1024,), (1,), torch.float32)
        torch.add(x, middle[0], out=out)
        return (out,)

    for limit, recorded in ((32 << 20, False), (4 << 30, True)):
        stream = torch.cuda.Stream()  # a pool of its own
        generated = Generated(body, settings=Settings(max_graph_memory=limit))
        x = torch.randn(1024, device=DEVICE)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(3):
                generated.call([x])
        torch.cuda.synchronize()
        assert bool(generated.recordings) is recorded, generated.log.reasons


@pytest.mark.parametrize("fallback_random", [False, True])
def test_measured_calls_draw_and_write_what_plain_calls_do(fallback_random: bool) -> None:
    from torch._inductor import config as inductor_config

    def step(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x.mean())
        return F.dropout(x.sin(), 0.5, True) + total

    def sequence(call: Callable[..., Any]) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        torch.manual_seed(5)
        total = torch.zeros(8, device=DEVICE)
        results = [call(x, total) for x in inputs]
        return results, total, torch.cuda.get_rng_state()

    with inductor_config.patch(fallback_random=fallback_random), torch.no_grad():
        call, counting = compiled(step), Counting()
        inputs = [torch.randn(512, 8, device=DEVICE) for _ in range(CALLS)]
        with plainly():
            expected, expected_total, expected_state = sequence(call)
        results, total, state = sequence(call)
    for number, (one, other) in enumerate(zip(results, expected, strict=True)):
        assert same_bits(one, other), f"call {number}; {counting}"
    assert same_bits(total, expected_total) and torch.equal(state, expected_state)
    [one] = [decision for function in counting.functions for decision in function.decisions]
    assert all(variant.rounds >= 3 for variant in one.variants) and len(one.variants) == 2, one


def test_training_with_measured_forward_and_backward_gives_the_plain_gradients() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(DEVICE)
    inputs = [torch.randn(32, 64, device=DEVICE) for _ in range(CALLS)]
    call, counting = compiled(model), Counting()

    def gradients() -> list[list[torch.Tensor]]:
        found = []
        for x in inputs:
            model.zero_grad(set_to_none=True)
            call(x).square().mean().backward()
            found.append([p.grad for p in model.parameters()])
        return found

    with plainly():
        expected = gradients()
    got = gradients()
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        for mine, plain in zip(one, other, strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-6, msg=f"call {number}; {counting}")
    decisions = [decision for function in counting.functions for decision in function.decisions]
    assert len(decisions) == 2 and all(one.chosen for one in decisions), decisions


def test_warm_start_measures_nothing_and_decides_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.mm(x, x).tanh()
        return x

    def run(calls: int) -> Any:
        call, counting = compiled(chain), Counting()
        for _ in range(calls):
            call(x)
        [function] = counting.functions
        return function.decisions[-1]

    x = torch.randn(64, 64, device=DEVICE)
    with torch.no_grad():
        first = run(CALLS)
        assert first.origin == "measured" and first.digest
        assert [entry.digest for entry in pygraph_inductor.decisions.list()] == [first.digest]
        torch._dynamo.reset()
        started: list[int] = []
        start = EventStopwatch.start
        monkeypatch.setattr(EventStopwatch, "start", lambda self: (started.append(1), start(self))[1])
        second = run(6)
    assert (second.chosen, second.origin, second.digest) == (first.chosen, "stored", first.digest)
    assert not started


@pytest.mark.alone
def test_reading_a_decision_takes_less_than_a_millisecond(decisions_of_their_own: Path) -> None:
    facts = {"graph_hash": "g", "decisions_folder": str(decisions_of_their_own)}
    generated = Generated(slowed("plain", 2), **facts)
    call_often(generated)
    assert decision(generated).digest
    again = Generated(slowed("plain", 2), **facts)
    again.call([torch.randn(1024, device=DEVICE)])
    [key] = again.function._entries
    started = time.perf_counter()
    choice = again.function._selector.known(key[0])
    took = time.perf_counter() - started
    assert choice is not None and choice.origin == "stored"
    assert took < 1e-3, f"{took * 1e6:.0f} µs"


def test_capture_in_another_thread_is_not_disturbed_by_looking_at_timings() -> None:
    """A query of an event breaks captures of other threads in the default mode, unless the querying thread says so."""
    driver = driver_for(DEVICE)
    static = torch.zeros(1024, device=DEVICE)
    stopwatches = [driver.stopwatch() for _ in range(4)]
    for one in stopwatches:
        one.start()
        one.stop()  # makes the events
    capturing, looked = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def capture() -> None:
        try:
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="global")
                static.add_(1)
                capturing.set()
                looked.wait(60)
                graph.capture_end()
            stream.synchronize()
            graph.replay()
        except BaseException as error:
            failures.append(error)
            capturing.set()

    torch.cuda.synchronize()
    thread = threading.Thread(target=capture)
    thread.start()
    assert capturing.wait(60)
    try:
        for one in stopwatches:
            one.start()
            one.stop()
            one.read()
    finally:
        looked.set()
        thread.join()
    assert not failures, failures
    torch.cuda.synchronize()
    assert torch.equal(static, torch.ones_like(static))


def test_explain_shows_variants_and_choices_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import torch

            @torch.compile(mode="reduce-overhead")
            def chain(x):
                for _ in range(6):
                    x = torch.mm(x, x).tanh()
                return x

            with torch.no_grad():
                for _ in range({CALLS}):
                    chain(torch.randn(64, 64, device="cuda"))
            """
        )
    )
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYGRAPH_")},
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "pygraph_inductor", "explain"]
    run = subprocess.run(
        [*command, "--json", str(script)], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    [function] = json.loads(run.stdout.splitlines()[-1])["functions"]
    [first] = function["decisions"]
    assert first["chosen"] in ("graph", "plain") and first["origin"] == "measured"
    assert {one["name"] for one in first["variants"]} == {"graph", "plain"}
    expected = {one["name"]: one["host_us"] for one in first["expected"]}
    assert 0 < expected["graph"] < expected["plain"] < first["plain_host_at_most_us"]
    run = subprocess.run(
        [*command, str(script)], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "stored" in run.stdout and first["chosen"] in run.stdout and "expected" in run.stdout
