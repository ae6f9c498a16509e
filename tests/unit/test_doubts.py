"""How far a replay is off, and whether plain calls are off as far: element by element, in pieces, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch

from pygraph_inductor.recording import doubts
from pygraph_inductor.recording.doubts import UNTOUCHED, Doubt, largest_gap


@pytest.fixture(autouse=True, params=[3, 1 << 24])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "_PIECE", request.param)


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
def test_largest_gap(a: torch.Tensor, b: torch.Tensor, gap: float) -> None:
    assert largest_gap(a, b) == largest_gap(b, a) == gap
    assert largest_gap(a, a) == 0.0


def test_only_marked_elements_count() -> None:
    a, b = torch.zeros(7), torch.tensor([9.0, 1, 0, 0, 0, 2, 8])
    where = torch.tensor([False, True, True, True, True, True, False])
    assert largest_gap(a, b, where) == 2.0
    assert largest_gap(a, b, torch.zeros(7, dtype=torch.bool)) == 0.0


def test_four_times_the_difference_of_plain_calls_is_allowed() -> None:
    expected = torch.arange(8.0)
    for distance, complaint in ((0.5, False), (0.53125, True)):
        doubt = Doubt(expected, expected + torch.eye(8)[5] * distance, filled=True)
        doubt.plain_call_gave(expected)
        doubt.plain_call_gave(expected + torch.eye(8)[2] * 0.125)
        assert (doubt.complaint() is not None) is complaint


def test_without_noise_nothing_is_allowed() -> None:
    doubt = Doubt(torch.zeros(4), torch.full((4,), 1e-30), filled=True)
    doubt.plain_call_gave(torch.zeros(4))
    assert "off by 1e-30, plain calls by 0" in str(doubt.complaint())


def filled(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((size * dtype.itemsize,), UNTOUCHED, dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_unwritten_elements_are_excused_where_plain_calls_vary(dtype: torch.dtype) -> None:
    expected, replayed, again = torch.ones(6).to(dtype), torch.ones(6).to(dtype), torch.ones(6).to(dtype)
    replayed.view(torch.uint8)[2 * dtype.itemsize : 4 * dtype.itemsize] = UNTOUCHED
    again[2:4] = 0
    doubt = Doubt(expected, replayed, filled=True)
    assert "not written everywhere" in str(doubt.complaint())  # nothing says yet that they vary
    doubt.plain_call_gave(again)
    assert doubt.complaint() is None


def test_one_unwritten_element_that_does_not_vary_is_too_many() -> None:
    expected, replayed, again = torch.ones(6), torch.ones(6), torch.ones(6)
    replayed[2:4] = filled(2, torch.float32)
    again[2] = 0
    doubt = Doubt(expected, replayed, filled=True)
    doubt.plain_call_gave(again)
    assert "not written everywhere" in str(doubt.complaint())


def test_what_varies_in_the_unwritten_does_not_widen_the_tolerance() -> None:
    expected, replayed, again = torch.ones(6), torch.ones(6), torch.ones(6)
    replayed[0], replayed[1] = filled(1, torch.float32)[0], 1.001
    again[0] = 1e9
    doubt = Doubt(expected, replayed, filled=True)
    doubt.plain_call_gave(again)
    assert "off by 0.001, plain calls by 0" in str(doubt.complaint())


def test_right_values_that_look_unwritten_are_right() -> None:
    expected = torch.tensor([UNTOUCHED, 1, UNTOUCHED, 3], dtype=torch.uint8)
    replayed = torch.tensor([UNTOUCHED, 2, UNTOUCHED, 3], dtype=torch.uint8)
    doubt = Doubt(expected, replayed, filled=True)
    doubt.plain_call_gave(torch.tensor([UNTOUCHED, 0, UNTOUCHED, 3], dtype=torch.uint8))
    assert doubt.complaint() is None


def test_what_was_not_filled_is_never_taken_for_unwritten() -> None:
    replayed = torch.ones(3)
    replayed[1] = filled(1, torch.float32)[0]
    doubt = Doubt(torch.ones(3), replayed, filled=False)
    doubt.plain_call_gave(torch.tensor([1.0, 1.0, 1.5]))
    assert doubt.complaint() is None  # 1.0 against -2.9e-16: within four times 0.5
