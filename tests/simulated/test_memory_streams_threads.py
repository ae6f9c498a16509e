"""Memory of recordings comes and goes with them; streams and threads that share a pool never run at the same time."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch

from pygraph_inductor.driver.protocol import NodeKind
from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.recording import trial
from pygraph_inductor.replay import player
from pygraph_inductor.settings import Settings
from tests.simulated.hand_written import F32, HandWritten, check, same_bits


def body(names, x):
    mixed = names["empty_strided_cpu"](tuple(x.size()), tuple(x.stride()), F32)
    names["cpp_fused_0"](mixed, x)
    out = names["empty_strided_cpu"](tuple(x.size()), tuple(x.stride()), F32)
    names["cpp_fused_0"](out, mixed, x)
    return (out,)


def randn(n=64):
    return torch.randn(n)


@pytest.fixture
def own():
    """A driver that nobody else uses; nor does garbage hold pools of another one, which are known by their streams."""
    gc.collect()
    return SimulatedDriver()


def held(driver):
    gc.collect()
    driver.release_cached()
    return driver.arena.allocated_bytes, driver.arena.reserved_bytes


# Memory


def test_memory_is_back_when_the_function_is_gone(own):
    function = HandWritten(body, own)
    check(function, lambda: [randn(1 << 16)])
    assert held(own)[1] > 0
    del function
    assert held(own) == (0, 0)


def test_intermediates_of_several_recordings_share_memory(own):
    function = HandWritten(body, own)
    for n in (1000, 1000, 1000):
        function(randn(n))
    one = held(own)[1]
    for n in (900, 800, 700, 600):
        for _ in range(3):
            function(randn(n))
    assert len(function.recordings) == 5 and held(own)[1] == one


def test_no_recording_keeps_memory_allocated(own):
    """Blocks are free between captures; only the pool holds them."""
    function = HandWritten(body, own)
    check(function, lambda: [randn()])
    assert held(own)[0] == 0


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_least_recently_used_recordings_go_first(own, cap):
    function = HandWritten(body, own, settings=Settings(max_recordings=cap))
    sizes = [10, 20, 30, 40]
    for n in sizes:
        for _ in range(3):
            function(randn(n))
        if cap > 1:
            function(randn(sizes[0]))  # used all the time
    kept = sorted(r.player.plan.slots[0].layout.size[0] for r in function.recordings)
    assert len(kept) == cap and 40 in kept and (cap == 1 or 10 in kept)
    assert function.log.retired == 4 - cap and len(function.log.recordings) == cap
    check(function, lambda: [randn(40)], calls=2, replays=function.log.replays + 2)


def test_what_is_retired_is_closed_at_once(own):
    function = HandWritten(body, own, settings=Settings(max_recordings=1))
    for _ in range(3):
        function(randn(10))
    (kept,) = function.recordings
    for _ in range(2):
        function(randn(20))
    assert kept.closed and kept.graph.closed, "whoever still refers to it"
    with pytest.raises(RuntimeError, match="closed"):
        kept.graph.replay()


def test_a_thousand_shapes_stay_under_the_cap(own):
    function = HandWritten(body, own, settings=Settings(max_recordings=8))
    for n in range(1, 301):
        for _ in range(2):
            function(randn(n))
    assert len(function.recordings) == 8 and function.log.retired == 292
    assert held(own)[1] <= 4 << 20 and len(function.function._entries) <= 64


def test_failed_captures_leave_no_memory(own):
    def reading(names, x):
        y = torch.ops.aten.cumsum.default(x, 0)
        return (y * y.sum().item(),)

    function = HandWritten(reading, own)
    check(function, lambda: [randn(1 << 16)], replays=0)
    assert held(own) == (0, 0)


def test_out_of_memory_for_an_output_is_answered_plainly(own):
    function = HandWritten(body, own, native=False)
    check(function, lambda: [randn()], calls=4)
    allocate, calls = own.empty, []

    def once(size, stride, dtype):
        if not calls:
            calls.append(size)
            raise torch.OutOfMemoryError("no memory for an output")
        return allocate(size, stride, dtype)

    own.empty = once
    check(function, lambda: [randn()], calls=3, replays=2 + 2)
    assert calls and any("out of memory" in reason for reason in function.log.reasons)


def test_a_plain_call_has_the_memory_of_the_replay_that_ran_out_of_it(own, monkeypatch):
    """The exception must not hold what had been allocated until then: the plain call may need just that."""
    function = HandWritten(body, own, native=False)
    aligned = lambda: [randn(80)[16:]]
    check(function, aligned, calls=4)
    made, held = [], []
    empty, run = own.empty, function.function._run

    def noted(size, stride, dtype):
        tensor = empty(size, stride, dtype)
        made.append(weakref.ref(tensor))
        return tensor

    def short(*_):
        raise torch.OutOfMemoryError("no memory for an aligned copy")

    def plain(inputs):
        held.append([ref() is not None for ref in made])
        return run(inputs)

    monkeypatch.setattr(player, "aligned_buffer", short)
    own.empty, function.function._run = noted, plain
    check(function, lambda: [randn(65)[1:]], calls=1, replays=2)
    assert held == [[False]], "an output of the replay"


def test_a_plain_call_has_the_memory_of_a_trial_that_could_not_be_tried(own, monkeypatch):
    def short(tensors):
        raise torch.OutOfMemoryError("no memory for a digest")

    made, held = [], []

    class Noted(trial.Kept):
        def __init__(self, tensors):
            super().__init__(tensors)
            made.append(weakref.ref(self))

    def writing(names, x):
        held.append([ref() is not None for ref in made])
        x.add_(1)
        return (x,)

    monkeypatch.setattr(trial, "digests", short)
    monkeypatch.setattr(trial, "Kept", Noted)
    function = HandWritten(writing, own, mutated_inputs=frozenset({0}))
    function(randn())
    x = randn()
    alive = weakref.ref(x)
    gc.disable()
    try:
        function(x)
        del x
        assert alive() is None, "a cycle holds what the call was about"
    finally:
        gc.enable()
    assert held == [[], [False]]


def test_nothing_is_closed_amidst_a_capture_of_the_users(own):
    """Destroying a graph breaks a capture of the same thread. What another thread has just retired can wait."""
    function = HandWritten(body, own)
    check(function, lambda: [randn()], calls=4)
    (recording,) = function.recordings
    with function.function._entries.lock:
        function.function._entries.retire(next(iter(function.function._entries)))
    closed = []

    def users():
        function(randn())
        closed.append(recording.closed)

    own.capture(users, own.new_pool(), {})
    assert closed == [False]
    function(randn())
    assert recording.closed


# Streams


def test_streams_have_pools_of_their_own(own):
    function, other = HandWritten(body, own), HandWritten(body, own)
    with own.stream("first"):
        check(function, lambda: [randn()])
    with own.stream("second"):
        check(other, lambda: [randn()])
    assert function.recordings[0].pool is not other.recordings[0].pool and not own.waits


@pytest.mark.parametrize("native", [True, False])
def test_a_stream_that_takes_over_waits_for_the_one_before(own, native):
    function = HandWritten(body, own, native=native)
    with own.stream("first"):
        check(function, lambda: [randn()], calls=3, replays=1)
    with own.stream("second"):
        check(function, lambda: [randn()], calls=3, replays=4)
    assert own.waits == [("second", "first")]
    with own.stream("first"):
        check(function, lambda: [randn()], calls=1, replays=5)
    assert own.waits == [("second", "first"), ("first", "second")]


def test_recordings_of_one_pool_wait_for_each_other_across_streams(own):
    function, other = HandWritten(body, own), HandWritten(body, own)
    with own.stream("first"):
        check(function, lambda: [randn()], calls=3)
        check(other, lambda: [randn()], calls=3)
    with own.stream("second"):
        function(randn())
    with own.stream("first"):
        other(randn())
    assert own.waits == [("second", "first"), ("first", "second")]


@pytest.mark.parametrize("refused", [False, True], ids=["by the graph", "by the player"])
@pytest.mark.parametrize("native", [True, False])
def test_a_stream_that_takes_over_shares_the_buffers_of_copies(own, native, refused):
    """Their memory is of the stream that recorded. It may be freed while the other one still has a replay to run."""
    if refused:
        own.faults.refuses = lambda node: node.kind is NodeKind.MEMCPY
    function, other = (HandWritten(body, own, native=native, settings=Settings(engine="copy")) for _ in range(2))
    with own.stream("first"):
        check(function, lambda: [randn()], calls=3)
        check(other, lambda: [randn()], calls=3)
    assert not own.shared, "nobody else has used it"
    players = [one.recordings[0].player for one in (function, other)]
    buffers = [buffer.data_ptr() for one in players for buffer in (one._staging or one._inside).values()]
    assert len(buffers) == 4
    with own.stream("second"):
        check(function, lambda: [randn()], calls=2, replays=3)
        check(other, lambda: [randn()], calls=2, replays=3)  # the launcher in C need not ask whose stream it is
    assert sorted(own.shared) == sorted(("second", buffer) for buffer in buffers)
    del other, players
    gc.collect()
    own.shared.clear()
    with own.stream("first"):
        function(randn())
    assert len(own.shared) == 2, "those that are gone are nobody's any more"


# Threads


def in_threads(work, count=4):
    errors = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def slow(out, *inputs):
    """Gives other threads their chance in the middle of a launch."""
    result = sum(x.double().sum() for x in inputs)
    time.sleep(0.0005)
    out.data.copy_(inputs[0] * 2 + result)


@pytest.mark.parametrize("streams", ["one stream", "a stream each"])
@pytest.mark.parametrize("native", [True, False])
def test_threads_from_the_first_call_on(own, native, streams):
    def two_steps(names, x):
        mixed = names["empty_strided_cpu"]((64,), (1,), F32)
        names["cpp_fused_1"](mixed, x)
        out = names["empty_strided_cpu"]((64,), (1,), F32)
        names["cpp_fused_1"](out, mixed, x)
        return (out,)

    function = HandWritten(two_steps, own, native=native)
    function.namespace["cpp_fused_1"] = slow
    original = dict(function.namespace)
    plain = HandWritten(two_steps, own)
    plain.namespace["cpp_fused_1"] = slow
    barrier = threading.Barrier(4)

    def work(number):
        barrier.wait()
        generator = torch.Generator().manual_seed(number)
        with own.stream("shared" if streams == "one stream" else f"stream {number}"):
            for call in range(12):
                x = torch.randn(64, generator=generator)
                (got,), (want,) = function(x), plain.run([x])
                assert same_bits(got, want), f"thread {number}, call {call}"

    in_threads(work)
    assert function.namespace == original, "what a capture replaces is put back"
    assert function.log.replays >= 30, function.log.reasons


def test_eviction_while_another_thread_replays(own):
    function = HandWritten(body, own, settings=Settings(max_recordings=1))

    def work(number):
        for call in range(20):
            x = torch.randn(8 + (number + call) % 3)
            (got,) = function(x)
            (want,) = function.run([x])
            assert same_bits(got, want)

    in_threads(work)
    assert len(function.recordings) <= 1


@pytest.mark.parametrize("native", [True, False])
def test_an_operator_waits_for_a_thread_that_calls_another_function(own, native):
    """As one that computes gradients does: autograd's threads call compiled backwards."""
    inner = HandWritten(body, own, native=native)
    check(inner, lambda: [randn()], calls=4)
    numbers = []

    def waiting(names, x):
        if not own.is_capturing():
            thread = threading.Thread(target=lambda: numbers.append(inner(x)), daemon=True)
            thread.start()
            thread.join(20)
            assert not thread.is_alive(), "it waits for the thread that waits for it"
            assert same_bits(numbers[-1][0], inner.run([x])[0])
        return (x + len(numbers) * (not own.is_capturing()),)  # the replay is wrong, so plain calls are repeated

    outer = HandWritten(waiting, own, native=native)
    for _ in range(3):
        outer(randn())
    assert len(numbers) > 4


def test_another_function_is_called_while_one_is_captured(own):
    """Captures are of one thread: what others run meanwhile is neither captured nor disturbed."""
    inside, done = threading.Event(), threading.Event()

    def waiting(names, x):
        if own.is_capturing():
            inside.set()
            assert done.wait(10)
        return (x + 1,)

    first, second = HandWritten(waiting, own, "first"), HandWritten(body, own, "second")

    def work(number):
        if number == 0:
            check(first, lambda: [randn()], calls=3)
            return
        assert inside.wait(10)
        x = randn()
        (got,) = second(x)
        (want,) = second.run([x])
        assert same_bits(got, want)
        done.set()

    in_threads(work, count=2)
    assert first.recordings[0].log.nodes == {"kernel": 1}
