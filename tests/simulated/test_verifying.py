"""What verification asks of memory, and of outputs that nobody writes."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pygraph_inductor.driver.protocol import SMALL
from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.recording import verify
from pygraph_inductor.recording.doubts import SOILS
from pygraph_inductor.replay.player import guarded
from pygraph_inductor.settings import Settings
from tests.simulated.hand_written import F32, HandWritten, check

NBYTES = 64 * 64 * 4
# For tests that count attempts, or hide an address from one kernel: with a table there is an attempt more, of other
# kernels, whose addresses the fault does not hide.
ADDRESSES = Settings(engine="auto")


def make() -> tuple[torch.Tensor]:
    return (torch.randn(64, 64),)


def doubled(namespace: dict[str, Any], x: torch.Tensor) -> Any:
    out = namespace["empty_strided_cpu"]((64, 64), (64, 1), F32)
    namespace["cpp_fused_0"](out, x)
    return (out,)


class WithState:
    """As attention without dropout: a state that the operator allocates and no kernel writes.

    `contents` are what a plain call finds there, one byte value a call; None: what free memory was filled with last.
    `remains`: what an intermediate of the same call filled that memory with. `copied`: what a graph copies from there.
    """

    def __init__(
        self,
        contents: Any,
        monkeypatch: pytest.MonkeyPatch,
        remains: int | None = None,
        copied: int | None = None,
        dtype: torch.dtype = torch.int64,
        numel: int = 2,
        others: int = 0,
    ) -> None:
        """`others`: so many operators that allocate nothing come first."""
        self.remains, self.copied, self.dtype, self.numel, self.others = remains, copied, dtype, numel, others
        self.driver = SimulatedDriver()
        self.contents = iter(contents)
        self.free = 1
        self.soiled: list[tuple[int, bool]] = []
        monkeypatch.setattr(self.driver, "soil_free_memory", self._soil)
        self.function = HandWritten(self.body, self.driver)
        self.function.namespace["scratch"] = torch.empty(64, 64)

    def _soil(self, byte: int, small_only: bool = False) -> None:
        self.soiled.append((byte, small_only))
        self.free = byte

    def body(self, namespace: dict[str, Any], x: torch.Tensor) -> Any:
        (out,) = doubled(namespace, x)
        self.free = self.free if self.remains is None else self.remains
        for _ in range(self.others):
            torch.ops.aten.t.default(x)
            torch.ops.aten.neg.out(x, out=namespace["scratch"])
        state = torch.ops.aten.empty.memory_format([self.numel], dtype=self.dtype)
        if not self.driver.is_capturing():
            found = next(self.contents)
            # No launch: a graph knows nothing of it.
            ctypes.memset(state.data_ptr(), self.free if found is None else found, self.numel * self.dtype.itemsize)
        elif self.copied is not None:
            namespace["cpp_fused_1"](state, self.copied)
        return out, state

    def answers_right(self, calls: int) -> None:
        for _ in range(calls):
            inputs = make()
            assert torch.equal(self.function(*inputs)[0], self.function.run(list(inputs))[0])


def test_a_state_that_nobody_writes_is_no_reason_to_run_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    case = WithState(itertools.repeat(None), monkeypatch)
    case.answers_right(6)
    assert case.function.log.replays == 4, case.function.log.reasons


@pytest.mark.parametrize(("numel", "large"), [(SMALL, []), (SMALL + 1, [*SOILS])])
def test_large_memory_is_filled_once_a_call_where_a_large_output_is_in_doubt(
    numel: int, large: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes may be free. Holding them, even shortly, is what statistics of memory show and other threads miss."""
    case = WithState(itertools.repeat(None), monkeypatch, dtype=torch.uint8, numel=numel)
    case.answers_right(3)
    assert case.function.log.replays == 1
    assert case.soiled and [byte for byte, small_only in case.soiled if not small_only] == large


def test_memory_is_filled_before_operators_that_allocate_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find out what is free takes time, and a call may have hundreds of operators."""
    few, many = (WithState(itertools.repeat(None), monkeypatch, others=others) for others in (0, 300))
    for case in (few, many):
        case.answers_right(3)
        assert case.function.log.replays == 1
    assert few.soiled == many.soiled


@pytest.mark.parametrize(
    ("found", "dtype"),
    [
        ([100], torch.int64),
        ([100, 101], torch.int64),
        ([100, 101], torch.uint8),
        *((range(SOILS[0] - before, SOILS[0] + before), torch.uint8) for before in range(3, 9)),
    ],
)
def test_a_value_that_only_the_host_writes_is_missed(
    found: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not it is another one in each call, and by chance what memory was filled with."""
    case = WithState(itertools.cycle(found), monkeypatch, dtype=dtype)
    case.answers_right(6)
    assert case.function.log.replays == 0
    assert any("output 1 of the replay" in reason for reason in case.function.log.reasons)


def test_memory_that_an_intermediate_leaves_behind_is_soiled_before_the_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds the same in every call, as if somebody wrote it."""
    case = WithState(itertools.repeat(None), monkeypatch, remains=7)
    case.answers_right(6)
    assert case.function.log.replays == 4, case.function.log.reasons


@pytest.mark.parametrize(("found", "replays"), [([None], 4), ([100], 0), ([100, 101], 0)])
def test_what_a_graph_has_where_nobody_writes_is_as_good(
    found: Any, replays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's memory is there, and an earlier kernel of the graph has used it."""
    case = WithState(itertools.cycle(found), monkeypatch, copied=5)
    case.function.namespace["cpp_fused_1"] = lambda state, value: state.fill_(value)
    case.answers_right(6)
    assert case.function.log.replays == replays, case.function.log.reasons


def test_memory_that_generated_code_leaves_unwritten_is_soiled_before_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is allocated without an operator."""
    driver = SimulatedDriver()
    free = [7]
    monkeypatch.setattr(driver, "soil_free_memory", lambda byte, small_only=False: free.__setitem__(0, byte))

    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        unwritten = namespace["empty_strided_cpu"]((2,), (1,), torch.int64)
        if not driver.is_capturing():
            ctypes.memset(unwritten.data_ptr(), free[0], 16)
        (out,) = doubled(namespace, x)
        free[0] = 7  # other memory is free then
        return out, unwritten

    function = HandWritten(body, driver)
    for _ in range(4):
        (x,) = make()
        assert torch.equal(function(x)[0], function.run([x])[0])
    assert function.log.replays == 2, function.log.reasons


def test_memory_is_left_alone_where_all_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimulatedDriver()
    monkeypatch.setattr(driver, "soil_free_memory", lambda byte, small_only=False: pytest.fail("soiled"))
    check(HandWritten(doubled, driver), make)


def counted(body: Callable[..., Any], calls: itertools.count[int]) -> Callable[..., Any]:
    """The same, counting how often it is called."""

    def counting(*args: Any) -> Any:
        next(calls)
        return body(*args)

    return counting


def test_verifying_takes_the_memory_of_the_outputs_once() -> None:
    needed = guarded(NBYTES)
    for allowed, again in ((needed, 0), (needed - 1, 1)):  # else one after the other, and the call is made again
        calls = itertools.count()
        function = HandWritten(counted(doubled, calls), settings=Settings(max_verify_bytes=allowed))
        for _ in range(3):
            function(*make())
        assert function.log.replays == 1, function.log.reasons
        assert next(calls) == 4 + again  # the first one, the trial, and two captures


def test_memory_of_the_caller_is_not_counted() -> None:
    """Forwards return parameters, which backwards need; a replay makes none of them anew."""

    def body(namespace: dict[str, Any], x: torch.Tensor, weight: torch.Tensor, cache: torch.Tensor) -> Any:
        view = namespace["reinterpret_tensor"](cache, (8,), (1,), 8)
        return (*doubled(namespace, x), weight, view, namespace["constant"])

    function = HandWritten(body, settings=Settings(max_verify_bytes=guarded(NBYTES)))
    function.namespace["constant"] = torch.randn(3 * NBYTES)
    check(function, lambda: (*make(), torch.randn(3 * NBYTES), torch.randn(3 * NBYTES)))


def noisy(namespace: dict[str, Any], x: torch.Tensor) -> Any:
    (out,) = doubled(namespace, x)
    namespace["noise"](out, x)
    return (out, x)  # what the caller has takes nothing


@pytest.mark.parametrize(("allowed", "replays"), [(guarded(NBYTES) + NBYTES, 3), (guarded(NBYTES) + NBYTES - 1, 0)])
def test_outputs_in_doubt_take_it_twice(allowed: int, replays: int) -> None:
    function = HandWritten(noisy, settings=Settings(max_verify_bytes=allowed))
    counter = itertools.count()

    def noise(out: torch.Tensor, x: torch.Tensor) -> None:
        out.data.add_(1e-6 * (next(counter) % 5))

    function.namespace["cpp_fused_1"] = noise
    function.namespace["noise"] = lambda out, x: function.namespace["cpp_fused_1"](out, x)
    for _ in range(5):
        function(*make())
    assert function.log.replays == replays, function.log.reasons
    if not replays:
        assert any("whether plain calls differ alike needs" in reason for reason in function.log.reasons)


@pytest.mark.parametrize("failing", [[], SOILS[:1], SOILS[1:]])
def test_soiled_calls_leave_no_trace(failing: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In what they write, in random numbers, in versions; nor where they do not come to an end."""
    driver = SimulatedDriver()
    free, to_fail = [1], list(failing)
    monkeypatch.setattr(driver, "soil_free_memory", lambda byte, small_only=False: free.__setitem__(0, byte))

    def body(namespace: dict[str, Any], x: torch.Tensor, state: torch.Tensor) -> Any:
        namespace["cpp_fused_0"](state, x, state)
        noise = torch.ops.aten.rand.default([64, 64])
        if free[0] in to_fail:
            to_fail.clear()
            raise torch.OutOfMemoryError("amidst a soiled call")
        out = namespace["empty_strided_cpu"]((64, 64), (64, 1), F32)
        namespace["cpp_fused_0"](out, x, state, noise)
        unwritten = namespace["empty_strided_cpu"]((2,), (1,), torch.int64)
        if not driver.is_capturing():
            ctypes.memset(unwritten.data_ptr(), free[0], 16)
        return out, unwritten

    function = HandWritten(body, driver, mutated_inputs=frozenset({1}), settings=ADDRESSES)
    for number in range(5):
        (x,), state = make(), torch.randn(64, 64)
        kept, version, random = state.clone(), state._version, torch.get_rng_state()
        out, after = function(x, state)[0], torch.get_rng_state()
        torch.set_rng_state(random)
        want = function.run([x, kept])[0]
        assert torch.equal(out, want) and torch.equal(state, kept), f"call {number}"
        assert torch.equal(after, torch.get_rng_state()), f"call {number}"
        assert state._version == version
    assert not to_fail and function.log.replays == (2 if failing else 3), function.log.reasons


class AddsInSomeOrder:
    """Its graph is off by `factor`, in `elements(replays since a plain call)`; plain calls repeat themselves.

    `into`: the position of what the kernel writes, the output or the input that comes behind it.
    """

    def __init__(
        self, elements: Callable[[int], Sequence[int]], factor: float = 1 + 2e-7, written: bool = False
    ) -> None:
        self.elements, self.factor, self.written = elements, factor, written
        self.replays = 0
        self.plain = False
        self.function = HandWritten(self.body, mutated_inputs=frozenset({1}) if written else frozenset())
        self.function.namespace["cpp_fused_1"] = self.kernel

    def body(self, namespace: dict[str, Any], x: torch.Tensor, state: torch.Tensor) -> Any:
        self.plain = True
        self.replays = 0  # each capture begins anew: one that is refused is followed by one with copies
        (out,) = doubled(namespace, x)
        namespace["cpp_fused_1"](state if self.written else out, x)
        self.plain = False
        return (out,)

    def kernel(self, out: torch.Tensor, x: torch.Tensor) -> None:
        out.data.copy_(x * 3)
        if not self.plain:
            for element in self.elements(self.replays):
                out.data.view(-1)[element] *= self.factor
            self.replays += 1

    def calls(self) -> HandWritten:
        for _ in range(5):
            self.function(torch.rand(64, 64) + 1, torch.zeros(64, 64))
        return self.function


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("elements", [lambda n: [] if n else [17], lambda n: [n % 3, 9] if n < 2 else [n % 2]])
def test_order_that_changes_only_in_graphs_is_no_reason_to_run_plainly(
    elements: Callable[[int], Sequence[int]], written: bool
) -> None:
    """Atomic additions into rows of a table: seldom do three of them meet, and then mostly in one order."""
    function = AddsInSomeOrder(elements, written=written).calls()
    assert function.log.replays == 3, function.log.reasons


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(
    ("elements", "factor"),
    [
        (lambda n: [17], 1 + 2e-7),  # a stale argument is wrong in every replay, however little
        (lambda n: [] if n else [17], 1 + 1e-5),
        (lambda n: [] if n else [17], 0.0),
    ],
)
def test_what_is_wrong_in_each_replay_or_by_more_is_refused(
    elements: Callable[[int], Sequence[int]], factor: float, written: bool
) -> None:
    case = AddsInSomeOrder(elements, factor, written)
    function = case.calls()
    assert function.log.replays == 0
    what = "written input 0" if written else "output 0"
    assert any(f"{what} of the replay is off by" in reason for reason in function.log.reasons), function.log.reasons


@pytest.mark.parametrize("failing", [1, 2])
def test_replays_that_are_asked_again_leave_no_trace(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs, random numbers and versions are as one plain call leaves them, also where a replay fails."""
    case = AddsInSomeOrder(lambda n: [17] if n < 2 else [], written=True)
    torch.manual_seed(3)
    state = torch.zeros(64, 64)
    for number in range(3):
        x = torch.rand(64, 64) + 1
        random, version = torch.get_rng_state(), state._version
        if number == 1 and failing == 2:
            kernel = case.kernel

            def raises(out: torch.Tensor, x: torch.Tensor) -> None:
                if not case.plain and case.replays == 1:
                    raise RuntimeError("lost")
                kernel(out, x)

            case.function.namespace["cpp_fused_1"] = raises
        case.function(x, state)
        assert torch.equal(torch.get_rng_state(), random)
        assert state._version == version
        assert torch.equal(state, x * 3)


class HidesAnAddress:
    """`first` is not told where its first tensor is, an output or the written input; `second` makes the output.

    `noisy`: a graph is off by the last place of one element in its first replay.
    """

    def __init__(
        self, first: Callable[..., Any], second: Callable[..., Any], written: bool = False, noisy: bool = False
    ) -> None:
        driver = SimulatedDriver()
        driver.faults.hides = lambda name, argument: name == "cpp_fused_1" and argument == 0
        self.second, self.written, self.noisy = second, written, noisy
        self.replays = 0
        self.plain = False
        mutated = frozenset({1}) if written else frozenset()
        self.function = HandWritten(self.body, driver, mutated_inputs=mutated, settings=ADDRESSES)
        self.function.namespace |= {"cpp_fused_1": first, "cpp_fused_2": self.kernel}

    def body(self, namespace: dict[str, Any], x: torch.Tensor, state: torch.Tensor) -> Any:
        self.plain = True
        self.replays = 0
        out = namespace["empty_strided_cpu"]((64, 64), (64, 1), F32)
        if not self.written:
            namespace["cpp_fused_1"](out)
        namespace["cpp_fused_2"](out, x)
        if self.written:
            namespace["cpp_fused_1"](state, out)
        self.plain = False
        return (out,)

    def kernel(self, out: torch.Tensor, x: torch.Tensor) -> None:
        self.second(out.data, x)
        if self.noisy and not self.plain:
            out.data[0, 0] *= 1 if self.replays else 1 + 2e-7
            self.replays += 1

    def is_served_by_copies(self) -> None:
        for number in range(5):
            x, state = torch.rand(64, 64) + 1, torch.zeros(64, 64)
            (want,) = self.function.run([x, state.clone()])
            assert torch.allclose(self.function(x, state)[0], want, rtol=1e-6, atol=0) and not state.any()
            if number == 1:  # before it is replayed: a graph with that address would write to memory that is gone
                assert set(self.function.recordings[0].log.slots) == {"copy"}
        assert self.function.log.replays == 3, self.function.log.reasons


def test_what_a_replay_writes_to_a_stand_in_is_not_there_in_the_next() -> None:
    """A workspace of zeros, which a call leaves as it found it, matters little where it is added to large numbers."""

    def add(state: torch.Tensor, out: torch.Tensor) -> None:
        out.data.add_(state)
        state.data.zero_()

    HidesAnAddress(add, lambda out, x: out.copy_(x * 3e6), written=True).is_served_by_copies()


@pytest.mark.parametrize("combine", [torch.add, torch.maximum])
def test_a_sum_that_begins_with_what_was_there_is_refused(combine: Callable[..., torch.Tensor]) -> None:
    """However little that changes now: in later calls it is anything."""
    zero = lambda out: out.data.zero_()
    HidesAnAddress(zero, lambda out, x: out.copy_(combine(out, x))).is_served_by_copies()


def test_replays_that_are_asked_again_begin_with_something_else() -> None:
    """A minimum of what was there and something smaller is as it should be."""
    much = lambda out: out.data.fill_(1e9)
    HidesAnAddress(much, lambda out, x: out.copy_(torch.minimum(out, x)), noisy=True).is_served_by_copies()


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 16), (2.0, 3)])
def test_plain_calls_that_take_long_are_asked_a_few_times_only(
    seconds: float, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each varies a little, and the replay by more: as many as may be would be a minute of one training step."""
    clock = itertools.count(0.0, seconds)
    monkeypatch.setattr(verify, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    plain, numbers = [False], itertools.count()
    calls = [0]

    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        plain[0] = True
        (out,) = doubled(namespace, x)
        namespace["cpp_fused_1"](out, x)
        plain[0] = False
        return (out,)

    def kernel(out: torch.Tensor, x: torch.Tensor) -> None:
        calls[0] += plain[0]
        out.data.copy_(x * 3)
        out.data[0, 0] += 1e-3 * (next(numbers) % 3) if plain[0] else 100.0

    function = HandWritten(body, settings=ADDRESSES)
    function.namespace["cpp_fused_1"] = kernel
    for _ in range(3):
        function(*make())
    assert function.log.replays == 0
    attempts = 3  # told the addresses, with copies of the graph's, with copies of Python's
    assert calls[0] == 3 + attempts * (1 + asked), function.log.reasons  # one of them in memory that was filled
