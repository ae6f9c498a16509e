"""Statistics of timings: medians and spread, ratios with a bootstrapped confidence interval, geometric means."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RESAMPLES = 1000
CONFIDENCE = 0.95
SLOWER = 1.02  # times a baseline's time is called slower
TIMES = "\N{MULTIPLICATION SIGN}"


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Spread:
    """A distribution: its middle, its quartiles, its tail."""

    median: float
    low: float
    high: float
    p99: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(
            median=statistics.median(values),
            low=quantile(values, 0.25),
            high=quantile(values, 0.75),
            p99=quantile(values, 0.99),
            count=len(values),
        )


def half_interval(values: Sequence[float]) -> float:
    """Half the interval that holds the median with 95 % confidence, whatever the distribution; less with few values."""
    ordered = sorted(values)
    outside = max(0, math.floor(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered))))
    return (ordered[len(ordered) - 1 - outside] - ordered[outside]) / 2


@dataclass(frozen=True)
class Ratio:
    """A ratio and the interval that holds it with 95 % confidence."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}{TIMES} [{self.low:.2f}, {self.high:.2f}]"


def ratio(over: Sequence[float], under: Sequence[float], paired: bool = True, seed: int = 0) -> Ratio:
    """How much longer `over` takes than `under`, from the medians of rounds.

    Rounds of one run are paired: the variants took turns, so that a slow moment hits both. Then it is the median of
    the rounds' ratios, else, as where one has not as many rounds as the other, the ratio of the two medians.
    """
    draw = random.Random(seed)
    if paired and len(over) == len(under):
        over, under = [a / b for a, b in zip(over, under, strict=True)], [1.0]
    found = []
    for _ in range(RESAMPLES):
        above, below = draw.choices(over, k=len(over)), draw.choices(under, k=len(under))
        found.append(statistics.median(above) / statistics.median(below))
    tail = (1 - CONFIDENCE) / 2
    value = statistics.median(over) / statistics.median(under)
    return Ratio(value, quantile(found, tail), quantile(found, 1 - tail))


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean; None of nothing."""
    logs = [math.log(value) for value in values if value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else None
