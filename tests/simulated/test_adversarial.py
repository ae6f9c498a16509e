"""What a second reader tried in order to break recording and replay, kept as tests."""

from __future__ import annotations

import ctypes

import pytest
import torch

from pygraph_inductor.driver.protocol import NodeKind
from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.settings import Settings
from tests.simulated.hand_written import F32, HandWritten, check, contents


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request):
    return request.param


@pytest.mark.parametrize("lazy", [torch._neg_view, lambda x: torch._efficientzerotensor(x.size())], ids=["neg", "zero"])
def test_tensors_that_mean_something_else_than_their_memory_are_not_replayed(native, lazy):
    """Aligned and laid out as when recorded: nothing but its dispatch keys tells such a tensor apart."""
    function = HandWritten(lambda names, x: (x * 2,), native=native)
    for _ in range(3):
        function(torch.randn(64))
    x = lazy(torch.randn(64))
    assert torch.equal(function(x)[0], x * 2)
    assert function.log.replays == 1


class Counting(SimulatedDriver):
    """Counts captures."""

    captures = 0

    def capture(self, *args, **kwargs):
        self.captures += 1
        return super().capture(*args, **kwargs)


def copied(names, x):
    out = names["empty_strided_cpu"](tuple(x.size()), (1,), F32)
    out.copy_(x)
    return (out,)


def test_a_key_whose_updates_are_always_refused_is_not_recorded_for_ever(native, monkeypatch):
    """The executable graph takes the addresses of the recorded call, and no others."""
    driver = Counting()
    function = HandWritten(copied, driver, native=native)
    kept = []  # no call has the addresses of another one
    for number in range(30):
        x = torch.randn(64)
        before = driver.captures
        driver.faults.refuses = lambda node: driver.captures == before and node.kind is NodeKind.MEMCPY
        kept += [x, *function(x)]
        assert torch.equal(kept[-1], x), number
    assert driver.captures == 6 and not function.recordings
    assert any("does not accept" in reason for reason in function.log.reasons)


def test_more_shapes_in_turn_than_recordings_are_not_recorded_for_ever(native, caplog):
    driver = Counting()
    function = HandWritten(copied, driver, native=native, settings=Settings(max_recordings=2))
    for number in range(60):
        x = torch.randn(10 * (number % 4 + 1))
        assert torch.equal(function(x)[0], x)
    assert driver.captures <= 4 * 3 * 2 and function.log.replays >= 2 * 8
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "hand-written" in warning and "config.max_recordings" in warning


def test_no_recordings_allowed_means_none_is_made(native):
    driver = Counting()
    function = HandWritten(copied, driver, native=native, settings=Settings(max_recordings=0))
    for _ in range(5):
        function(torch.randn(8))
    assert driver.captures == 0 and function.log.plain_calls == 5


@pytest.mark.parametrize(
    ("one", "other"),
    [(torch.tensor([0.0]), torch.tensor([-0.0])), (torch.tensor([2**60 + 1]), torch.tensor([2**60 + 2]))],
    ids=["sign of zero", "beyond float64"],
)
def test_a_replay_that_is_off_by_what_float64_cannot_see_is_not_trusted(one, other):
    """The plain call repeats bit for bit, and the graph holds something else."""
    driver = SimulatedDriver()

    def body(names, x):
        return (torch.where(x > 0, other if driver.is_capturing() else one, x.to(one.dtype)),)

    function = HandWritten(body, driver)
    for _ in range(5):
        assert contents(function(torch.ones(1))[0]).tolist() == contents(one).tolist()
    assert function.log.replays == 0


def test_a_view_of_a_constant_is_a_new_object_in_every_call(native):
    """Autograd gives outputs their history in place: one object cannot be the output of two calls."""

    def body(names, x):
        return (x + 1, names["reinterpret_tensor"](names["constant_0"], (4,), (1,), 0))

    function = HandWritten(body, native=native)
    function.namespace["constant_0"] = torch.randn(8)
    views = [function(torch.randn(8))[1] for _ in range(5)]
    assert len({id(view) for view in views}) == 5


@pytest.mark.parametrize("call", [1, 2], ids=["before the call", "after the call"])
def test_no_memory_to_watch_the_call_is_not_the_users_problem(native, monkeypatch, call):
    """Digests need memory of their own, whether the plain call would get by or not."""
    from pygraph_inductor.recording import trial

    digests, calls = trial.digests, []

    def failing(tensors):
        calls.append(None)
        if len(calls) == call:
            raise torch.OutOfMemoryError("no memory for a digest")
        return digests(tensors)

    monkeypatch.setattr(trial, "digests", failing)
    runs = []

    def body(names, x):
        runs.append(None)
        return copied(names, x)

    function = HandWritten(body, native=native)
    for number in range(2):
        x = torch.randn(64)
        assert torch.equal(function(x)[0], x) and len(runs) == number + 1
    check(function, lambda: [torch.randn(64)], calls=3, replays=2)
    assert "no memory for a digest" in function.log.reasons[0]


class ScalarsElsewhere(SimulatedDriver):
    """A device on which tensors without dimensions are not: they are the host's."""

    def owns(self, tensor):
        return super().owns(tensor) and tensor.dim() > 0


def test_a_number_on_the_host_is_written_once_per_call(native):
    """Its value is part of the key, so the function is recorded where the value comes again."""

    def body(names, x, step):
        ctypes.c_float.from_address(step.data_ptr()).value += 1  # as a kernel of the host does it
        return copied(names, x)

    function = HandWritten(body, ScalarsElsewhere(), native=native)
    for _ in range(4):
        x, step = torch.randn(64), torch.tensor(5.0)
        assert torch.equal(function(x, step)[0], x) and step.item() == 6
    assert function.log.replays == 0 and "on the host" in function.log.reasons[0]


def test_memory_that_stays_short_is_one_warning(monkeypatch, caplog):
    """The text of an out-of-memory names how much is free, which changes from call to call."""
    driver = SimulatedDriver()
    function = HandWritten(copied, driver, native=False)
    check(function, lambda: [torch.randn(64)], calls=3)
    calls = []

    def short(*_):
        calls.append(None)
        raise torch.OutOfMemoryError(f"{len(calls)} bytes are free")

    monkeypatch.setattr(driver, "empty", short)
    check(function, lambda: [torch.randn(64)], calls=5, replays=1)
    assert len(calls) == 5 and len(caplog.records) == 1 and len(function.log.reasons) == 1


def test_a_call_from_within_a_replay_does_not_redirect_it(native):
    """What a finalizer or a signal handler may do between an update and its launch; by way of the launcher, too."""

    def body(names, x):
        out = names["empty_strided_cpu"]((8,), (1,), F32)
        names["cpp_fused_0"](out, x)
        return (out,)

    function = HandWritten(body, native=native)
    check(function, lambda: (torch.randn(8),), calls=4)
    (recording,) = function.recordings
    x, inner, got = torch.randn(8), torch.randn(8), []
    replay = recording.graph.replay

    def replay_with_a_call_inside():
        if not got:
            got.append(None)
            got[0] = function(inner)[0]
        replay()

    recording.graph.replay = replay_with_a_call_inside
    (out,) = function.function([x])
    assert torch.equal(out, function.run([x])[0])
    assert torch.equal(got[0], function.run([inner])[0])
