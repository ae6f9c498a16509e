"""Where stand-ins are put for a capture."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from pygraph_inductor.recording.bindings import NEARBY
from pygraph_inductor.recording.capture import Place, StandInSpace
from pygraph_inductor.replay.plan import Layout


@dataclass
class Range:
    address: int
    nbytes: int

    def close(self) -> None:
        pass


class Addresses:
    """The part of a driver that hands out addresses, from a number that grows."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self._next = 1 << 40

    def reserve(self, nbytes: int, fill: int) -> Range:
        self.ranges.append(Range(self._next, nbytes))
        self._next += nbytes
        return self.ranges[-1]

    def tensor_at(self, address, nbytes, size, stride, dtype):
        return (address, nbytes)


def place(source: int, size: int, dtype: torch.dtype = torch.float32) -> Place:
    return Place(source, False, Layout((size,), (1,), dtype), residue=64)


PLACES = [place(0, 16), place(1, 3 << 20), place(2, 8, torch.int64), place(3, 1)]


@pytest.mark.parametrize("spread", [0, 1])
def test_nothing_else_is_near_enough_to_be_taken_for_a_stand_in(spread):
    """A segment of the pool behind the range once moved just as the last stand-in did, and was rewritten with it."""
    driver = Addresses()
    for address, nbytes in StandInSpace(driver, PLACES, spread).tensors():
        (around,) = (r for r in driver.ranges if r.address <= address < r.address + r.nbytes)
        assert address - around.address >= NEARBY
        assert around.address + around.nbytes - (address + nbytes) >= NEARBY


def test_every_stand_in_moves_by_an_amount_of_its_own():
    first, second = (StandInSpace(Addresses(), PLACES, spread).tensors() for spread in (0, 1))
    moves = [after[0] - before[0] for before, after in zip(first, second, strict=True)]
    assert len(set(moves)) == len(moves)
