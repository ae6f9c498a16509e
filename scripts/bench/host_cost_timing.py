"""How the host's time for a call is taken: bursts short enough that the GPU keeps up, and calls alone.

A call that is made alone, after a wait for the device, takes the host longer than one of a burst, also where nothing is
launched at all. So every round has both.
"""

from __future__ import annotations

import itertools
import operator
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

BURST = 20  # calls: the launch queue never fills
SINGLES = 3  # calls alone in a round: one is a thin sample, and of more a round would take longer
SETTLE = 40  # calls before anything is timed
Function = Callable[..., Any]
Iterate = Callable[[Sequence[Any]], Any]  # one iteration, on these inputs
Calls = Callable[[Iterate, Sequence[Sequence[Any]]], int]  # makes iterations, and says how many


@dataclass
class Times:
    """Microseconds a call: `host` in each burst; `alone` of every single call until it returned, and the wait after it.

    Only what ends when the device does has waits, and so a latency.
    """

    host: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)

    def add(self, burst: float, singles: Sequence[tuple[float, float]], waits: bool = True) -> None:
        """What a round took; the waits only where they mean something."""
        self.host.append(burst)
        self.alone += [alone for alone, _ in singles]
        if waits:
            self.wait += [wait for _, wait in singles]

    def summary(self) -> dict[str, float]:
        """Medians over all bursts and over all single calls: those of the parts of a call are of the parts."""
        low, middle, high = statistics.quantiles(self.host, n=4)
        named = {"host": middle, "host_q1": low, "host_q3": high, "alone": statistics.median(self.alone)}
        if self.wait:
            named["wait"] = statistics.median(self.wait)
            named["latency"] = statistics.median(map(operator.add, self.alone, self.wait))
        return {name: round(value, 2) for name, value in named.items()}


class Stopwatch:
    """A function, and how long its calls took in all. Some 0.1 us of each are the clock's own."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.spent = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter_ns()
        result = self.function(*args, **kwargs)
        self.spent += time.perf_counter_ns() - start
        return result

    def read(self) -> float:
        """Seconds, as `time.perf_counter` tells them, of a clock that runs only within the calls."""
        return self.spent / 1e9


def settle(one: Iterate, sets: Sequence[Sequence[Any]]) -> None:
    """Compile, record, and go on until it is decided for every function whether its graph is used."""
    for number in range(SETTLE):
        one(sets[number % len(sets)])
        wait()


def wait() -> None:
    """Until the device is done, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def one_round(
    one: Iterate, sets: Sequence[Sequence[Any]], now: Callable[[], float] = time.perf_counter
) -> tuple[float, list[tuple[float, float]]]:
    """Microseconds of `now` per call in a burst; and of single calls: until it returned, and of the wait after it."""
    for inputs in sets:
        one(inputs)
    wait()
    start = now()
    burst(one, sets)
    took = (now() - start) / BURST
    wait()
    singles = []
    for inputs in _singles(sets):
        start = now()
        one(inputs)
        returned = now()
        wait()
        singles.append(((returned - start) * 1e6, (now() - returned) * 1e6))
    return took * 1e6, singles


def in_a_burst(one: Iterate, sets: Sequence[Sequence[Any]]) -> int:
    """Make calls one right after the other, and wait for them; how many."""
    burst(one, sets)
    wait()
    return BURST


def one_by_one(one: Iterate, sets: Sequence[Sequence[Any]]) -> int:
    """Make calls that each find the device idle; how many."""
    for inputs in _singles(sets):
        one(inputs)
        wait()
    return SINGLES


def burst(one: Iterate, sets: Sequence[Sequence[Any]]) -> None:
    """Make calls one right after the other, and do not wait for them."""
    for number in range(BURST):
        one(sets[number % len(sets)])


def _singles(sets: Sequence[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    return itertools.islice(itertools.cycle(sets), SINGLES)
