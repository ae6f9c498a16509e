"""Time variants in turns, with new inputs for every iteration, until the time is up.

A round gives each variant one block: iterations back to back for throughput, then one at a time for latency. The order
changes from round to round, so that no variant always follows the same one. All variants of a round get the same
values, at addresses of their own: what takes longer for some values than for others does so for all of them.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from scripts.bench.registry import SEED, Draw, Program
from scripts.bench.results import Timing
from scripts.bench.stats import SLOWER, Spread, ratio
from scripts.bench.variants import INDUCTOR, OURS, STOCK, Variant, active, begin_iteration

BLOCK_SECONDS = 0.025
BLOCK_BYTES = 12 << 30  # the inputs of one block, all alive together
MIN_ROUNDS, MAX_ROUNDS = 5, 60
PATIENCE = 4  # times as long as usual where it is not clear yet whether ours is slower than a baseline
STEADY = "steady"  # how iterations in flight are timed: from the end of the first one of a block
ALIKE = "alike"  # the values that the variants of a round get
LATENCIES = 5


@dataclass
class Runner:
    """A variant ready to run: `call` is compiled and warm, or `iterate` replays something without inputs."""

    variant: Variant
    program: Program
    call: Callable[..., Any]
    simulate: bool = False
    replay: Callable[[], Any] | None = None

    def iterate(self, inputs: Sequence[Any]) -> Any:
        """One iteration. Begins a step where stock graphs want it, which costs them a counter."""
        if self.replay is not None:
            return self.replay()
        begin_iteration(self.variant)
        return self.program.drive(self.call, inputs)


@dataclass
class Series:
    """Samples of one variant, in microseconds."""

    latency: list[list[float]] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)
    throughput: list[float] = field(default_factory=list)

    def timing(self, kind: str = "measured") -> Timing:
        return Timing(
            latency_us=Spread.of([sample for one in self.latency for sample in one]),
            host_us=Spread.of(self.host),
            device_us=Spread.of(self.device) if self.device else None,
            throughput_us=Spread.of(self.throughput),
            rounds_latency_us=[round(statistics.median(one), 3) for one in self.latency],
            rounds_throughput_us=[round(one, 3) for one in self.throughput],
            kind=kind,
        )


@dataclass
class Rounds:
    """What came of the rounds: samples by variant, and who failed on the way."""

    series: dict[str, Series]
    failed: dict[str, Exception] = field(default_factory=dict)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def block_length(runner: Runner, draw: Draw, device: torch.device) -> int:
    """How many iterations make a block: enough time, not too many bytes of inputs."""
    inputs = [runner.program.fresh(draw) for _ in range(3)]
    took = []
    with active(runner.variant, runner.simulate):
        for one in inputs:
            synchronize(device)
            start = time.perf_counter()
            runner.iterate(one)
            synchronize(device)
            took.append(time.perf_counter() - start)
    size = sum(leaf.nbytes for leaf in pytree.tree_leaves(inputs[0]) if isinstance(leaf, Tensor))
    wanted = BLOCK_SECONDS / max(statistics.median(took), 1e-6)
    return max(3, min(int(wanted) + 1, 64, BLOCK_BYTES // max(size, 1)))


def back_to_back(runner: Runner, inputs: Sequence[Any], device: torch.device) -> float:
    """Microseconds per iteration with calls in flight: from the end of the first iteration to the end of the last.

    The first one fills the pipe: how long the host takes to its first launch is no part of what the next ones take.
    """
    synchronize(device)
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        runner.iterate(inputs[0])
        begin.record()
        for one in inputs[1:]:
            runner.iterate(one)
        end.record()
        end.synchronize()
        took = begin.elapsed_time(end) * 1e3
    else:
        runner.iterate(inputs[0])
        start = time.perf_counter()
        for one in inputs[1:]:
            runner.iterate(one)
        took = (time.perf_counter() - start) * 1e6
    return took / (len(inputs) - 1)


def one_at_a_time(runner: Runner, inputs: Sequence[Any], device: torch.device, series: Series) -> list[float]:
    """Latencies; host time is until the call returned, device time between events around it."""
    latencies = []
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []
    for one in inputs:
        synchronize(device)
        if events:
            events[0].record()
        start = time.perf_counter()
        result = runner.iterate(one)
        returned = time.perf_counter()
        if events:
            events[1].record()
        synchronize(device)
        latencies.append((time.perf_counter() - start) * 1e6)
        series.host.append((returned - start) * 1e6)
        if events:
            series.device.append(events[0].elapsed_time(events[1]) * 1e3)
        del result
    return latencies


def interleave(
    runners: Sequence[Runner], draw: Draw, device: torch.device, seconds: float, most: float | None = None
) -> Rounds:
    """Rounds over all runners until `seconds` are over, at least a few; the first round only warms up.

    Where rounds differ so much that it is not clear whether ours is slower than a baseline they go on, either way until
    it is clear, or `most` seconds are over. A runner that raises is out from then on, and the others go on.
    """
    most = PATIENCE * seconds if most is None else most
    rounds = Rounds({runner.variant.name: Series() for runner in runners})
    lengths: dict[str, int] = {}
    order, shuffle = list(runners), random.Random(0)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        number, started = 0, time.perf_counter()

        def wanted() -> bool:
            took = time.perf_counter() - started
            return took < seconds or (took < most and in_doubt(rounds))

        while number <= MIN_ROUNDS or (number <= MAX_ROUNDS and wanted()):
            shuffle.shuffle(order)
            for runner in list(order):
                name = runner.variant.name
                try:
                    if name not in lengths:
                        lengths[name] = block_length(runner, draw, device)
                    series = rounds.series[name] if number else Series()
                    turn(runner, draw, device, lengths[name], series, number)
                except Exception as error:  # whatever compiled code may raise
                    order.remove(runner)
                    del rounds.series[name]
                    rounds.failed[name] = error
            gc.collect(0)
            number += 1
    finally:
        gc.enable()
        gc.unfreeze()
    return rounds


def in_doubt(rounds: Rounds) -> bool:
    """Whether the interval of ours over the better baseline holds what would be called slower, and what would not."""
    series = {name: one.throughput for name, one in rounds.series.items()}
    baselines = [series[name] for name in (INDUCTOR.name, STOCK.name) if name in series]
    if OURS.name not in series or not baselines:
        return False
    found = ratio(series[OURS.name], min(baselines, key=statistics.median))
    return found.low <= SLOWER <= found.high


def turn(runner: Runner, draw: Draw, device: torch.device, length: int, series: Series, number: int) -> None:
    """One variant's block of the round of that number, every iteration on inputs of its own."""
    draw.begin(SEED + 2 * number + 1)
    inputs = [runner.program.fresh(draw) for _ in range(length)]
    with active(runner.variant, runner.simulate):
        series.throughput.append(back_to_back(runner, inputs, device))
    draw.begin(SEED + 2 * number + 2)
    inputs = [runner.program.fresh(draw) for _ in range(min(length, LATENCIES))]
    with active(runner.variant, runner.simulate):
        series.latency.append(one_at_a_time(runner, inputs, device, series))
