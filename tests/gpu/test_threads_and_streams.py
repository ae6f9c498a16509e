"""Threads, streams and processes around replayed calls."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pygraph_inductor
from tests.gpu.comparing import DEVICE, Counting, compiled
from tests.gpu.test_recorded_function import Generated, check

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE)


def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = torch.tanh(x * 0.5 + y) - x
    return x


def test_worker_threads_call_at_the_same_time() -> None:
    call, counting = compiled(function), Counting()
    y = randn(64, 64)
    for _ in range(3):
        call(randn(64, 64), y)
    wrong: list[str] = []

    def work(number: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    x = torch.full((64, 64), 0.1 * number, device=DEVICE)
                    torch.testing.assert_close(call(x, y), function(x, y), rtol=1e-4, atol=1e-4)
        except BaseException as error:
            wrong.append(f"thread {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    counting.expect(replays=100)


def test_two_functions_replayed_from_two_threads() -> None:
    """They share a pool of intermediates, so their replays must not overlap on the device."""

    def other(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x @ y).relu() @ y).relu() @ y

    calls, counting = [compiled(function), compiled(other)], Counting()
    y = torch.eye(256, device=DEVICE)
    wrong: list[str] = []
    for call in calls:
        for _ in range(3):
            call(randn(256, 256), y)

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.no_grad(), torch.cuda.stream(stream):
                for _ in range(20):
                    x = torch.full((256, 256), 0.25, device=DEVICE)
                    wanted = (function, other)[number](x, y)
                    torch.testing.assert_close(calls[number](x, y), wanted, rtol=1e-3, atol=1e-3)
        except BaseException as error:
            wrong.append(f"thread {number}: {type(error).__name__}: {error}")

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    assert counting.replays >= 30, counting


def test_stream_of_the_users() -> None:
    call, counting = compiled(function), Counting()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(6):
            x, y = randn(128, 128), randn(128, 128)
            torch.testing.assert_close(call(x, y), function(x, y), rtol=1e-4, atol=1e-4)
    torch.cuda.synchronize()
    counting.expect(replays=4)


def test_work_of_another_thread_is_executed_during_a_capture_whichever_stream_it_has() -> None:
    """torch has 32 streams of a kind, and gives them out in turn."""
    streams = [torch.cuda.Stream(priority=priority) for priority in (0, -1) for _ in range(32)]
    counter = torch.zeros(1, device=DEVICE)
    counter += 1
    torch.cuda.synchronize()
    launched = [1]

    def beside() -> None:
        with torch.no_grad():
            for stream in streams:
                with torch.cuda.stream(stream):
                    counter.add_(1)
                stream.synchronize()
                launched.append(1)

    def body(empty: Callable[..., Any], x: torch.Tensor) -> Any:
        out = empty((256,), (1,), torch.float32)
        torch.mul(x, 2, out=out)
        if torch.cuda.is_current_stream_capturing():
            thread = threading.Thread(target=beside)
            thread.start()
            thread.join()
        return (out,)

    generated = Generated(body)
    check(generated, lambda: (randn(256),))
    assert len(launched) > len(streams) and counter.item() == len(launched)
    (recording,) = generated.recordings
    assert len(recording.graph.nodes) == 1


def test_stream_changes_between_calls() -> None:
    """The intermediates of the last call may still be in use on the other stream."""

    def heavy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = (x @ y).relu()
        return x

    call, counting = compiled(heavy), Counting()
    y = torch.eye(1024, device=DEVICE)
    inputs = [torch.full((1024, 1024), float(number), device=DEVICE) for number in range(12)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    results = []
    for number, x in enumerate(inputs):
        with torch.cuda.stream(streams[number % 2]):
            results.append(call(x, y))
    torch.cuda.synchronize()
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, x)
    assert counting.replays >= 6, counting


def test_side_stream_consumes_an_output_that_is_dropped() -> None:
    """`record_stream` works on outputs: their memory is not handed out while another stream reads it."""
    call, counting = compiled(lambda x: x * 2), Counting()
    side, total = torch.cuda.Stream(), torch.zeros((), device=DEVICE)
    torch.cuda.synchronize()
    for number in range(20):
        y = call(torch.full((1 << 20,), float(number), device=DEVICE))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total += y.mean()
        y.record_stream(side)
        del y
    torch.cuda.synchronize()
    assert total.item() == 2 * sum(range(20))
    counting.expect(replays=17)


def test_buffers_of_a_graph_that_is_gone_before_another_stream_comes_to_it() -> None:
    """What a graph copies to and from is memory of the stream that recorded, which gets it back too early."""
    home, away = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.full((1 << 20,), 3.0, device=DEVICE)
    torch.cuda.synchronize()
    with pygraph_inductor.config.patch(engine="copy"):
        call, counting = compiled(lambda x: x * 2 + 1), Counting()
        with torch.cuda.stream(home):
            for _ in range(4):
                call(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(away):
            torch.cuda._sleep(1 << 29)  # a fraction of a second
            y = call(x)
        counting.expect(replays=3)
    del call
    torch._dynamo.reset()
    gc.collect()
    with torch.cuda.stream(home):
        others = [torch.full((1 << 20,), -1.0, device=DEVICE) for _ in range(16)]
    torch.cuda.synchronize()
    assert bool((y == 7).all()) and all(bool((one == -1).all()) for one in others)


FORKING = """
import gc, os, traceback
import torch
import pygraph_inductor

def function(x):
    return torch.tanh(x + 1) * 2

call = torch.compile(function, mode="reduce-overhead")
with torch.no_grad():
    for _ in range(4):
        x = torch.randn(64, device="cuda")
        torch.testing.assert_close(call(x), function(x))
    assert sum(one.replays for one in pygraph_inductor.report().functions) >= 2
    child = os.fork()
    if child == 0:  # leaves as children of multiprocessing do, without the exit handlers of its parent
        try:
            import pygraph_inductor
            str(pygraph_inductor.report())
            del call
            torch._dynamo.reset()
            gc.collect()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"
    x = torch.randn(64, device="cuda")
    torch.testing.assert_close(call(x), function(x))
    torch.cuda.synchronize()
print("parent is fine")
"""


def test_fork_after_the_device_was_used() -> None:
    """The child never touches the device: it imports, reports, drops its copies of the graphs and exits cleanly."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING], cwd=ROOT, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0 and "parent is fine" in done.stdout, done.stdout + done.stderr
