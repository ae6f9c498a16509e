"""The two halves of `judge.py` that run workloads: deciding with an empty store, and timing with what was stored.

`judge.py` starts a process for each workload and half, whose `main` is here.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import pygraph_inductor
from pygraph_inductor.driver.protocol import Timing as CallTiming
from pygraph_inductor.selection.selector import Selector
from scripts.bench import facts
from scripts.bench.measure import Runner, interleave, synchronize
from scripts.bench.process import Gate
from scripts.bench.registry import Draw, Workload, all_workloads, preserved
from scripts.bench.results import Decision, Timing, encode, write_json
from scripts.bench.variants import ABLATIONS, INDUCTOR, OURS, STOCK, active, compiled
from scripts.bench.worker import LONGEST, UNSETTLED, WARM_UP, one_line, warm

ALWAYS = next(variant for variant in ABLATIONS if variant.without == "selection")  # a graph, whether or not it pays
STEADY = 12  # iterations that show what one takes once everything is decided
Wait = Callable[[], float | None]


@dataclass
class Deciding:
    """A workload's first process. `measuring_s` is what its iterations took, until all was decided, beyond as many
    steady ones."""

    compiling_s: float
    recording_s: float
    iterations: int
    measuring_s: float
    steady_us: float
    decisions: list[Decision] = field(default_factory=list)


@dataclass
class Judging:
    """A workload's second process: how long each graph's stored decision took to find, and timings in turns."""

    lookups_us: list[float]
    decisions: list[Decision]
    timings: dict[str, Timing]


@dataclass
class Judged:
    """A workload with both; or why there is nothing."""

    workload: str
    reason: str | None = None
    deciding: Deciding | None = None
    judging: Judging | None = None


class HostStopwatch:
    """For runs without a GPU: the host's clock is the device's, which does its work at once."""

    def start(self) -> None:
        self._began = time.perf_counter_ns()

    def stop(self) -> None:
        self._took = time.perf_counter_ns() - self._began

    def read(self) -> CallTiming:
        return CallTiming(self._took, self._took, False)


def main(arguments: Sequence[str], gate: Gate) -> int:
    """What a process does. It waits at its gate once it is ready to measure."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.judge")
    parser.add_argument("role", choices=("decide", "judge"))
    parser.add_argument("workload")
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--decisions", type=Path, required=True, help="a folder for them, empty at first")
    parser.add_argument("--threads", type=int, required=True, help="compile kernels in so many processes")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    torch._inductor.config.compile_threads = options.threads
    prepare_process(device)
    facts.keep_decisions(options.decisions)
    workload = all_workloads()[options.workload]
    try:
        if options.role == "decide":
            found = decide(workload, device, gate.wait)
        else:
            found = judge(workload, device, options.seconds, gate.wait)
    except Exception as error:  # whatever a model or compiler raises
        traceback.print_exc()
        found = Judged(workload.name, one_line(error))
    write_json(options.out, encode(found))
    return 0


def at_once() -> float | None:
    """No gate: measure now, for as long as it takes."""
    return None


def prepare_process(device: torch.device) -> None:
    """Several variants share one function, and a simulated device gets a clock."""
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.accumulated_recompile_limit = 1024
    if device.type == "cpu":
        from pygraph_inductor.driver.devices import driver_for

        driver: Any = driver_for(device)
        driver.clock = HostStopwatch


def decide(workload: Workload, device: torch.device, wait: Wait = at_once) -> Judged:
    """Compile, record and measure until every function has its decision, and what each of these took.

    Measuring begins when `wait` returns.
    """
    simulated = device.type == "cpu"
    program, setting = workload.program(device, tiny=simulated)
    draw = Draw(setting)
    before = len(functions())
    runner = Runner(OURS, program, compiled(OURS, program.function), simulated)
    with preserved(program), active(OURS, simulated):
        start = [one_iteration(runner, draw) for _ in range(UNSETTLED)]
        wait()
        measuring: list[float] = []
        while len(measuring) < LONGEST and undecided(before):
            measuring.append(one_iteration(runner, draw))
        steady = statistics.median(one_iteration(runner, draw) for _ in range(STEADY))
    if undecided(before):
        return Judged(workload.name, f"not decided after {LONGEST} iterations")
    return Judged(
        workload.name,
        deciding=Deciding(
            compiling_s=round(start[0], 3),
            recording_s=round(sum(start[1:]), 3),
            iterations=len(measuring),
            measuring_s=round(max(sum(measuring) - len(measuring) * steady, 0.0), 6),
            steady_us=round(steady * 1e6, 1),
            decisions=facts.decisions_of(functions()[before:]),
        ),
    )


def one_iteration(runner: Runner, draw: Draw) -> float:
    """Seconds of one iteration on inputs of its own, from an idle device to an idle device."""
    inputs = runner.program.fresh(draw)
    synchronize(draw.device)
    start = time.perf_counter()
    runner.iterate(inputs)
    synchronize(draw.device)
    return time.perf_counter() - start


def judge(workload: Workload, device: torch.device, seconds: float, wait: Wait = at_once) -> Judged:
    """Run with what is stored, in turns with no graphs, stock graphs, and a graph whether or not it pays.

    Whatever is timed, looking decisions up included, begins when `wait` returns, and may take as many seconds as that
    says.
    """
    simulated = device.type == "cpu"
    program, setting = workload.program(device, tiny=simulated)
    draw = Draw(setting)
    others = (INDUCTOR, ALWAYS) if simulated else (INDUCTOR, STOCK, ALWAYS)
    runners = [warm(variant, program, draw, simulated)[0] for variant in others]
    before = len(functions())
    lookups: list[float] = []
    quiet = functools.cache(wait)
    with timed_lookups(lookups, quiet):
        ours, _ = warm(OURS, program, draw, simulated, settled=False)
        with preserved(program), active(OURS, simulated):
            for _ in range(WARM_UP):
                ours.iterate(program.fresh(draw))
                synchronize(device)
    decisions = facts.decisions_of(functions()[before:])
    with preserved(program):
        rounds = interleave([ours, *runners], draw, device, seconds, quiet())
    for error in rounds.failed.values():
        raise error
    timings = {name: series.timing() for name, series in rounds.series.items()}
    return Judged(workload.name, judging=Judging([round(one, 1) for one in lookups], decisions, timings))


@contextlib.contextmanager
def timed_lookups(into: list[float], wait: Wait = at_once) -> Iterator[None]:
    """Note how long it takes each function to find its stored decision, in µs: the first time for each kind of call.

    After `wait`, which is asked again each time.
    """
    original = Selector.known
    seen: set[Any] = set()

    def known(self: Selector, call_key: Any) -> Any:
        wait()
        start = time.perf_counter_ns()
        choice = original(self, call_key)
        took = time.perf_counter_ns() - start
        if choice is not None and (id(self), call_key) not in seen:
            seen.add((id(self), call_key))
            into.append(took / 1e3)
        return choice

    Selector.known = known  # type: ignore[method-assign]
    try:
        yield
    finally:
        Selector.known = original  # type: ignore[method-assign]


def undecided(before: int) -> int:
    """How many decisions of the functions compiled since then are still being measured."""
    return sum(not one.chosen for function in functions()[before:] for one in function.decisions)


def functions() -> list[Any]:
    return pygraph_inductor.report().functions
