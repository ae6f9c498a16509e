"""A tensor in which a replay differs from the plain call: more plain calls say whether these differ as much.

Works through the elements in pieces, so that what is compared is also what takes the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pygraph_inductor.recording.contents import same_bits
from pygraph_inductor.replay.views import bytes_of, covers_its_span, overlaps_itself

# What memory is filled with, in turns, to see what a call leaves unwritten. What is left both times was not written; a
# value that is right may look like one of them. The first is a large float (1.5e16 of 32 bits): who adds to what is
# there, or takes the maximum, gives something else. The second is next to nothing, and negative.
SOILS = (0x5A, 0xA5)
_TOLERANCE = 4  # times the difference between plain calls
# By how many units in the last place of an element a sum may be off that was taken in another order; of short elements,
# which are rounded from a longer sum, by one.
_PLACES, _PLACES_OF_SHORT = 16, 1
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PIECE = 1 << 22  # elements; each takes some 40 bytes while it is compared


@dataclass(frozen=True)
class Difference:
    """Between two tensors: the largest absolute difference of two elements, and how many have other bits."""

    gap: float = 0.0
    count: int = 0


class Doubt:
    """Holds what was expected, which elements nobody writes, and the largest differences so far.

    First come the plain calls in soiled memory (`soiled_call_gave`), then replays whose outputs were filled
    (`replay_left`), then the comparison, and then more plain calls.
    """

    def __init__(self, expected: torch.Tensor, replayed: torch.Tensor) -> None:
        self._expected = expected
        self._plain = self._distance = Difference()
        self._where: torch.Tensor | None = None  # the elements that are compared; None: all
        # Per element, whether all soiled plain calls have left it as it was; and all replays, where plain calls write.
        self._unwritten: torch.Tensor | None = None
        self._missing: torch.Tensor | None = None
        self._lacks_writes = False
        # Per element, whether every replay was off there; None: one was by more than another order makes.
        self._off: torch.Tensor | None = None
        self._replayed: torch.Tensor | None = replayed

    def soiled_call_gave(self, repeated: torch.Tensor, byte: int) -> bool:
        """Take in a plain call that found every byte of free memory like this; whether it may have left some so."""
        left = _left(self._expected, repeated, byte)
        self._unwritten = left if self._unwritten is None else self._unwritten & left
        return bool(self._unwritten.any())

    def replay_left(self, byte: int, replayed: torch.Tensor | None = None) -> bool:
        """Take in where the replay (or another one, which gave `replayed`) left its output as it was filled, with this
        byte; whether it may lack writes there.
        """
        given = self._replayed if replayed is None else replayed
        assert given is not None
        left = _left(self._expected, given, byte)
        if self._unwritten is not None:
            left &= ~self._unwritten
        self._missing = left if self._missing is None else self._missing & left
        return bool(self._missing.any())

    def compare(self) -> None:
        """Measure how far the replay is off, and let go of it."""
        assert self._replayed is not None
        if self._unwritten is not None and bool(self._unwritten.any()):
            self._where = ~self._unwritten
        self._lacks_writes = self._missing is not None and bool(self._missing.any())
        self._distance = difference(self._expected, self._replayed, self._where)
        self._off = off_by_order(self._expected, self._replayed, self._where) if self._distance.count else None
        self._replayed = self._unwritten = self._missing = None

    def plain_call_gave(self, repeated: torch.Tensor) -> None:
        """Take in what another plain call gave."""
        found = difference(self._expected, repeated, self._where)
        self._plain = Difference(max(self._plain.gap, found.gap), max(self._plain.count, found.count))

    def another_replay_gave(self, replayed: torch.Tensor) -> None:
        """Take in what one more replay of the same call gave."""
        if self._off is not None:
            off = off_by_order(self._expected, replayed, self._where)
            self._off = None if off is None else self._off & off

    @property
    def may_be_order(self) -> bool:
        """Whether the replay may be off only because it added in another order: one more of them may not be."""
        return self._off is not None and not self._lacks_writes and bool(self._off.any())

    @property
    def may_be_chance(self) -> bool:
        """Whether plain calls vary, so that some more of them may come to differ as much as the replay does."""
        return 0.0 < self._plain.gap < math.inf and not self._lacks_writes

    def complaint(self) -> str | None:
        """What is wrong with the replay, None if nothing is.

        Elements that a plain call leaves as the memory was are nobody's business: the random state that attention
        returns without dropout. A replay leaves them, too, or has there what an intermediate left behind. That plain
        calls vary there would not do: so do sums of atomic additions. Nor would one byte that looks left: elements of
        one or two bytes come by all values.

        Nor do plain calls always show that sums vary: where three additions meet in one element out of millions, their
        order changes once in many calls, and in a graph more easily. A replay that is off by the last places, where
        another replay of the same call has every bit, has no wrong argument: that would be wrong in both.
        """
        distance, plain = self._distance, self._plain
        if self._lacks_writes:
            return "is not written everywhere"
        if self._off is not None and not bool(self._off.any()):
            return None
        if distance.count and not math.isfinite(plain.gap):
            return "differs, and plain calls are nan or infinite in some places and in others not"
        if not distance.gap <= _TOLERANCE * plain.gap:
            return f"is off by {distance.gap:.3g}, plain calls by {plain.gap:.3g}"
        if distance.count > _TOLERANCE * plain.count:
            # One element that varies, large or an index, says nothing about all the others.
            return f"differs in {distance.count} elements, plain calls in {plain.count}"
        return None


def difference(a: torch.Tensor, b: torch.Tensor, where: torch.Tensor | None = None) -> Difference:
    """How two tensors differ (in the elements marked in the flat mask)."""
    if a.numel() == 0 or (where is None and same_bits(a, b)):
        return Difference()
    parts = [
        _difference(first, second, None if where is None else where[start : start + first.numel()])
        for start, first, second in _pieces(a, b)
    ]
    return Difference(max(part.gap for part in parts), sum(part.count for part in parts))


def _difference(first: torch.Tensor, second: torch.Tensor, where: torch.Tensor | None) -> Difference:
    other = _differs(first, second)
    if where is not None:
        other &= where
    count = int(other.count_nonzero())
    if not count:
        return Difference()
    wide = torch.complex128 if first.is_complex() else torch.float64
    one, two = _marked(first, other).to(wide), _marked(second, other).to(wide)
    alike = (one == two) | (one.isnan() & two.isnan())  # equal infinities and other nans do not differ
    gap = torch.where(alike, 0.0, (one - two).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    # Other bits are a difference even where float64 sees none: -0.0, integers beyond 2**53.
    return Difference(max(float(gap.max()), math.ulp(0.0)), count)


def off_by_order(a: torch.Tensor, b: torch.Tensor, where: torch.Tensor | None = None) -> torch.Tensor | None:
    """Flat, in the order of `_pieces`, the elements (of those marked in `where`) in which two tensors differ; None if
    some differ by more than sums do that are taken in another order.
    """
    if a.itemsize < 2 or not (a.is_floating_point() or a.is_complex()):
        return None
    accuracy = torch.finfo(a.dtype).eps
    allowed = accuracy * (_PLACES_OF_SHORT if accuracy > torch.finfo(torch.float32).eps else _PLACES)
    wide = torch.complex128 if a.is_complex() else torch.float64
    off = []
    for start, first, second in _pieces(a, b):
        other = _differs(first, second)
        if where is not None:
            other &= where[start : start + first.numel()]
        one, two = _marked(first, other).to(wide), _marked(second, other).to(wide)
        gap = (one - two).abs()
        if not bool((gap.isfinite() & (gap <= allowed * one.abs())).all()):
            return None
        off.append(other)
    return torch.cat(off)


def _marked(flat: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    # By their bits: not every device selects among elements of every type.
    bits = _BITS.get(flat.itemsize)
    return flat[where] if bits is None else flat.view(bits)[where].view(flat.dtype)


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    # An expanded tensor is not made contiguous: it may be a million times its memory.
    if covers_its_span(tensor) or overlaps_itself(tensor):
        return bytes_of(tensor).view(tensor.dtype)
    return tensor.detach().contiguous().view(-1)


def _pieces(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """The elements of both, in an order that `a` alone decides: masks made with one `b` are used with another."""
    if a.stride() != b.stride():
        if overlaps_itself(a):
            a, b = a.contiguous(), b.contiguous()
        else:
            b = torch.empty_strided(a.size(), a.stride(), dtype=b.dtype, device=b.device).copy_(b)
    first, second = _elements(a), _elements(b)
    for start in range(0, first.numel(), _PIECE):
        yield start, first[start : start + _PIECE], second[start : start + _PIECE]


def _differs(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Per element of two flat tensors, whether any bit differs."""
    bits = (first.contiguous().view(torch.uint8) != second.contiguous().view(torch.uint8)).view(-1, first.itemsize)
    return bits.any(dim=1)


def _left(a: torch.Tensor, b: torch.Tensor, byte: int) -> torch.Tensor:
    """The elements of `b` all of whose bytes are like this, in the order of `_pieces`."""
    return torch.cat(
        [
            (second.contiguous().view(torch.uint8) == byte).view(-1, second.itemsize).all(dim=1)
            for _, _, second in _pieces(a, b)
        ]
    )
