"""A tensor in which a replay differs from the plain call: more plain calls say whether these differ as much.

Works through the elements in pieces, so that what is compared is also what takes the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from pygraph_inductor.recording.contents import same_bits
from pygraph_inductor.replay.views import bytes_of, covers_its_span, overlaps_itself

UNTOUCHED = 0xA5  # every byte of what a verified replay returns, until the replay writes there
_TOLERANCE = 4  # times the difference between plain calls
_PIECE = 1 << 24  # elements; each takes some 40 bytes while it is compared


class Doubt:
    """Holds what was expected and where the replay wrote nothing, and the largest differences so far."""

    def __init__(self, expected: torch.Tensor, replayed: torch.Tensor, filled: bool) -> None:
        """`filled`: every byte was `UNTOUCHED` before the replay."""
        self._expected = expected
        self._spread = 0.0
        self._unwritten = _unwritten(expected, replayed) if filled else None  # per element; None if it wrote all
        self._varies = None if self._unwritten is None else torch.zeros_like(self._unwritten)
        written = None if self._unwritten is None else ~self._unwritten
        self._distance = largest_gap(expected, replayed, written)

    def plain_call_gave(self, repeated: torch.Tensor) -> None:
        """Take in what another plain call gave."""
        if self._unwritten is None or self._varies is None:
            self._spread = max(self._spread, largest_gap(self._expected, repeated))
            return
        self._spread = max(self._spread, largest_gap(self._expected, repeated, ~self._unwritten))
        self._varies |= _other_bits(self._expected, repeated)

    def complaint(self) -> str | None:
        """What is wrong with the replay, None if nothing is.

        Elements that it never writes are nobody's business where plain calls vary in them: uninitialised memory, as
        the random state that attention returns without dropout.
        """
        if self._unwritten is not None and self._varies is not None and bool((self._unwritten & ~self._varies).any()):
            return "is not written everywhere"
        if not self._distance <= _TOLERANCE * self._spread:
            return f"is off by {self._distance:.3g}, plain calls by {self._spread:.3g}"
        return None


def largest_gap(a: torch.Tensor, b: torch.Tensor, where: torch.Tensor | None = None) -> float:
    """The largest absolute difference between elements (of those marked in the flat mask); 0.0 if all bits agree."""
    if a.numel() == 0 or (where is None and same_bits(a, b)):
        return 0.0
    return max(
        _gap(first, second, None if where is None else where[start : start + first.numel()])
        for start, first, second in _pieces(a, b)
    )


def _gap(first: torch.Tensor, second: torch.Tensor, where: torch.Tensor | None) -> float:
    other = _differs(first, second)
    if where is not None:
        other &= where
    if not bool(other.any()):
        return 0.0
    wide = torch.complex128 if first.is_complex() else torch.float64
    one, two = first[other].to(wide), second[other].to(wide)
    alike = (one == two) | (one.isnan() & two.isnan())  # equal infinities and other nans do not differ
    gap = torch.where(alike, 0.0, (one - two).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    # Other bits are a difference even where float64 sees none: -0.0, integers beyond 2**53.
    return max(float(gap.max()), math.ulp(0.0))


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    # An expanded tensor is not made contiguous: it may be a million times its memory.
    if covers_its_span(tensor) or overlaps_itself(tensor):
        return bytes_of(tensor).view(tensor.dtype)
    return tensor.detach().contiguous().view(-1)


def _pieces(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    if a.stride() != b.stride():
        a, b = a.contiguous(), b.contiguous()
    first, second = _elements(a), _elements(b)
    for start in range(0, first.numel(), _PIECE):
        yield start, first[start : start + _PIECE], second[start : start + _PIECE]


def _differs(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Per element of two flat tensors, whether any bit differs."""
    bits = (first.contiguous().view(torch.uint8) != second.contiguous().view(torch.uint8)).view(-1, first.itemsize)
    return bits.any(dim=1)


def _other_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.cat([_differs(first, second) for _, first, second in _pieces(a, b)])


def _unwritten(expected: torch.Tensor, replayed: torch.Tensor) -> torch.Tensor | None:
    """The elements that were left as they were filled, and should hold something else."""
    marks = []
    for _, first, second in _pieces(expected, replayed):
        filled = (second.contiguous().view(torch.uint8) == UNTOUCHED).view(-1, second.itemsize).all(dim=1)
        marks.append(filled & _differs(first, second))
    mask = torch.cat(marks)
    return mask if bool(mask.any()) else None
