"""Verification where two sets of outputs do not fit into memory: by digests, and the call is answered once more."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.recording.contents import Kept
from pygraph_inductor.replay.player import guarded
from pygraph_inductor.settings import Settings
from tests.simulated.hand_written import F32, HandWritten, check

NBYTES = 64 * 64 * 4
# Guards around two outputs, and the copies of one written input: all but the outputs themselves.
SHORT = Settings(max_verify_bytes=2 * (guarded(NBYTES) - NBYTES) + 2 * NBYTES)


def everything(namespace: dict[str, Any], x: torch.Tensor, state: torch.Tensor) -> Any:
    """Returns what functions return: outputs, views, inputs, constants, numbers; writes to an input; draws numbers."""
    out = namespace["empty_strided_cpu"]((64, 64), (64, 1), F32)
    namespace["cpp_fused_0"](out, x, state)
    other = namespace["empty_strided_cpu"]((64, 64), (1, 64), F32)
    namespace["cpp_fused_0"](other, out)
    torch.ops.aten.add_.Tensor(state, out)
    torch.ops.aten.bernoulli_.float(other)
    view = namespace["reinterpret_tensor"](out, (8,), (1,), 16)
    return out, view, other, x, state, namespace["constant"], 7, None, out


def make() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64, 64), torch.randn(64, 64)


def function_of(body: Callable[..., Any], driver: SimulatedDriver | None = None, **settings: Any) -> HandWritten:
    short = Settings(max_verify_bytes=SHORT.max_verify_bytes, **settings)
    function = HandWritten(body, driver, settings=short, mutated_inputs=frozenset({1}))
    function.namespace["constant"] = torch.randn(4)
    return function


def test_every_call_gives_what_the_plain_call_gives() -> None:
    """The one that was recorded, too, though its first answer was let go; and one that is a bare tensor."""
    check(function_of(everything), make)

    def bare(namespace: dict[str, Any], x: torch.Tensor, state: torch.Tensor) -> Any:
        return everything(namespace, x, state)[0]

    function = function_of(bare)
    for _ in range(4):
        x, state = make()
        wanted = function.run([x, state.clone()])
        assert torch.equal(function(x, state), wanted)
    assert function.log.replays == 2, function.log.reasons


def test_versions_and_random_numbers_move_as_in_one_call() -> None:
    function = function_of(everything)
    for number in range(4):
        x, state = make()
        copy = state.clone()
        torch.manual_seed(number)
        function.run([x, copy])
        random_after, moved = torch.get_rng_state(), copy._version
        torch.manual_seed(number)
        before = state._version
        function(x, state)
        assert torch.equal(torch.get_rng_state(), random_after)
        assert state._version - before == moved and torch.equal(state, copy)


def test_outputs_are_gone_before_anything_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimulatedDriver()
    made: list[weakref.ref[torch.Tensor]] = []
    seen: list[list[bool]] = []
    released: list[int] = []

    def body(namespace: dict[str, Any], x: torch.Tensor, state: torch.Tensor) -> Any:
        returned = everything(namespace, x, state)
        if not driver.is_capturing():
            made.extend(weakref.ref(returned[position]) for position in (0, 1, 2))
        return returned

    capture, release = driver.capture, driver.release_cached

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append([one() is None for one in made])
        assert released
        return capture(*args, **kwargs)

    monkeypatch.setattr(driver, "capture", watched)
    monkeypatch.setattr(driver, "release_cached", lambda: (released.append(1), release()))
    function = function_of(body, driver)
    function(*make())
    made.clear()
    function(*make())
    assert len(seen) == 2 and all(all(gone) and len(gone) == 3 for gone in seen)


def test_what_does_not_fit_even_so_is_refused() -> None:
    function = HandWritten(
        everything, settings=Settings(max_verify_bytes=SHORT.max_verify_bytes - 1), mutated_inputs=frozenset({1})
    )
    function.namespace["constant"] = torch.randn(4)
    check(function, make, replays=0)
    assert any("verifying it needs" in reason for reason in function.log.reasons)


@pytest.mark.parametrize("written", [False, True])
def test_a_replay_that_differs_is_refused_and_the_call_answered_right(written: bool) -> None:
    plain = [False]

    def body(namespace: dict[str, Any], x: torch.Tensor, state: torch.Tensor) -> Any:
        plain[0] = True
        returned = everything(namespace, x, state)
        namespace["cpp_fused_1"](state if written else returned[0], x)
        plain[0] = False
        return returned

    def kernel(out: torch.Tensor, x: torch.Tensor) -> None:
        out.data.copy_(x)
        out.data[3, 4] += not plain[0]

    function = function_of(body)
    function.namespace["cpp_fused_1"] = kernel
    check(function, make, replays=0)
    what = "a written input" if written else "output 0"
    assert any(f"{what} of the replay differs" in reason and "no memory" in reason for reason in function.log.reasons)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
@pytest.mark.parametrize("failures", [1, 2])
def test_a_call_that_fails_beside_its_graph_is_made_without_it(
    kind: type[Exception], failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: then it gives the graph up. Twice: the exception is the function's."""
    calls, plain_calls = [0], [0]
    driver = SimulatedDriver()

    def body(namespace: dict[str, Any], x: torch.Tensor, state: torch.Tensor) -> Any:
        returned = everything(namespace, x, state)
        if not driver.is_capturing():
            plain_calls[0] += 1
            if 3 <= plain_calls[0] < 3 + failures:  # the first call, the trial, and the one that answers
                raise kind("no room")
        return returned

    function = function_of(body, driver)
    x, state = make()
    reference = function_of(everything)
    for number in range(6):
        calls[0] = number
        x, state = make()
        copy = state.clone()
        torch.manual_seed(number)
        wanted = reference.function._run([x, copy]) if number != 1 or failures == 1 else None
        torch.manual_seed(number)
        if number == 1 and failures == 2:
            with pytest.raises(kind, match="no room"):
                function(x, state)
            continue
        got = function(x, state)
        assert torch.equal(state, copy)
        assert wanted is not None and torch.equal(got[0], wanted[0])
        if number == 1:
            assert any("beside its graph a plain call failed" in reason for reason in function.log.reasons)
            assert not function.recordings
    if failures == 1:
        assert function.log.replays > 0, "it was not recorded again"


def test_a_call_that_fails_is_gone_before_it_is_made_again() -> None:
    """With what it had allocated; and the copies of what inputs held after the trial, which had no such beside it."""
    driver = SimulatedDriver()
    kept: list[weakref.ref[torch.Tensor]] = []
    plain_calls = [0]

    def body(namespace: dict[str, Any], x: torch.Tensor, state: torch.Tensor) -> Any:
        if not driver.is_capturing():
            plain_calls[0] += 1
            if plain_calls[0] == 4:
                assert kept and all(one() is None for one in kept)
        returned = everything(namespace, x, state)
        if plain_calls[0] == 3 and not driver.is_capturing():
            kept.extend(weakref.ref(returned[position]) for position in (0, 1, 2))
            raise torch.OutOfMemoryError("no room")
        return returned

    function = function_of(body, driver)
    for _ in range(2):
        function(*make())
    assert plain_calls[0] == 4 and len(kept) == 3


@pytest.mark.parametrize(
    "layout", [((8, 8), (1, 8), F32), ((4, 16), (16, 1), F32), ((64,), (1,), F32), ((8, 8), (8, 1), torch.int32)]
)
def test_the_same_bytes_in_another_layout_are_another_output(layout: tuple[Any, Any, torch.dtype]) -> None:
    driver = SimulatedDriver()

    def body(namespace: dict[str, Any], x: torch.Tensor, state: torch.Tensor) -> Any:
        returned = everything(namespace, x, state)
        size, stride, dtype = layout if driver.is_capturing() else ((8, 8), (8, 1), F32)
        shown = namespace["reinterpret_tensor"](returned[0], size, stride, 0)
        return *returned, shown.view(dtype)

    function = function_of(body, driver)
    check(function, make, replays=0)
    assert any("output 9 of the replay differs" in reason for reason in function.log.reasons)


def test_copies_of_what_was_written_are_gone_before_the_call_is_made_again() -> None:
    """The trial did not have both beside it."""
    alive: list[int] = []
    driver = SimulatedDriver()

    def body(namespace: dict[str, Any], x: torch.Tensor, state: torch.Tensor) -> Any:
        if not driver.is_capturing():
            gc.collect()
            alive.append(sum(type(one) is Kept for one in gc.get_objects()))
        return everything(namespace, x, state)

    function = function_of(body, driver)
    for _ in range(2):
        function(*make())
    first, trial, again = alive
    assert (trial - first, again - first) == (1, 1), alive
