"""Aliasing is part of the key: whether and how inputs overlap never makes an answer wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pygraph_inductor.recording.inputs import overlaps
from pygraph_inductor.settings import Settings
from tests.launching import IN_C, needs_launcher
from tests.simulated.hand_written import F32, HandWritten, contents, same_bits


def write_first_read_second(names, x, y):
    names["cpp_fused_0"](x, x)
    out = names["empty_strided_cpu"](tuple(y.size()), tuple(y.stride()), F32)
    names["cpp_fused_0"](out, y, x)
    return (out,)


@pytest.fixture(params=[True, False], ids=["native", "python"])
def function(request):
    return HandWritten(write_first_read_second, native=request.param, mutated_inputs=frozenset({0, 1}))


def expect_right(function, memory, first, second):
    """One call on two windows (offset, length) of `memory`, against the plain call on a copy."""
    copy = torch.empty_like(memory).copy_(memory)
    # As misaligned as the original: both start where an allocation starts.
    windows = [memory[offset : offset + length] for offset, length in (first, second)]
    copied = [copy[offset : offset + length] for offset, length in (first, second)]
    want = function.run(copied)
    got = function(*windows)
    assert all(map(same_bits, got, want)) and same_bits(memory, copy)


def memory():
    return torch.randn(256)


APART, SAME, PARTLY = ((0, 32), (64, 32)), ((0, 32), (0, 32)), ((0, 32), (16, 32))


def test_inputs_that_begin_to_overlap(function):
    for windows in [APART] * 4 + [SAME] * 4 + [PARTLY] * 4 + [APART] * 2:
        expect_right(function, memory(), *windows)
    assert function.log.replays == 2 + 2 + 2 + 2 and len(function.recordings) == 3


def test_inputs_that_stop_to_overlap(function):
    for windows in [PARTLY] * 4 + [APART] * 4:
        expect_right(function, memory(), *windows)
    assert function.log.replays == 4 and len(function.recordings) == 2


def test_another_distance_is_another_recording(function):
    for windows in [PARTLY] * 4 + [((0, 32), (24, 32))] * 4 + [((24, 32), (0, 32))] * 4:
        expect_right(function, memory(), *windows)
    assert function.log.replays == 6 and len(function.recordings) == 3


def test_the_same_overlap_elsewhere_is_the_same_recording(function):
    for _ in range(6):
        expect_right(function, memory(), *PARTLY)
    expect_right(function, memory(), (64, 32), (80, 32))
    assert function.log.replays == 5 and len(function.recordings) == 1


@pytest.mark.parametrize("windows", [SAME, PARTLY, ((16, 32), (0, 32)), ((0, 64), (16, 32))])
def test_the_launcher_serves_inputs_that_overlap_as_recorded(windows):
    """Backwards get views of what they also get whole: the way through Python would cost them what graphs save."""
    function = HandWritten(write_first_read_second, mutated_inputs=frozenset({0, 1}))
    for _ in range(6):
        expect_right(function, memory(), *windows)
    (recording,) = function.recordings
    assert (recording.python_replays, recording.count()) == (0 if IN_C else 4, 4)


@needs_launcher("it is compared with Python")
@given(data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_launcher_and_python_see_the_same_overlaps(data):
    """Windows anywhere in one memory: the launcher serves a call exactly if its inputs overlap as when recorded."""
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=5))
    windows = st.tuples(*(st.integers(0, 12) for _ in lengths))

    def body(names, *inputs):
        out = names["empty_strided_cpu"]((8,), (1,), F32)
        names["cpp_fused_0"](out, *inputs)
        return (out,)

    function = HandWritten(body)

    def call(starts):
        block = torch.randn(20 * 64)
        inputs = [block[64 * start : 64 * (start + length)] for start, length in zip(starts, lengths, strict=True)]
        assert torch.equal(function(*inputs)[0], function.run(list(inputs))[0])
        addresses = [tensor.data_ptr() for tensor in inputs]
        return overlaps(addresses, [tensor.nbytes for tensor in inputs])

    recorded = data.draw(windows)
    pattern = call(recorded)
    assert call(recorded) == pattern
    (recording,) = function.recordings
    for _ in range(6):
        before = recording.launcher.counts()[0]
        assert (call(data.draw(windows)) == pattern) == (recording.launcher.counts()[0] > before)


def test_neighbours_that_touch_do_not_overlap(function):
    for windows in [APART] * 3 + [((0, 32), (32, 32))] * 2:
        expect_right(function, memory(), *windows)
    assert function.log.replays == 3 and len(function.recordings) == 1


def test_the_same_overlap_less_aligned_is_not_staged(function):
    """Copies of two inputs that share memory share none."""
    for _ in range(4):
        expect_right(function, memory(), *SAME)
    for _ in range(4):
        expect_right(function, memory(), (3, 32), (3, 32))
    assert sum(recording.player.staged for recording in function.recordings) == 0
    assert function.log.replays == 4 and len(function.recordings) == 2


def test_overlapping_inputs_that_are_written_are_not_recorded_with_the_copy_engine():
    function = HandWritten(write_first_read_second, mutated_inputs=frozenset({0}), settings=Settings(engine="copy"))
    for _ in range(3):
        expect_right(function, memory(), *SAME)
    assert function.log.replays == 0 and any("alias each other" in reason for reason in function.log.reasons)


def test_one_tensor_passed_twice():
    def body(names, x, y):
        x.add_(1)
        return (y * 2, y)

    function = HandWritten(body, mutated_inputs=frozenset({0}))
    for _ in range(5):
        x, other = torch.randn(8), torch.randn(8)
        want = (x + 1) * 2
        out, same = function(x, x)
        assert same is x and torch.equal(out, want)
        out, apart = function(other.clone(), other)
        assert apart is other and torch.equal(out, other * 2)
    assert function.log.replays == 2 + 3, "the write through the other one was found late, which cost a call"


def test_versions_of_views_of_one_tensor_rise_once():
    """They share a counter: a bump for each of them would be one too many."""

    def body(names, x, y):
        x.add_(1)
        return (y.clone(),)

    function = HandWritten(body, mutated_inputs=frozenset({0, 1}))
    for _ in range(5):
        base = torch.randn(16)
        x, y = base[:8], base[:8]
        function(x, y)
        assert (x._version, y._version, base._version) == (1, 1, 1)
    for _ in range(5):
        x, y = torch.randn(8), torch.randn(8)
        function(x, y)
        assert (x._version, y._version) == (1, 0), "only the one that is written"
    assert function.log.replays == 6


def test_gaps_of_a_strided_input_belong_to_somebody_else():
    def body(names, x):
        names["cpp_fused_0"](x, x)
        return (None,)

    function = HandWritten(body, mutated_inputs=frozenset({0}))
    for number in range(6):
        base = torch.randn(64)
        before = contents(base)
        start = 1 if number > 3 else 0  # staged
        function(base[start:40:4])
        changed = contents(base).ne(before).view(-1, 4).any(1).nonzero().view(-1).tolist()
        assert changed == list(range(start, 40, 4))
    assert function.log.replays == 4 and function.recordings[0].player.staged == 2
