"""Calls that are refused again and again: most of them are not looked at any more before they are answered plainly.

Looking at a call takes microseconds for each input, which a call without a graph has no gain to pay for.
"""

from __future__ import annotations

_ENOUGH = 16  # refused in a row, with the same int inputs
_LOOK = 64  # one call in so many is looked at, for what may have come instead
_MOST = 1024  # kinds of calls that are remembered


class GivenUp:
    """Counts by the int inputs of the calls, which is all that is looked at. A wrong guess costs a graph, no answer."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, ...], int] = {}  # empty in most functions: then nothing else need be asked

    def refused(self, numbers: tuple[int, ...]) -> None:
        """A call was looked at and refused for good."""
        if len(self.counts) >= _MOST and numbers not in self.counts:
            self.counts.clear()
        self.counts[numbers] = self.counts.get(numbers, 0) + 1

    def other(self, numbers: tuple[int, ...]) -> None:
        """A call was looked at and not refused."""
        self.counts.pop(numbers, None)

    def skips(self, numbers: tuple[int, ...]) -> bool:
        """Whether a call is to be answered without looking at it."""
        count = self.counts.get(numbers, 0)
        if count < _ENOUGH or count % _LOOK == 0:
            return False
        self.counts[numbers] = count + 1
        return True
