"""One workload in a process of its own: `probe` one variant's start-up, memory and kernels, or `time` all in turns.

`run.py` starts these. A worker writes its findings as JSON where it is told.
"""

from __future__ import annotations

import argparse
import gc
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts.bench import correct, facts
from scripts.bench.measure import Runner, interleave, synchronize
from scripts.bench.memory import memory_of, parts_of
from scripts.bench.process import Gate
from scripts.bench.profile import profiled
from scripts.bench.reasons import brief
from scripts.bench.registry import SEED, Draw, Program, Workload, all_workloads, preserved
from scripts.bench.regression import TABLED
from scripts.bench.results import Startup, Timing, VariantResult, encode, write_json
from scripts.bench.stats import Spread
from scripts.bench.variants import (
    EAGER,
    FLOOR,
    INDUCTOR,
    OURS,
    STOCK,
    TABLES,
    VARIANTS,
    Variant,
    active,
    compiled,
    unavailable,
)

WARM_UP = 4  # plain, recording, two replays
UNSETTLED = 2  # plain, recording: what follows is timed to decide between them, which needs a quiet machine
LONGEST = 120  # iterations until everything is decided
PROFILED = 3


def one_line(error: BaseException) -> str:
    """An exception as one line for a table."""
    return brief(f"{type(error).__name__}: {error}")


def warm(
    variant: Variant, program: Program, draw: Draw, simulate: bool, settled: bool = True
) -> tuple[Runner, Startup]:
    """Compile a variant and run it until it is steady; seconds of the first call and of all of them.

    Not `settled`: only until it is recorded. `settle` does the rest. Every variant starts with the same values: where
    shapes and addresses depend on them, they decide what code is compiled for.
    """
    device = draw.device
    draw.begin(SEED)
    runner = Runner(variant, program, compiled(variant, program.function), simulate)
    started = time.perf_counter()
    first = 0.0
    with preserved(program), active(variant, simulate):
        for number in range(WARM_UP if settled else UNSETTLED):
            runner.iterate(program.fresh(draw))
            synchronize(device)
            if number == 0:
                first = time.perf_counter() - started
        if settled:
            settle(runner, draw)
    return runner, Startup(round(first, 3), round(time.perf_counter() - started, 3), "shared")


def settle(runner: Runner, draw: Draw) -> None:
    """Go on until it is decided for every function whether its graph is used. Needs the variant to be active."""
    for _ in range(LONGEST):
        if not runner.variant.ours or not facts.undecided():
            return
        runner.iterate(runner.program.fresh(draw))
        synchronize(draw.device)


def capture_floor(plain: Runner, draw: Draw) -> Runner:
    """The compiled iteration captured whole: a raw replay on stale inputs, below which no variant can be.

    Raises what the capture raises, for instance where an iteration needs the host.
    """
    program = plain.program
    inputs = program.fresh(draw)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with active(plain.variant), torch.cuda.stream(side):
        for _ in range(2):
            program.drive(plain.call, inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with active(plain.variant), torch.cuda.graph(graph):
        program.drive(plain.call, inputs)
    # What it returned is let go: a loss would keep the gradients' nodes, and with them this stream, for other variants.
    kept = inputs  # the graph reads them

    def replay() -> Any:
        graph.replay()
        return kept

    return Runner(FLOOR, program, plain.call, replay=replay)


def forget_broken_capture() -> None:
    """After a capture that broke, torch's generator takes everything for captured until another one ends well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the graph is empty
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            pass
    graph.reset()


def probe(workload: Workload, variant: Variant, device: torch.device, cache: str) -> dict[str, Any]:
    """Start-up, memory and kernels of one variant, alone in this process."""
    simulated = device.type == "cpu"
    program, setting = workload.program(device, tiny=simulated)
    draw = Draw(setting)
    result = VariantResult()
    runner, result.startup = warm(variant, program, draw, simulated)
    result.startup.cache = cache
    if not simulated:
        with active(variant):
            result.memory = memory_of(runner, draw)
        parts_into(result, runner, draw)
        profile_into(result, runner, draw)
    result.skips = facts.dynamo_counters()
    if variant.ours:
        result.graphs = facts.steady_graphs(runner, draw, before=0)
        result.decisions = facts.decisions_of(report_functions())
    found: dict[str, Any] = {"variants": {variant.name: encode(result)}}
    if variant == INDUCTOR:
        try:
            capture_floor(runner, draw)
            found["floor"] = None
        except Exception as error:  # whatever a capture may raise: it decides how the floor is found
            found["floor"] = one_line(error)
    return found


def parts_into(result: VariantResult, runner: Runner, draw: Draw) -> None:
    """What the memory is for; trouble with finding out is not the variant's."""
    try:
        with active(runner.variant):
            parts = parts_of(runner, runner.program.fresh(draw))
    except Exception as error:
        traceback.print_exc()
        result.reason = f"parts of memory: {one_line(error)}"
    else:
        if result.memory is not None:
            result.memory.parts = parts


def profile_into(result: VariantResult, runner: Runner, draw: Draw) -> None:
    """Profile a few iterations; the profiler's trouble is not the variant's."""
    inputs = iter([runner.program.fresh(draw) for _ in range(PROFILED + 1)])
    try:
        with active(runner.variant):
            result.profile = profiled(lambda: runner.iterate(next(inputs)), PROFILED)
    except Exception as error:
        traceback.print_exc()
        result.reason = f"profiler: {one_line(error)}"


def report_functions() -> list[Any]:
    import pygraph_inductor

    return pygraph_inductor.report().functions


class Timed:
    """All variants of a workload in this process: prepared and checked first, timed once the machine is ours."""

    def __init__(
        self, workload: Workload, variants: Sequence[Variant], device: torch.device, floor: str | None
    ) -> None:
        self.workload, self.device, self.no_capture = workload, device, floor
        self.simulated = device.type == "cpu"
        self.program, self.setting = workload.program(device, tiny=self.simulated)
        self.draw = Draw(self.setting)
        self.results: dict[str, VariantResult] = {}
        self.runners: dict[str, Runner] = {}
        self.functions: dict[str, slice] = {}  # those in the package's report that a variant compiled
        self.wants_floor = FLOOR in variants
        for variant in variants:
            if variant != FLOOR:
                self.prepare(variant)
            if variant == INDUCTOR and self.wants_floor and INDUCTOR.name in self.runners and not self.no_capture:
                # Before anything is kept of other variants: a gradient's node that lives belongs to their stream.
                self.prepare_floor(self.runners[INDUCTOR.name])
        self.check()
        gc.collect()
        torch.cuda.empty_cache()

    def attempt(self, variant: Variant, work: Callable[[], Any]) -> Any:
        """Run `work`; an exception becomes the variant's failure and the others go on."""
        result = self.results.setdefault(variant.name, VariantResult())
        try:
            return work()
        except Exception as error:  # anything a model or compiler raises is a result, not our end
            traceback.print_exc()
            result.status, result.reason = "failed", one_line(error)
            self.runners.pop(variant.name, None)
            return None

    def keep(self, runner: Runner) -> None:
        self.runners[runner.variant.name] = runner

    def prepare(self, variant: Variant) -> None:
        if reason := unavailable(variant):
            self.results[variant.name] = VariantResult("not available", reason)
            return
        settled = self.simulated or not variant.ours
        before = len(report_functions())
        self.attempt(variant, lambda: self.keep(warm(variant, self.program, self.draw, self.simulated, settled)[0]))
        self.functions[variant.name] = slice(before, len(report_functions()))

    def prepare_floor(self, plain: Runner) -> None:
        """Capture it; where that fails, it is found from the kernels later."""
        try:
            self.keep(capture_floor(plain, self.draw))
        except Exception as error:  # whatever a capture may raise
            traceback.print_exc()
            self.no_capture = one_line(error)
            forget_broken_capture()

    def check(self) -> None:
        """Compare every variant with eager and with the plain call, and note what is wrong."""
        found: dict[str, correct.Outcome] = {}
        for runner in [runner for runner in self.runners.values() if runner.variant != FLOOR]:
            variant = runner.variant
            value = self.attempt(variant, partial(correct.outcome, runner, self.setting))
            if value is None:
                continue
            if variant in (EAGER, INDUCTOR):
                found[variant.name] = value
            eager, plain = found.get(EAGER.name), found.get(INDUCTOR.name)
            if eager is None:
                continue
            result = self.results[variant.name]
            accuracy = correct.accuracy(self.workload, self.setting, value, eager, plain, variant in (EAGER, INDUCTOR))
            result.accuracy = accuracy
            if variant not in (EAGER, INDUCTOR) and (wrong := correct.complaint(accuracy, variant.ours)):
                result.status, result.reason = "wrong", wrong

    def time(self, seconds: float, most: float | None = None) -> None:
        """Interleaved rounds for as long as `interleave` says, then the floor from the profiler where not captured."""
        for runner in list(self.runners.values()):
            with preserved(self.program), active(runner.variant, self.simulated):
                self.attempt(runner.variant, partial(settle, runner, self.draw))
        for name, own in self.functions.items():
            self.results[name].decisions = facts.decisions_of(report_functions()[own])
        before = len(report_functions())
        rounds = interleave(list(self.runners.values()), self.draw, self.device, seconds, most)
        for name, series in rounds.series.items():
            self.results[name].timing = series.timing()
        for name, error in rounds.failed.items():
            traceback.print_exception(error)
            self.results[name].status, self.results[name].reason = "failed", f"while timed: {one_line(error)}"
            self.runners.pop(name)
        if OURS.name in self.results and self.results[OURS.name].graphs is None:
            self.results[OURS.name].skips["functions compiled while timing"] = len(report_functions()) - before
        plain = self.runners.get(INDUCTOR.name)
        if self.wants_floor and FLOOR.name not in self.runners and plain is not None:
            self.attempt(FLOOR, lambda: self.floor_from_kernels(plain))

    def found(self) -> dict[str, Any]:
        """The process's answer, as far as it is known."""
        return {"variants": {name: encode(result) for name, result in self.results.items()}}

    def profile(self) -> None:
        """What a process of its own finds otherwise, as far as it can be told apart from the other variants."""
        for name in (INDUCTOR.name, STOCK.name, OURS.name):
            if not self.simulated and name in self.runners:
                profile_into(self.results[name], self.runners[name], self.draw)
        if [name for name, runner in self.runners.items() if runner.variant.ours] == [OURS.name]:
            self.results[OURS.name].graphs = facts.steady_graphs(self.runners[OURS.name], self.draw, before=0)

    def floor_from_kernels(self, plain: Runner) -> None:
        inputs = iter([self.program.fresh(self.draw) for _ in range(PROFILED + 1)])
        with active(plain.variant):
            busy = profiled(lambda: plain.iterate(next(inputs)), PROFILED).busy_us
        one = Spread(busy, busy, busy, busy, 1)
        timing = Timing(one, Spread(0.0, 0.0, 0.0, 0.0, 1), one, one, [busy], [busy], kind="kernels")
        self.results[FLOOR.name] = VariantResult(reason=f"not captured: {self.no_capture}", timing=timing)


def simulate(workload: Workload) -> dict[str, Any]:
    """The tiny workload on the simulated driver: right answers, and the counts that need no clock.

    Some once more with tables, of which the package by itself makes none there.
    """
    device = torch.device("cpu")
    program, setting = workload.program(device, tiny=True)
    results: dict[str, VariantResult] = {}
    outcomes: dict[str, correct.Outcome] = {}
    for variant in (EAGER, INDUCTOR, OURS, *([TABLES] if workload.name in TABLED else [])):
        result = results.setdefault(variant.name, VariantResult())
        try:
            before = len(report_functions())
            runner, result.startup = warm(variant, program, Draw(setting), simulate=True)
            outcomes[variant.name] = correct.outcome(runner, setting)
            plain = outcomes.get(INDUCTOR.name)
            result.accuracy = correct.accuracy(
                workload, setting, outcomes[variant.name], outcomes["eager"], plain, not variant.ours
            )
            if wrong := correct.complaint(result.accuracy, variant.ours):
                result.status, result.reason = "wrong", wrong
            if variant.ours:
                with preserved(program):  # the next variant is compared with what eager did, from the same state
                    result.graphs = facts.steady_graphs(runner, Draw(setting, SEED + 9), before)
                result.decisions = facts.decisions_of(report_functions()[before:])
        except Exception as error:
            traceback.print_exc()
            result.status, result.reason = "failed", one_line(error)
    return {"variants": {name: encode(result) for name, result in results.items()}}


def main(arguments: Sequence[str], gate: Gate) -> int:
    """What a process does; `gate` is where it waits, if it is told to, once all variants are ready to be timed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.worker", description=__doc__)
    parser.add_argument("role", choices=("probe", "time", "simulate"))
    parser.add_argument("workload")
    parser.add_argument("--variants", default="")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny and simulated, for tests")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--cache", default="shared")
    parser.add_argument("--floor", default="", help="why the floor cannot be captured")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--profile", action="store_true", help="count kernels and copies after timing")
    parser.add_argument("--gate", action="store_true", help="say when everything is ready, and wait before timing")
    parser.add_argument("--threads", type=int, default=1, help="compile kernels in so many processes")
    options = parser.parse_args(arguments)
    torch._inductor.config.compile_threads = options.threads
    torch._dynamo.config.recompile_limit = 64  # several variants share one function
    torch._dynamo.config.accumulated_recompile_limit = 1024
    facts.keep_no_decisions()
    workload = all_workloads()[options.workload]
    variants = [VARIANTS[name] for name in options.variants.split(",") if name]
    device = torch.device(options.device)
    found: dict[str, Any]
    if options.role == "simulate":
        found = simulate(workload)
    elif options.role == "probe":
        found = probe(workload, variants[0], device, options.cache)
    else:
        timed = Timed(workload, variants, device, options.floor or None)
        timed.time(options.seconds, gate.wait() if options.gate else None)
        found = timed.found()
        if options.profile:
            write_json(options.out, found)  # in case that the time is up before the profiler is done
            timed.profile()
            found = timed.found()
    write_json(options.out, found)
    return 0
