"""Statistics of timings: medians and spread, ratios with a bootstrapped confidence interval, geometric means."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RESAMPLES = 1000
CONFIDENCE = 0.95
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
    """A ratio of two medians and the interval that holds it with 95 % confidence."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}{TIMES} [{self.low:.2f}, {self.high:.2f}]"


def ratio(over: Sequence[float], under: Sequence[float], paired: bool = True, seed: int = 0) -> Ratio:
    """Median of `over` by median of `under`, from the medians of rounds.

    Rounds of one run are paired: the variants took turns, so that a slow moment hits both.
    """
    draw = random.Random(seed)
    found = []
    if paired:
        count = min(len(over), len(under))
        over, under = over[:count], under[:count]
    for _ in range(RESAMPLES):
        picks = [draw.randrange(len(over)) for _ in over]
        others = picks if paired else [draw.randrange(len(under)) for _ in under]
        found.append(statistics.median(over[i] for i in picks) / statistics.median(under[i] for i in others))
    tail = (1 - CONFIDENCE) / 2
    value = statistics.median(over) / statistics.median(under)
    return Ratio(value, quantile(found, tail), quantile(found, 1 - tail))


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean; None of nothing."""
    logs = [math.log(value) for value in values if value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else None
