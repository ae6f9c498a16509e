"""A look back at decisions: one call in many is timed, and a decision is taken again when calls cost something else.

Conditions change after a decision: another program on the device, other clocks. Each new examination makes the next
one rarer, so that a program on the edge does not measure for ever.
"""

from __future__ import annotations

import statistics
import threading

from pygraph_inductor.driver.protocol import Driver, Stopwatch
from pygraph_inductor.selection.judge import cost

EVERY = 1024
_SAMPLES = 5
_FACTOR = 2.0
_LEAST_NS = 20_000.0  # a difference that users can feel
_RARER = 4


class Watch:
    """Samples of the calls that one decision answers."""

    def __init__(self, driver: Driver, objective: str, expected_ns: float, examinations: int = 0) -> None:
        """`expected_ns`: what a call cost when it was decided; 0: unknown, the first samples say it."""
        self.examinations = examinations
        self.every = EVERY * _RARER**examinations
        self._driver = driver
        self._objective = objective
        self._expected_ns = expected_ns
        self._calls = 0
        self._pending: Stopwatch | None = None
        self._costs: list[float] = []
        self._lock = threading.Lock()

    def is_due(self) -> bool:
        """Count a call; whether it should be timed. (For calls that go through Python anyway.)"""
        self._calls += 1
        return self._calls % self.every == 0

    def stopwatch(self) -> Stopwatch | None:
        """For the call that comes now."""
        return self._driver.stopwatch()

    def done(self, stopwatch: Stopwatch) -> None:
        """That call is over on the host. One that is not read by the next sample is dropped."""
        with self._lock:
            self._pending = stopwatch

    def has_drifted(self) -> bool:
        """Look at the last sample; whether calls cost something else now."""
        with self._lock:
            stopwatch, self._pending = self._pending, None
            timing = stopwatch.read() if stopwatch is not None else None
            if timing is None:
                return False
            self._costs.append(cost(timing, self._objective))
            if len(self._costs) < _SAMPLES:
                return False
            now = statistics.median(self._costs)
            self._costs.clear()
            if not self._expected_ns:
                self._expected_ns = now
            return is_far(now, self._expected_ns)


def is_far(now: float, expected: float) -> bool:
    """Whether a call costs something else than it did, by a factor and by an amount."""
    ratio = now / max(expected, 1.0)
    return abs(now - expected) > _LEAST_NS and not 1 / _FACTOR < ratio < _FACTOR
