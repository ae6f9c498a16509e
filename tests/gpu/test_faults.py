"""When something goes wrong while recording: the right answer or the user's own exception, one warning, a working rest.

Operators of these tests misbehave only while their stream is being captured, or break a rule of captures.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pygraph_inductor
from tests.gpu.comparing import DEVICE, Counting, compiled
from tests.gpu.operators import like_first, opaque

MIB = 1 << 20


class Mishap:
    """What the operator below does while it is captured, and how often it did."""

    error: BaseException | None = None
    always = False
    raised = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.error is not None and (self.always or torch.cuda.is_current_stream_capturing()):
            self.raised += 1
            raise self.error
        return x * 2


MISHAP = Mishap()
fragile = opaque("fragile", "(Tensor x) -> Tensor", lambda x: MISHAP(x), like_first)


@pytest.fixture(autouse=True)
def no_mishap() -> Iterator[None]:
    MISHAP.error, MISHAP.always, MISHAP.raised = None, False, 0
    with torch.no_grad():
        yield
    MISHAP.error = None


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE)


def function(x: torch.Tensor) -> torch.Tensor:
    return fragile(x + 1).relu()


def expected(x: torch.Tensor) -> torch.Tensor:
    return ((x + 1) * 2).relu()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "pygraph_inductor" and r.levelno >= logging.WARNING]


def expect_right(call: Callable[..., Any], times: int = 1) -> None:
    for number in range(times):
        x = randn(64, 64)
        torch.testing.assert_close(call(x), expected(x), msg=lambda m, number=number: f"call {number}: {m}")
    torch.cuda.synchronize()


def expect_others_replay() -> None:
    """The device, the pool and the seam still serve a function that has nothing to do with the fault."""
    call, counting = compiled(lambda x, w: (x @ w).tanh()), Counting()
    weight = randn(32, 32)
    for _ in range(5):
        x = randn(16, 32)
        torch.testing.assert_close(call(x, weight), (x @ weight).tanh(), rtol=1e-2, atol=1e-2)
    torch.cuda.synchronize()
    counting.expect(replays=3)


# Inside the capture


@pytest.mark.parametrize(
    "error", [ValueError("no such luck"), torch.OutOfMemoryError("CUDA out of memory.")], ids=["error", "out-of-memory"]
)
def test_exception_inside_the_capture(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    MISHAP.error = error
    call = compiled(function)
    expect_right(call, times=6)
    assert MISHAP.raised, "the function was never captured: this test has lost its meaning"
    found = warnings(caplog)
    assert len(found) == 1, found
    assert str(error).split(".")[0] in found[0], found[0]
    expect_others_replay()


def test_exception_that_passes_lets_a_later_call_work() -> None:
    MISHAP.error = torch.OutOfMemoryError("CUDA out of memory.")
    call = compiled(function)
    expect_right(call, times=2)
    MISHAP.error = None
    counting = Counting()
    expect_right(call, times=4)
    assert counting.replays >= 2, f"an out-of-memory was taken as final; {counting}"


def test_exception_of_the_users_own_operator_is_the_users() -> None:
    call = compiled(function)
    expect_right(call, times=1)
    MISHAP.error, MISHAP.always = LookupError("mine"), True
    for _ in range(3):
        with pytest.raises(LookupError, match="mine"):
            call(randn(64, 64))
    MISHAP.error = None
    expect_right(call, times=4)
    expect_others_replay()


def test_ctrl_c_inside_the_capture_is_an_interrupt_and_nothing_else() -> None:
    call = compiled(function)
    expect_right(call, times=1)
    MISHAP.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        call(randn(64, 64))
    MISHAP.error = None
    counting = Counting()
    expect_right(call, times=5)
    assert counting.replays >= 3, f"the interrupt was taken as a reason against graphs; {counting}"
    expect_others_replay()


def test_memory_that_runs_out_while_recording() -> None:
    """The process may take only a little more than it has: a private pool for large intermediates does not fit."""

    def large(x: torch.Tensor) -> torch.Tensor:
        return ((x @ x).relu() @ x).relu().sum()

    call = compiled(large)
    total = torch.cuda.get_device_properties(0).total_memory
    x = randn(4096, 4096)
    wanted = call(x).clone()
    try:
        torch.cuda.empty_cache()
        ceiling = torch.cuda.memory_reserved() + 200 * MIB
        torch.cuda.set_per_process_memory_fraction(ceiling / total)
        for _ in range(4):
            torch.testing.assert_close(call(x), wanted, rtol=1e-2, atol=1e-2)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    for _ in range(3):
        torch.testing.assert_close(call(x), wanted, rtol=1e-2, atol=1e-2)
    expect_others_replay()


def with_host_node(x: torch.Tensor) -> torch.Tensor:
    """Adds a host function (C's `free` of nothing) to the stream: a node whose effects nobody can see."""
    libcuda, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    status = libcuda.cuLaunchHostFunc(stream, ctypes.cast(libc.free, ctypes.c_void_p), ctypes.c_void_p(None))
    assert status == 0, f"cuLaunchHostFunc: {status}"
    return x * 2


def test_node_of_a_kind_we_do_not_know(caplog: pytest.LogCaptureFixture) -> None:
    host = opaque("host_node", "(Tensor x) -> Tensor", with_host_node, like_first)
    call, counting = compiled(lambda x: host(x + 1).relu()), Counting()
    expect_right(call, times=6)
    assert counting.replays or counting.reasons, f"neither replayed nor a reason; {counting}"
    assert counting.replays or len(warnings(caplog)) == 1, warnings(caplog)
    expect_others_replay()


def test_operation_that_a_capture_forbids(caplog: pytest.LogCaptureFixture) -> None:
    synchronizing = opaque(
        "synchronizing", "(Tensor x) -> Tensor", lambda x: x * (2 + 0 * int(x.isnan().sum())), like_first
    )
    call, counting = compiled(lambda x: synchronizing(x + 1).relu()), Counting()
    expect_right(call, times=5)
    assert not counting.replays
    assert len(warnings(caplog)) == 1, warnings(caplog)
    expect_others_replay()


def test_strict_raises_instead_of_falling_back() -> None:
    MISHAP.error = ValueError("no such luck")
    with pygraph_inductor.config.patch(strict=True):
        call = compiled(function)
        expect_right(call, times=1)
        with pytest.raises(Exception, match="no such luck"):
            call(randn(64, 64))
    MISHAP.error = None
    expect_others_replay()


def test_compiled_function_called_inside_the_capture() -> None:
    """An operator that itself calls a compiled function: the inner call is plain while the outer one is captured."""
    inner = compiled(lambda x: x * 2)
    nested = opaque("nested", "(Tensor x) -> Tensor", lambda x: inner(x), like_first)
    for _ in range(4):
        inner(randn(64, 64))
    call, counting = compiled(lambda x: nested(x + 1).relu()), Counting()
    expect_right(call, times=6)
    assert counting.replays >= 3 or counting.reasons, counting


# Captures of the user's own


def test_users_own_graph_around_a_compiled_function() -> None:
    call = compiled(function)
    expect_right(call, times=4)
    x = randn(64, 64)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = call(x)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(y, expected(x))
    counting = Counting()
    expect_right(call, times=3)
    assert counting.replays == 3, counting


# The switches


@pytest.mark.real_seam
def test_compiled_functions_live_through_disable_and_enable() -> None:
    before, counting = compiled(function), Counting()
    expect_right(before, times=4)
    counting.expect(replays=2)
    pygraph_inductor.disable()
    try:
        pygraph_inductor.disable()
        assert not pygraph_inductor.enabled()
        expect_right(before, times=3)
        stock, replays = compiled(lambda x: function(x) + 0), counting.replays
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            x = randn(64, 64)
            torch.testing.assert_close(stock(x), expected(x))
        assert counting.replays == replays, "a function compiled while disabled is replayed by us"
    finally:
        pygraph_inductor.enable()
    pygraph_inductor.enable()
    assert pygraph_inductor.enabled()
    expect_right(before, times=3)
    after, counting = compiled(lambda x: function(x) - 0), Counting()
    expect_right(after, times=5)
    counting.expect(replays=3)


@pytest.mark.real_seam
def test_stock_trees_remain_available() -> None:
    from torch._dynamo.utils import counters

    with pygraph_inductor.config.patch(graph_manager="trees"):
        call, counting = compiled(function), Counting()
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            x = randn(64, 64)
            torch.testing.assert_close(call(x), expected(x))
    assert counting.replays == 0, counting
    assert counters["inductor"]["cudagraph_recorded_non_static_inputs"] > 0, "the stock trees recorded nothing"


@pytest.mark.real_seam
def test_default_mode_is_left_alone() -> None:
    call, counting = torch.compile(function), Counting()
    expect_right(call, times=4)
    assert not counting.replays and not counting.recordings, counting
