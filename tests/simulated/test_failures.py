"""When something goes wrong: the right answer or the user's own exception, one warning, and the next call works."""

from __future__ import annotations

import itertools
import logging

import pytest
import torch

import pygraph_inductor
from pygraph_inductor.driver.protocol import NodeKind
from pygraph_inductor.settings import Settings
from tests.launching import needs_launcher
from tests.simulated.hand_written import F32, HandWritten, check


def doubled(names, x):
    mixed = names["empty_strided_cpu"]((64,), (1,), F32)
    names["cpp_fused_0"](mixed, x)
    out = names["empty_strided_cpu"]((64,), (1,), F32)
    torch.mul(mixed, 2, out=out)
    return (out,)


def make():
    return [torch.randn(64)]


class Troubled(HandWritten):
    """`doubled`, but `trouble()` is called first in every capture."""

    def __init__(self, driver, trouble, **facts):
        self.captures = 0

        def body(names, x):
            if driver.is_capturing():
                self.captures += 1
                trouble()
            return doubled(names, x)

        super().__init__(body, driver, "troubled", **facts)


def raising(error):
    def trouble():
        raise error

    return trouble


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "pygraph_inductor" and r.levelno >= logging.WARNING]


def expect_others_replay(driver):
    check(HandWritten(doubled, driver, "another"), make)


# Inside the capture


@pytest.mark.parametrize("kind", [ValueError, AssertionError, RuntimeError])
def test_exception_inside_the_capture(driver, caplog, kind):
    before = HandWritten(doubled, driver, "before")
    check(before, make, calls=4)
    function = Troubled(driver, raising(kind("no such luck")))
    check(function, make, replays=0)
    (warning,) = warnings(caplog)
    assert "troubled" in warning and "no such luck" in warning and "without a graph" in warning and "strict" in warning
    assert function.captures == 1, "it would go wrong again"
    check(before, make, calls=2, replays=4)
    expect_others_replay(driver)


def test_interrupt_inside_the_capture(driver, caplog):
    trouble = [KeyboardInterrupt()]
    function = Troubled(driver, lambda: raising(trouble[0])() if trouble else None)
    function(*make())
    with pytest.raises(KeyboardInterrupt):
        function(*make())
    assert not driver.is_capturing() and function.namespace["cpp_fused_0"].__name__ == "fused"
    trouble.clear()
    check(function, make, calls=4, replays=3)
    assert not warnings(caplog)
    expect_others_replay(driver)


def interrupted_once(function):
    came = []

    def call(*args):
        if not came:
            came.append(None)
            raise KeyboardInterrupt
        return function(*args)

    return call


INTERRUPTIONS = {
    "asking for the stream": lambda driver: (driver, "current_stream"),
    "asking who sees what is saved": lambda driver: (torch, "is_inference_mode_enabled"),
    "updating a node": lambda driver: (driver.faults, "refuses"),
}


@needs_launcher("interrupts come inside of it")
@pytest.mark.parametrize("during", INTERRUPTIONS)
def test_interrupt_inside_the_launcher(driver, caplog, during, monkeypatch):
    """It comes wherever Python code runs. It is the user's, and nothing is left half done."""
    body = lambda names, x: (*doubled(names, x), *doubled(names, x))
    function = HandWritten(body, driver, kind="forward", visible_outputs=frozenset({0}))
    check(function, make, calls=4)
    calls = function.recordings[0].launcher.counts()[0]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        place, name = INTERRUPTIONS[during](driver)
        patch.setattr(place, name, interrupted_once(getattr(place, name)))
        function(*make())
    assert not function.recordings[0].pool.busy_word.value
    check(function, make, calls=3, replays=2 + 3)
    assert function.recordings[0].launcher.counts()[0] > calls and not warnings(caplog)


def test_reading_on_the_host_inside_the_capture(driver, caplog):
    function = HandWritten(lambda names, x: (x * x.sum().item(),), driver, "reader")
    check(function, make, replays=0)
    (warning,) = warnings(caplog)
    assert "reader" in warning and "not permitted when stream is capturing" in warning
    expect_others_replay(driver)


def test_out_of_memory_inside_the_capture_passes(driver, caplog):
    function = Troubled(driver, lambda: None)
    function(*make())
    driver.arena.limit = driver.arena.allocated_bytes + 128
    # Not what verification may use, which is asked before.
    free, driver.free_bytes = driver.free_bytes, lambda: 1 << 30
    try:
        check(function, make, calls=1, replays=0)
        assert function.captures == 1 and not warnings(caplog), "it may pass"
        driver.arena.limit = None
        check(function, make, calls=3, replays=2)
    finally:
        del driver.free_bytes
        assert driver.free_bytes == free


def test_out_of_memory_for_ever_is_a_plain_function(driver, caplog):
    function = Troubled(driver, raising(torch.OutOfMemoryError("no memory left")))
    check(function, make, calls=8, replays=0)
    (warning,) = warnings(caplog)
    assert "no memory left" in warning and 1 < function.captures < 6


def test_too_little_memory_to_verify(driver, caplog):
    function = HandWritten(doubled, driver, settings=Settings(max_verify_bytes=100))
    check(function, make, replays=0)
    (warning,) = warnings(caplog)
    assert "verifying it needs" in warning and "100 are allowed" in warning


def test_exception_of_the_function_is_the_users(driver, caplog):
    angry = []

    def body(names, x):
        if angry:
            raise LookupError("mine")
        return doubled(names, x)

    function = HandWritten(body, driver)
    angry.append(1)
    for _ in range(3):
        with pytest.raises(LookupError, match="mine"):
            function(*make())
    angry.clear()
    check(function, make, calls=4, replays=3)
    assert not warnings(caplog)


def test_strict_raises_what_went_wrong(driver):
    function = Troubled(driver, raising(ValueError("no such luck")), settings=Settings(strict=True))
    function(*make())
    with pytest.raises(ValueError, match="no such luck"):
        function(*make())


# Nodes that we cannot rewrite


def test_node_of_an_unknown_type(driver, caplog):
    driver.faults.unknown = lambda name: name == "aten.mul.out"
    function = HandWritten(doubled, driver)
    check(function, make)
    assert set(function.recordings[0].log.slots) == {"copy"}
    (warning,) = warnings(caplog)
    assert "aten.mul.out" in warning and "staged" in warning


def copied(names, x, y):
    out = names["empty_strided_cpu"]((64,), (1,), F32)
    out.copy_(x)
    y.copy_(x)
    return (out,)


def test_update_that_is_refused_when_recorded(driver, caplog):
    driver.faults.refuses = lambda node: node.kind is NodeKind.MEMCPY
    function = HandWritten(copied, driver, mutated_inputs=frozenset({1}))
    check(function, lambda: make() + make())
    assert set(function.recordings[0].log.slots) == {"copy"} and len(warnings(caplog)) == 1


def test_update_that_is_refused_later_retires_the_recording(driver, caplog):
    function = HandWritten(copied, driver, mutated_inputs=frozenset({1}))
    check(function, lambda: make() + make(), calls=4, replays=2)
    driver.faults.refuses = lambda node: node.kind is NodeKind.MEMCPY
    check(function, lambda: make() + make(), calls=1, replays=2)
    assert function.log.retired == 1 and not function.recordings and len(warnings(caplog)) == 1
    driver.faults.refuses = lambda node: False
    check(function, lambda: make() + make(), calls=3, replays=4)


# Addresses that are in no parameter


def test_hidden_address_of_an_input_is_caught_and_staged(driver, caplog):
    driver.faults.hides = lambda name, argument: name == "aten.mul.out" and argument == 0
    body = lambda names, x, y: (torch.mul(x, y, out=names["empty_strided_cpu"]((64,), (1,), F32)),)
    function = HandWritten(body, driver)
    check(function, lambda: make() + make())
    assert set(function.recordings[0].log.slots) == {"copy"}
    (warning,) = warnings(caplog)
    assert "off by" in warning and "staged" in warning


def test_hidden_address_of_an_output_is_caught_and_staged(driver, caplog):
    driver.faults.hides = lambda name, argument: name == "aten.mul.out" and argument == 2
    function = HandWritten(doubled, driver)
    check(function, make)
    assert set(function.recordings[0].log.slots) == {"copy"} and len(warnings(caplog)) == 1


def test_hidden_address_of_a_written_input_is_caught_and_staged(driver, caplog):
    driver.faults.hides = lambda name, argument: name == "aten.add_.Tensor" and argument == 0
    function = HandWritten(lambda names, x: (x.add_(1), None)[1:], driver, mutated_inputs=frozenset({0}))
    check(function, make)
    assert set(function.recordings[0].log.slots) == {"copy"} and len(warnings(caplog)) == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.complex64])
def test_hidden_address_is_caught_whatever_the_values(driver, dtype):
    """Stand-ins hold other values than any input: indices that are valid, numbers that are finite."""
    driver.faults.hides = lambda name, argument: name == "cpp_fused_0" and argument == 1

    def body(names, x):
        out = names["empty_strided_cpu"]((64,), (1,), torch.float64)
        names["cpp_fused_0"](out, x)
        return (out,)

    with pygraph_inductor.config.patch(engine="patch"):  # a twin has no address of a slot that could be hidden
        function = HandWritten(body, driver)
    check(function, lambda: [torch.randint(0, 9, (64,)).to(dtype)])
    assert set(function.recordings[0].log.slots) == {"copy"}


def test_hidden_address_is_caught_when_the_input_is_all_zeros(driver):
    driver.faults.hides = lambda name, argument: name == "aten.mul.out" and argument == 0
    body = lambda names, x: (torch.mul(x, 2, out=names["empty_strided_cpu"]((64,), (1,), F32)),)
    function = HandWritten(body, driver)
    for number in range(5):
        x = torch.zeros(64) if number < 2 else torch.randn(64)
        assert torch.equal(function(x)[0], x * 2)
    assert set(function.recordings[0].log.slots) == {"copy"}


def test_hidden_indices_stay_in_range(driver):
    driver.faults.hides = lambda name, argument: "index_select" in name and argument == 2
    body = lambda names, table, index: (torch.index_select(table, 0, index),)
    function = HandWritten(body, driver)
    check(function, lambda: [torch.randn(5, 3), torch.randint(0, 5, (7,))])
    assert set(function.recordings[0].log.slots) == {"copy"}


# Functions that are not the same in two calls


def test_inputs_are_as_the_plain_call_left_them_whatever_verification_did(driver):
    """A kernel that fails in the middle of a replay, and only there."""

    def failing_in_replays(out, x):
        if driver.is_capturing():
            raise RuntimeError("not in a replay")
        out.data.copy_(x)

    def body(names, x):
        x.add_(1)
        out = names["empty_strided_cpu"]((64,), (1,), F32)
        names["cpp_fused_1"](out, x)
        return (x.mul_(2), out)

    function = HandWritten(body, driver, mutated_inputs=frozenset({0}))
    function.namespace["cpp_fused_1"] = failing_in_replays
    check(function, make, replays=0)
    assert "not in a replay" in function.log.reasons[0]


def test_function_that_does_something_else_when_captured(driver, caplog):
    function = HandWritten(lambda names, x: (x + (2 if driver.is_capturing() else 1),), driver, "two-faced")
    check(function, make, replays=0)
    assert any("two-faced: output 0 of the replay is off by 1" in warning for warning in warnings(caplog))


def test_shapes_that_change_behind_the_key(driver, caplog):
    count = []

    def body(names, x):
        count.append(1)
        return (names["empty_strided_cpu"]((len(count) + 1,), (1,), F32).fill_(1),)

    function = HandWritten(body, driver)
    for _ in range(5):
        now = len(count) + 1
        assert function(*make())[0].numel() == now + 1
    assert function.log.replays == 0 and len(warnings(caplog)) == 1


def test_noise_of_the_plain_call_is_allowed_and_more_is_not(driver, caplog):
    generator = torch.Generator().manual_seed(0)
    noise = [1e-3]

    def noisy(out, x):
        out.copy_(x + torch.rand(64, generator=generator) * noise[0])

    def body(names, x):
        out = names["empty_strided_cpu"]((64,), (1,), F32)
        names["cpp_fused_1"](out, x)
        return (out,)

    function = HandWritten(body, driver)
    function.namespace["cpp_fused_1"] = noisy
    for _ in range(4):
        x = torch.randn(64)
        torch.testing.assert_close(function(x)[0], x, atol=2e-3, rtol=0)
    assert function.log.replays == 2
    assert not warnings(caplog)


@pytest.mark.parametrize(("late", "is_refused"), [(12, False), (8, True)])
def test_noise_that_few_plain_calls_show_is_looked_for_in_more(driver, caplog, late, is_refused):
    """Which additions an atomic sum does last is chance, and so is how many elements show it."""
    # How many elements each run of the kernel rounds otherwise: a plain call, the trial, the replay, plain calls.
    differing = itertools.chain([0, 0, 40], [8] * 6, itertools.repeat(late))

    def rounded(out, x):
        out.copy_(x)
        out[: next(differing)] += 1e-6

    def body(names, x):
        out = names["empty_strided_cpu"]((64,), (1,), F32)
        names["cpp_fused_1"](out, x)
        return (out,)

    function = HandWritten(body, driver)
    function.namespace["cpp_fused_1"] = rounded
    for _ in range(5):
        function(torch.ones(64))
    assert ("differs in 40 elements, plain calls in 8" in caplog.text) == is_refused
    assert function.log.replays == 3


def test_random_state_that_a_replay_would_leave_otherwise(driver):
    """A kernel that draws on the host is not replayed by a graph; here the wrapper itself does."""

    def body(names, x):
        torch.default_generator.manual_seed(int(torch.default_generator.initial_seed()) + 1)
        return (x + 1,)

    function = HandWritten(body, driver)
    check(function, make, calls=4, replays=0)


def test_constants_of_the_module_are_read_where_they_are(driver):
    constant = torch.randn(64)

    def body(names, x):
        return (x + names["constant_0"], names["constant_0"])

    function = HandWritten(body, driver)
    function.namespace["constant_0"] = constant
    for _ in range(5):
        x = torch.randn(64)
        out, same = function(x)
        assert torch.equal(out, x + constant) and same is constant
    assert function.log.replays == 3


def test_output_in_memory_of_the_host_is_not_replayed(driver):
    function = HandWritten(lambda names, x: (x + 1, [1, 2]), driver)
    for _ in range(4):
        x = torch.randn(4)
        assert torch.equal(function(x)[0], x + 1)
    assert function.log.replays == 0 and "is a list" in function.log.reasons[0]
