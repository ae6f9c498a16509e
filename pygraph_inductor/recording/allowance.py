"""What a function may spend on recordings: its first keys are free, later ones live on what its graphs have earned.

Sizes that never stop changing would otherwise be recorded for ever, each for the sake of a few replays.
"""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Callable, Collection
from typing import Any

BEHIND = "recording its shapes takes longer than their graphs have saved so far; rare ones stay plain"
AT_ONCE = 2  # calls of a key until it is recorded
ALWAYS = 1 << 62  # calls that are enough, whatever was spent
_SHARE = 0.5  # of what graphs have earned that may be spent on further ones
_LEAST = 0.5  # of a recording's price that a key's calls must have been worth, whatever was earned
_LOOK = 64  # one call in so many that came too early is a reason to add up again
_GUESS = 50_000.0  # ns that a replay saves, where nothing was recorded that could tell: a launch or two from Python
# ns that a replay is taken to save at least: that graphs of some sizes save nothing does not keep all others plain for
# ever.
_LITTLE = 5_000.0
_MOST = 4096  # kinds of calls that are remembered
_PRICES = 64  # of attempts that are remembered


class Allowance:
    """An account in ns. A key's calls, had they been replays, must have saved its recording and what is still owed.

    Everything but `skips` needs the lock of the function's entries.
    """

    def __init__(self, free: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """`free`: a function that has seen no more keys records each when it comes again; and so many cost nothing."""
        self.clock = clock
        self.keys = 0  # seen so far
        self.total_ns = 0  # spent on recording and measuring
        self.needed = AT_ONCE  # calls of a key until it is recorded, as it was added up last
        self.expected_ns = _GUESS  # that a replay saves, by the cost model
        self._free = free
        self._attempts = 0
        # What the last ones took. The first may take seconds, to compile what the others find.
        self._prices: collections.deque[int] = collections.deque(maxlen=_PRICES)
        self._owed_ns = 0  # of the total, what was not free
        self._early = 0
        self._is_old = False
        # Of both, the oldest come first.
        self._with_attempts: dict[tuple[int, ...], None] = {}
        self._unseen: dict[tuple[int, ...], int] = {}

    @property
    def is_free(self) -> bool:
        """Whether the function has seen so few keys that all may be recorded."""
        return self.keys <= self._free

    def spend(self, ns: int, numbers: tuple[int, ...]) -> None:
        """An attempt to record a call with these ints took so long."""
        self._attempts += 1
        self._prices.append(ns)
        _make_room(self._with_attempts)
        self._with_attempts[numbers] = None
        self._unseen.pop(numbers, None)  # these calls have had their recording
        self.lose(ns)

    def spend_more(self, ns: int) -> None:
        """The last attempt, or one shortly before, was about another variant as well, which took so long."""
        if self._prices:
            self._prices[-1] += ns
        self.lose(ns)

    def lose(self, ns: float) -> None:
        """What calls have cost more than plain ones because they were measured, or the like."""
        self.total_ns += int(ns)
        if self._attempts > self._free:
            self._owed_ns += int(ns)
        self._is_old = True

    def is_early(self, calls: int) -> bool:
        """Whether a key with so many calls is not to be recorded yet, as it was added up last."""
        if self.is_free or calls >= self.needed:
            return False
        self._early += 1
        if self._early % _LOOK == 0:
            self._is_old = True
        return True

    @property
    def is_behind(self) -> bool:
        """Whether keys have to come more often than twice."""
        return self.needed > AT_ONCE

    @property
    def is_old(self) -> bool:
        """Whether it should be added up again."""
        return self._is_old and not self.is_free

    def add_up(self, gains: Collection[tuple[int, float]], applies: bool) -> None:
        """`gains`: how often graphs were replayed, and what each replay saved.

        Where the rule does not apply, everything is recorded at once.
        """
        self._is_old = False
        if not applies or not self._attempts:
            self.needed = AT_ONCE
            return
        price = statistics.median(self._prices)
        missing = max(self._owed_ns - _SHARE * saved(gains) + price, _LEAST * price)
        self.needed = min(max(AT_ONCE, int(missing / max(self._a_replay_saves(gains), _LITTLE)) + 1), ALWAYS - 1)

    def counted(self, numbers: tuple[int, ...]) -> int:
        """The calls with these ints that `skips` has seen."""
        return self._unseen.get(numbers, 0)

    def skips(self, numbers: tuple[int, ...]) -> bool:
        """Whether a call is answered plainly at once, because calls with its ints are too few and none was recorded.

        Takes no lock: a wrong guess costs a graph, no answer.
        """
        if self.needed <= AT_ONCE or numbers in self._with_attempts:
            return False
        _make_room(self._unseen)
        count = self._unseen[numbers] = self._unseen.pop(numbers, 0) + 1  # the latest come last
        self._early += 1
        if self._early % _LOOK == 0:
            self._is_old = True
            return False
        # Sizes that come in turns may never meet that one call.
        return count < self.needed and count % _LOOK != 0

    def _a_replay_saves(self, gains: Collection[tuple[int, float]]) -> float:
        if replays := sum(count for count, _ in gains):
            return saved(gains) / replays
        return sum(gain for _, gain in gains) / len(gains) if gains else self.expected_ns


def _make_room(known: dict[tuple[int, ...], Any]) -> None:
    """Forget the older half of what is too much. Other threads may be at it."""
    if len(known) >= _MOST:
        for old in list(known)[: _MOST // 2]:
            known.pop(old, None)


def saved(gains: Collection[tuple[int, float]]) -> float:
    """What graphs have earned, in ns."""
    return sum(count * gain for count, gain in gains)
