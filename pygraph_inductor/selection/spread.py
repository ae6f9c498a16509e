"""Statistics that a few wild timings do not move: medians, and deviations from them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# The standard error of a median over that of a mean, and of a standard deviation over the median deviation, and over
# the distance of the quartiles, where the deviations are normal.
_OF_MEDIAN = math.sqrt(math.pi / 2)
_OF_DEVIATION = 1.4826
_OF_QUARTILES = 0.7413
# Three timings can agree by accident: a spread below this is not believed.
_ENOUGH = 6
_LEAST_PART = 0.01
_LEAST_NS = 500.0  # about the resolution of the device's clock


@dataclass(frozen=True)
class Spread:
    """Where some timings lie: `deviation` is the median distance from the median, `middle` the distance of the
    quartiles, `range` from least to greatest."""

    median: float
    deviation: float
    range: float
    count: int
    middle: float = 0.0

    @property
    def error(self) -> float:
        """How far the median may be from that of endlessly many timings: one standard error.

        Of a few values most may be wild; so while they are few, all have to agree. Where calls take one of two times,
        the median deviation can be nothing; the quartiles see both.
        """
        spread = max(_OF_DEVIATION * self.deviation, _OF_QUARTILES * self.middle)
        believed = max(spread, _LEAST_PART * self.median, _LEAST_NS)
        if self.count < _ENOUGH:
            believed = max(believed, self.range)
        return _OF_MEDIAN * believed / math.sqrt(self.count)


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    median = statistics.median(values)
    deviation = statistics.median(abs(value - median) for value in values)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [median] * 3
    return Spread(median, deviation, max(values) - min(values), len(values), high - low)
