"""The calls of one key while it is not decided how they are answered best: each is answered by one variant, in turns.

Every timed call is a call of the user's, answered once: nothing is executed for the sake of measuring. Nothing waits
for the device either; timings are read when they are there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from pygraph_inductor.driver.protocol import Driver, Stopwatch, Timing
from pygraph_inductor.selection.judge import MIN_ROUNDS, Measured, Rules, Variant, Verdict, cost, judge, table_of
from pygraph_inductor.selection.spread import spread

MAX_ROUNDS = 30
_SETTLING = 1  # timings of each variant that do not count: the first replay of a graph uploads it


@dataclass(frozen=True)
class Turn:
    """How the next call is answered. Without a stopwatch it is not timed."""

    variant: Variant
    stopwatch: Stopwatch | None


class Measurement:
    """Timings of the variants of one key, until they are enough."""

    def __init__(
        self,
        driver: Driver,
        variants: Sequence[Variant],
        rules: Rules,
        budget_ns: float,
        incumbent: Variant | None = None,
        pool_bytes: int = 0,
    ) -> None:
        """`budget_ns`: what answering calls by variants that turn out worse may cost, beyond the fewest rounds.

        `pool_bytes`: what the graph's intermediates take, and a plain call's take as well.
        """
        self.pool_bytes = pool_bytes
        self._driver = driver
        self._rules = rules
        self._budget_ns = budget_ns
        self._incumbent = incumbent
        self._variants = tuple(variants)
        self._samples: dict[Variant, list[Timing]] = {variant: [] for variant in variants}
        self._issued = dict.fromkeys(variants, 0)
        self._read = dict.fromkeys(variants, 0)
        self._pending: list[tuple[Variant, Stopwatch]] = []
        self._verdict: Verdict | None = None
        self._lock = threading.Lock()

    def next(self) -> Turn | Verdict:
        """The verdict if there is one, else by which variant the next call is answered."""
        with self._lock:
            if self._verdict is None and self._harvest():
                self._verdict = judge(self._samples, self._rules, self._is_spent(), self._incumbent)
            if self._verdict is not None:
                return self._verdict
            variant = self._next_variant()
            if self._issued[variant] >= MAX_ROUNDS + _SETTLING:
                return Turn(self._variants[0], None)  # the device has not come to them yet
            stopwatch = self._driver.stopwatch()
            if stopwatch is not None:
                self._issued[variant] += 1
            return Turn(variant, stopwatch)

    def wants(self, variant: Variant) -> bool:
        """Whether calls are to be answered by this variant, too."""
        return variant in self._issued

    def without(self, variant: Variant) -> None:
        """There is no such variant after all."""
        with self._lock:
            self._variants = tuple(one for one in self._variants if one is not variant)
            self._samples.pop(variant, None)
            self._issued.pop(variant, None)
            self._read.pop(variant, None)
            self._pending = [one for one in self._pending if one[0] is not variant]

    def done(self, turn: Turn) -> None:
        """A timed call is over on the host: its stopwatch will be read later."""
        with self._lock:
            if turn.stopwatch is not None and turn.variant in self._issued:
                self._pending.append((turn.variant, turn.stopwatch))

    def lost(self, turn: Turn) -> None:
        """A timed call ended with an exception and says nothing."""
        with self._lock:
            if turn.stopwatch is not None and turn.variant in self._issued:
                self._issued[turn.variant] -= 1

    def table(self) -> tuple[Measured, ...]:
        """What is known so far."""
        with self._lock:
            return table_of(self._samples, self._rules.objective)

    def _next_variant(self) -> Variant:
        """In turns, forwards and backwards (ABBA), so that each variant follows itself as often as another one."""
        fewest = min(self._issued.values())
        round_ = self._variants if fewest % 2 == 0 else tuple(reversed(self._variants))
        return next(variant for variant in round_ if self._issued[variant] == fewest)

    def _harvest(self) -> bool:
        """Read what has finished; whether there is anything new."""
        found = False
        for _ in range(len(self._pending)):
            variant, stopwatch = self._pending.pop(0)
            try:
                timing = stopwatch.read()
            except BaseException:
                self._issued[variant] -= 1
                raise
            if timing is None:
                self._pending.append((variant, stopwatch))
                continue
            self._read[variant] += 1
            if self._read[variant] > _SETTLING:
                self._samples[variant].append(timing)
                found = True
        return found

    def _is_spent(self) -> bool:
        """Whether there were rounds enough, or the worse variants have cost what they may cost."""
        counts = [len(timings) for timings in self._samples.values()]
        if min(counts) < MIN_ROUNDS:
            return False
        if min(counts) >= MAX_ROUNDS:
            return True
        costs = [[cost(timing, self._rules.objective) for timing in timings] for timings in self._samples.values()]
        best = min(spread(one).median for one in costs)
        return sum(max(0.0, spread(one).median - best) * len(one) for one in costs) > self._budget_ns
