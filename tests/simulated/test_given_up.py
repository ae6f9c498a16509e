"""Calls that are refused again and again cost what plain calls cost, and are looked at again now and then."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pygraph_inductor.recording import keys
from pygraph_inductor.recording.given_up import _ENOUGH, _LOOK, GivenUp
from pygraph_inductor.settings import Settings
from tests.simulated.hand_written import HandWritten, cloned, same_bits

LARGE, SMALL = 1 << 15, 6  # elements; copies of the large ones are not allowed


def body(namespace: dict[str, Any], a: Any) -> Any:
    out = namespace["empty_strided_cpu"]((6,), (1,), torch.float32)
    namespace["cpp_fused_0"](out, a[:6])
    namespace["cpp_fused_0"](a[:6], out)
    return (out, a)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every call whose inputs are examined."""
    made: list[int] = []
    examine = keys.examine
    monkeypatch.setattr(keys, "examine", lambda *args: (made.append(1), examine(*args))[1])
    return made


def function(**facts: Any) -> HandWritten:
    settings = Settings(max_verify_bytes=1 << 16, selection=False)
    return HandWritten(body, settings=settings, mutated_inputs=frozenset({0}), **facts)


def checked_call(one: HandWritten, elements: int) -> None:
    values = [torch.randn(elements)]
    copies = cloned(values)
    want = one.run(list(copies))
    got = one(*values)
    assert got[1] is values[0] and all(map(same_bits, [*got, *values], [*want, *copies]))


def test_refused_calls_are_soon_not_looked_at_any_more_but_for_one_in_many(looks: list[int]) -> None:
    one = function()
    for _ in range(_ENOUGH + 3):
        checked_call(one, LARGE)
    before = len(looks)
    for _ in range(4 * _LOOK):
        checked_call(one, LARGE)
    assert len(looks) - before == 4
    assert one.log.calls == one.log.plain_calls == _ENOUGH + 3 + 4 * _LOOK
    assert len(one.log.reasons) == 1


@pytest.mark.parametrize("native", [True, False])
def test_calls_that_come_instead_are_recorded_all_the_same(native: bool) -> None:
    one = function(native=native)
    for _ in range(3 * _ENOUGH):
        checked_call(one, LARGE)
    for _ in range(_LOOK + 20):
        checked_call(one, SMALL)
    assert one.log.replays >= 15
    replays = one.log.replays
    for _ in range(20):  # calls of both kinds in turn
        checked_call(one, LARGE)
        checked_call(one, SMALL)
    assert one.log.replays == replays + 20


def test_other_int_inputs_are_looked_at(looks: list[int]) -> None:
    def sized(namespace: dict[str, Any], size: int, a: Any) -> Any:
        return body(namespace, a)

    one = HandWritten(
        sized, settings=Settings(max_verify_bytes=1 << 16, selection=False), mutated_inputs=frozenset({1})
    )
    for _ in range(3 * _ENOUGH):
        one(LARGE, torch.randn(LARGE))
    before = len(looks)
    for _ in range(6):
        one(SMALL, torch.randn(SMALL))
    assert len(looks) > before and one.log.replays == 4


def test_stream_captured_by_somebody_else_is_no_refusal_for_good(
    looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = function()
    with monkeypatch.context() as patch:
        patch.setattr(one.driver, "is_capturing", lambda: True)
        for _ in range(3 * _ENOUGH):
            one(torch.randn(SMALL))
    assert not looks
    for _ in range(6):
        checked_call(one, SMALL)
    assert one.log.replays == 4


def test_exception_of_a_call_under_a_foreign_capture_passes_and_the_call_is_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def fails(namespace: dict[str, Any], a: Any) -> Any:
        made.append(1)
        raise ValueError("the user's own")

    one = HandWritten(fails)
    monkeypatch.setattr(one.driver, "is_capturing", lambda: True)
    with pytest.raises(ValueError, match="own"):
        one(torch.randn(6))
    assert made == [1]


def test_memory_of_kinds_has_an_end() -> None:
    given_up = GivenUp()
    assert not given_up.counts
    for number in range(5000):
        given_up.refused((number,))
    assert 0 < len(given_up.counts) <= 1024
    assert not any(given_up.skips((number,)) for number in range(5000)), "once is not enough"
    given_up.other((4999,))
    for _ in range(_ENOUGH):
        given_up.refused((4999,))
    assert given_up.skips((4999,))
