"""How far a replay is off, and whether plain calls are off as far: element by element, in pieces, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pygraph_inductor.recording import doubts
from pygraph_inductor.recording.doubts import SOILS, Difference, Doubt, difference

FIRST, SECOND = SOILS


@pytest.fixture(autouse=True, params=[3, 1 << 24])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "_PIECE", request.param)


def doubt_of(
    expected: torch.Tensor,
    replayed: torch.Tensor,
    *again: torch.Tensor,
    filled: bool = True,
    soiled: Sequence[torch.Tensor] = (),
    second: torch.Tensor | None = None,
) -> Doubt:
    """After plain calls in soiled memory, and then others. `filled`: so was what the replay wrote to. What another one
    gave is `second`: unless given, the same, where that was filled with the other byte.
    """
    doubt = Doubt(expected, replayed)
    for byte, repeated in zip(SOILS, soiled, strict=False):
        doubt.soiled_call_gave(repeated, byte)
    if filled and doubt.replay_left(FIRST):
        doubt.replay_left(SECOND, refilled(replayed) if second is None else second)
    doubt.compare()
    for repeated in again:
        doubt.plain_call_gave(repeated)
    return doubt


def filled(size: int, dtype: torch.dtype, byte: int = FIRST) -> torch.Tensor:
    return torch.full((size * dtype.itemsize,), byte, dtype=torch.uint8).view(dtype)


def refilled(tensor: torch.Tensor) -> torch.Tensor:
    """The same from memory that was filled with the other byte."""
    elements = tensor.view(torch.uint8).clone().view(-1, tensor.itemsize)  # as bytes: other bools become True
    elements[(elements == FIRST).all(dim=1)] = SECOND
    return elements.view(tensor.dtype).view(tensor.shape)


NAN, OTHER_NAN = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32).split(1)
PAIRS = [
    (torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 3.5, 4.25]), 0.5),
    (torch.tensor([0.0]), torch.tensor([-0.0]), math.ulp(0.0)),
    (NAN, OTHER_NAN, math.ulp(0.0)),
    (NAN, torch.tensor([1.0]), math.inf),
    (torch.tensor([math.inf]), torch.tensor([-math.inf]), math.inf),
    (torch.tensor([2**53]), torch.tensor([2**53 + 1]), math.ulp(0.0)),
    (torch.tensor([5, 7]), torch.tensor([5, 4]), 3.0),
    (torch.tensor([True, False]), torch.tensor([True, True]), 1.0),
    (torch.tensor([1 + 1j]), torch.tensor([1 + 3j]), 2.0),
    (torch.ones(4).to(torch.float8_e4m3fn), torch.full((4,), 1.5).to(torch.float8_e4m3fn), 0.5),
    (torch.ones(2, 5).t(), torch.zeros(2, 5).t(), 1.0),
    (torch.ones(6)[::2], torch.zeros(6)[::2], 1.0),
    (torch.ones(1).expand(1 << 40), torch.zeros(1).expand(1 << 40), 1.0),
]


@pytest.mark.parametrize(("a", "b", "gap"), PAIRS)
def test_difference(a: torch.Tensor, b: torch.Tensor, gap: float) -> None:
    assert difference(a, b) == difference(b, a)
    assert difference(a, b).gap == gap
    assert difference(a, a) == Difference(0.0, 0)


def test_differences_are_counted_in_all_pieces() -> None:
    assert difference(torch.zeros(10), torch.arange(10) % 2 * 1.0) == Difference(1.0, 5)


def test_only_marked_elements_count() -> None:
    a, b = torch.zeros(7), torch.tensor([9.0, 1, 0, 0, 0, 2, 8])
    where = torch.tensor([False, True, True, True, True, True, False])
    assert difference(a, b, where) == Difference(2.0, 2)
    assert difference(a, b, torch.zeros(7, dtype=torch.bool)) == Difference()


def test_four_times_the_difference_of_plain_calls_is_allowed() -> None:
    expected = torch.arange(8.0)
    for distance, complaint in ((0.5, False), (0.53125, True)):
        doubt = doubt_of(expected, expected + torch.eye(8)[5] * distance)
        doubt.plain_call_gave(expected)
        doubt.plain_call_gave(expected + torch.eye(8)[2] * 0.125)
        assert (doubt.complaint() is not None) is complaint


def test_without_noise_nothing_is_allowed() -> None:
    doubt = doubt_of(torch.zeros(4), torch.full((4,), 1e-30))
    doubt.plain_call_gave(torch.zeros(4))
    assert "off by 1e-30, plain calls by 0" in str(doubt.complaint())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_unwritten_elements_are_excused_where_plain_calls_leave_them_too(dtype: torch.dtype) -> None:
    expected, replayed = torch.ones(6).to(dtype), torch.ones(6).to(dtype)
    replayed.view(torch.uint8)[2 * dtype.itemsize : 4 * dtype.itemsize] = FIRST
    assert "not written everywhere" in str(doubt_of(expected, replayed, soiled=soiled_with(expected)).complaint())
    assert "not written everywhere" in str(doubt_of(expected, replayed, soiled=soiled_with(expected, 2)).complaint())
    assert doubt_of(expected, replayed, soiled=soiled_with(expected, 2, 3)).complaint() is None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn, torch.float16])
def test_unwritten_elements_are_not_excused_because_a_plain_call_gives_what_looks_left(dtype: torch.dtype) -> None:
    """Short elements that vary come by every value."""
    expected = torch.ones(1).to(dtype)
    left, other = filled(1, dtype), torch.zeros(1).to(dtype)
    for soiled in ([left, other], [other, filled(1, dtype, SECOND)], [left, left]):
        doubt = doubt_of(expected, left, other, left, filled(1, dtype, SECOND), soiled=soiled)
        assert "not written everywhere" in str(doubt.complaint())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn, torch.float16])
def test_values_by_chance_like_those_that_memory_was_filled_with_are_values(dtype: torch.dtype) -> None:
    """Large outputs with short elements hold such ones; where they vary, plain calls need not ever meet them."""
    replayed = torch.cat([filled(1, dtype), torch.ones(7).to(dtype)])
    expected, again = (torch.cat([bits_beside(replayed[:1], by), replayed[1:]]) for by in (1, -1))
    right = doubt_of(expected, replayed, again, soiled=[expected, again], second=again)
    assert right.complaint() is None
    left = doubt_of(expected, replayed, again, soiled=[expected, again])
    assert "not written everywhere" in str(left.complaint())


def bits_beside(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """The values that are next to these."""
    bits = torch.uint8 if tensor.itemsize == 1 else torch.int16
    return (tensor.view(bits) + by).view(tensor.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_unwritten_elements_are_not_excused_because_plain_calls_vary(dtype: torch.dtype) -> None:
    """A sum of atomic additions that the replay puts elsewhere."""
    doubt = doubt_of(torch.full((6,), 9).to(dtype), filled(6, dtype))
    for other in (8, 10, 8):
        doubt.plain_call_gave(torch.full((6,), other).to(dtype))
    assert "not written everywhere" in str(doubt.complaint())


@pytest.mark.parametrize("found", [1.0, filled(1, torch.float32).item()])
def test_what_plain_calls_find_in_the_unwritten_does_not_widen_the_tolerance(found: float) -> None:
    """Also where the first one happened to find it filled."""
    expected, replayed, again = torch.ones(6), torch.ones(6), torch.ones(6)
    expected[0] = found
    replayed[0], replayed[1] = filled(1, torch.float32)[0], 1.001
    doubt = doubt_of(expected, replayed, soiled=soiled_with(expected, 0))
    for value in (1e9, filled(1, torch.float32).item()):
        again[0] = value
        doubt.plain_call_gave(again)
    assert "off by 0.001, plain calls by 0" in str(doubt.complaint())


def with_one_changed(tensor: torch.Tensor, value: Any) -> torch.Tensor:
    changed = tensor.clone()
    changed[0] = value
    return changed


@pytest.mark.parametrize(
    ("expected", "wrong", "noise"),
    [
        (torch.arange(64) % 3 == 0, torch.arange(64) % 3 != 0, False),
        (torch.arange(64), torch.arange(64).flip(0), 63),
        (torch.cat([torch.tensor([1e6]), torch.ones(63)]), torch.cat([torch.tensor([1e6]), torch.zeros(63)]), 1e6 + 1),
    ],
)
def test_one_element_that_varies_says_nothing_about_the_others(
    expected: torch.Tensor, wrong: torch.Tensor, noise: Any
) -> None:
    for replayed, right in ((wrong, False), (with_one_changed(expected, noise), True)):
        for sides in (False, True):
            doubt = doubt_of(expected, replayed, filled=sides)
            doubt.plain_call_gave(with_one_changed(expected, noise))
            assert (doubt.complaint() is None) is right
    assert "differs in" in str(doubt_of(expected, wrong, with_one_changed(expected, noise)).complaint())


@pytest.mark.parametrize("noise", [math.nan, math.inf])
def test_plain_calls_without_bounds_vouch_for_nothing(noise: float) -> None:
    expected = torch.ones(8)
    assert "nan or infinite" in str(doubt_of(expected, torch.zeros(8), with_one_changed(expected, noise)).complaint())
    # Both agree in all but what is nobody's: nothing is wrong.
    assert doubt_of(expected, expected, with_one_changed(expected, noise)).complaint() is None


def test_elements_are_taken_in_one_order_whatever_the_strides() -> None:
    """What the replay returns may have other strides where nobody can tell: of dimensions of size one."""
    expected = torch.arange(6.0).view(1, 3, 2).transpose(1, 2)
    replayed = torch.empty_strided((1, 2, 3), (99, 3, 1)).copy_(expected)
    replayed[0, 1, 0] = filled(1, torch.float32)[0]
    second = replayed.clone()
    second[0, 1, 0] = filled(1, torch.float32, SECOND)[0]
    for element, right in (((0, 1, 0), True), ((0, 0, 1), False)):
        soiled = [expected.clone(), expected.clone()]
        for again, byte in zip(soiled, SOILS, strict=True):
            again[element] = filled(1, torch.float32, byte)[0]
            assert again.stride() != replayed.stride()
        doubt = doubt_of(expected, replayed, soiled=soiled, second=second)
        assert ("not written everywhere" not in str(doubt.complaint())) is right


def test_right_values_that_look_unwritten_are_right() -> None:
    expected = torch.tensor([FIRST, 1, FIRST, 3], dtype=torch.uint8)
    replayed = torch.tensor([FIRST, 2, FIRST, 3], dtype=torch.uint8)
    doubt = doubt_of(expected, replayed, second=replayed)
    doubt.plain_call_gave(torch.tensor([FIRST, 0, FIRST, 3], dtype=torch.uint8))
    assert doubt.complaint() is None


def test_what_was_not_filled_is_never_taken_for_unwritten() -> None:
    replayed = torch.ones(3)
    replayed[1] = filled(1, torch.float32, SECOND)[0]
    doubt = doubt_of(torch.ones(3), replayed, filled=False)
    doubt.plain_call_gave(torch.tensor([1.0, 1.0, 1.5]))
    assert doubt.complaint() is None  # 1.0 against -2.9e-16: within four times 0.5


def soiled_with(value: torch.Tensor, *where: int) -> list[torch.Tensor]:
    """What plain calls give that leave some elements as free memory was, each time with another byte."""
    found = []
    for byte in SOILS:
        one = value.clone()
        for element in where:
            one.view(torch.uint8)[element * value.itemsize : (element + 1) * value.itemsize] = byte
        found.append(one)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_what_plain_calls_leave_as_it_was_is_nobodys_whatever_the_replay_has_there(dtype: torch.dtype) -> None:
    """The replay copies what an intermediate left behind."""
    expected = torch.arange(6).to(dtype)
    replayed, varied = expected.clone(), expected.clone()
    replayed[2:4], varied[2:4] = 77, 99
    assert doubt_of(expected, replayed, varied, soiled=soiled_with(expected, 2, 3)).complaint() is None
    assert doubt_of(expected, replayed, expected, soiled=soiled_with(expected, 2)).complaint() is not None
    assert doubt_of(expected, replayed, expected, soiled=soiled_with(expected)).complaint() is not None
    # Nor does it widen the tolerance for the others.
    replayed[0] = 5
    wrong = doubt_of(expected, replayed, varied, soiled=soiled_with(expected, 2, 3))
    assert "off by 5, plain calls by 0" in str(wrong.complaint())


def test_a_value_that_looks_left_once_is_a_value() -> None:
    """A byte may be right as it is; no byte is right as two others."""
    expected = torch.tensor([FIRST, 1, 2], dtype=torch.uint8)
    replayed = torch.tensor([3, 1, 2], dtype=torch.uint8)
    assert "off by" in str(doubt_of(expected, replayed, expected, soiled=[expected, expected]).complaint())


def places(values: torch.Tensor, number: float, elements: Sequence[int]) -> torch.Tensor:
    """The same, off by so many units in the last place (of a power of two) in some elements."""
    found = values.clone()
    for element in elements:
        found[element] += number * torch.finfo(values.dtype).eps * values[element]
    return found


LONG = [torch.float32, torch.float64, torch.complex64, torch.complex128]
SHORT = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize(("dtype", "number"), [*((one, 16) for one in LONG), *((one, 1) for one in SHORT)])
def test_last_places_that_another_replay_has_are_the_order_of_a_sum(dtype: torch.dtype, number: int) -> None:
    expected = torch.ones(8).to(dtype) * 2
    for elsewhere, order in (([], True), ([1, 4], True), ([2, 5], False), ([2], False)):
        doubt = doubt_of(expected, places(expected, number, [2, 5]), expected, expected)
        assert doubt.may_be_order and "plain calls by 0" in str(doubt.complaint())
        doubt.another_replay_gave(places(expected, number, elsewhere))
        assert (doubt.complaint() is None) is order
        assert doubt.may_be_order is not order
        doubt.another_replay_gave(expected)
        assert doubt.complaint() is None


@pytest.mark.parametrize(("dtype", "number"), [*((one, 17) for one in LONG), *((one, 2) for one in SHORT)])
def test_more_than_the_last_places_is_never_the_order_of_a_sum(dtype: torch.dtype, number: int) -> None:
    """In the first replay or in one after it, in whatever element."""
    expected = torch.ones(8).to(dtype) * 2
    first = doubt_of(expected, places(expected, number, [6]), expected)
    assert not first.may_be_order
    later = doubt_of(expected, places(expected, 1, [2]), expected)
    later.another_replay_gave(places(expected, number, [3]))
    for doubt in (first, later):
        doubt.another_replay_gave(expected)
        assert doubt.complaint() is not None and not doubt.may_be_order


def test_the_last_places_are_those_of_each_element() -> None:
    """Beside a large one, a small element may be quite another."""
    expected = torch.tensor([1e6, 1.0, 0.0])
    for wrong in (torch.tensor([1e6, 1.01, 0.0]), torch.tensor([1e6, 1.0, 1e-30])):
        assert not doubt_of(expected, wrong, expected).may_be_order


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn])
def test_elements_without_last_places_have_no_order(dtype: torch.dtype) -> None:
    expected, other = torch.ones(4).to(dtype), torch.zeros(4).to(dtype)
    doubt = doubt_of(expected, other, expected)
    doubt.another_replay_gave(expected)
    assert not doubt.may_be_order and doubt.complaint() is not None


def test_nan_and_infinity_are_no_last_places() -> None:
    expected = torch.tensor([1.0, math.inf, math.nan])
    for odd in ([math.nan, math.inf, math.nan], [1.0, -math.inf, math.nan], [1.0, math.inf, 2.0]):
        assert not doubt_of(expected, torch.tensor(odd), expected).may_be_order


def test_a_lacking_write_is_no_order_of_a_sum() -> None:
    expected = torch.full((4,), 2.0)
    replayed = filled(4, torch.float32)
    doubt = Doubt(replayed * (1 + 1e-7), replayed)
    doubt.replay_left(FIRST)
    doubt.replay_left(SECOND, refilled(replayed))
    doubt.compare()
    doubt.plain_call_gave(expected)
    assert not doubt.may_be_order and doubt.complaint() == "is not written everywhere"


def test_what_nobody_writes_is_not_asked_of_replays() -> None:
    expected = torch.tensor([2.0, 3.0, 4.0])
    replayed = places(expected, 1, [2])
    replayed[0] = 77.0
    soiled = [torch.cat([filled(1, torch.float32, byte), expected[1:]]) for byte in SOILS]
    doubt = doubt_of(soiled[0], replayed, soiled=soiled, filled=False)
    assert doubt.may_be_order
    doubt.another_replay_gave(torch.cat([torch.tensor([-5.0]), expected[1:]]))
    assert doubt.complaint() is None


def test_elements_of_other_replays_are_taken_in_the_same_order_whatever_their_strides() -> None:
    expected = torch.arange(1.0, 13.0).view(3, 4).t()
    first, second = expected.clone(), expected.clone(memory_format=torch.contiguous_format)
    first[1, 2] *= 1 + 2e-7
    second[2, 1] *= 1 + 2e-7
    assert first.stride() != second.stride()
    doubt = doubt_of(expected, first, expected)
    doubt.another_replay_gave(second)
    assert doubt.complaint() is None
