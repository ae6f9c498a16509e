"""What one call costs the host: small functions, where nothing but the way to the launch shows.

    python -m scripts.bench.host_cost --out docs/benchmarks/host_cost.json --page docs/benchmarks/host_cost.md

With `--read FILE` nothing is measured, and the page is made from that file.

The variants of a row live in one process and are timed in turns. Host time is taken over bursts short enough that the
GPU keeps up; latency is one call and a wait for the device. "nothing" is the iteration with the generated code left out
(`bare_frame.py`): Dynamo's guards on the same inputs and modules, AOTAutograd's wrappers, and the outputs, allocated as
generated code does, wrapped, and freed by the caller. "replay" is the plain call captured whole and replayed raw. The
floor is what cannot be avoided: both together.

A call that is made alone, after a wait for the device, takes the host longer than one of a burst, also where nothing is
launched at all. So every round has a few single calls, each in two parts: until it returned (`alone`), and the wait
after it. The floor of the latency is of single calls, too: "nothing" until it returned, since whatever makes a call
alone slow makes this one slow, and the raw replay's latency, which has a wait of its own. What the device itself takes
is measured after the rounds (`on_device`).

Of training steps, which `--training` adds, "nothing" also has what the iteration does around the functions: gradients
dropped, autocast entered, as many saved tensors, autograd's engine, and a new gradient for every parameter. No step
ends before its kernels do, and these may overlap with the host: so the floor of the latency is the larger of what both
take until they returned and the raw replay's latency. Eager and plain Inductor are left out: they take long, and no
target is about them.

Where our time goes is measured beside it, in the same rounds, since what state the processor is in counts for a factor:
"guards" is the function compiled without AOTAutograd, timed within its calls (`bare_frame.guards_only`); after the
bursts of "nothing" and of ours, in another one each, what "nothing" takes to make outputs, and the phases of our
launcher. `split` puts them together; `split_alone` does it with the same of single calls. After the rounds Python's
profiler lists the functions of one call (`host_profile.py`). Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import collections
import functools
import gc
import itertools
import json
import operator
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pygraph_inductor.recording.record import Recording
from scripts.bench import bare_frame, facts, host_cost_page, host_profile
from scripts.bench.registry import Draw, all_workloads, call_once
from scripts.bench.variants import EAGER, INDUCTOR, OURS, STOCK, Variant, active, begin_iteration, compiled

BURST = 20  # calls: the launch queue never fills
SINGLES = 3  # calls alone in a round: one is a thin sample, and of more a round would take longer
SETTLE = 40  # calls before anything is timed
ON_DEVICE = 10  # calls for what the device takes
CYCLES = 2000  # of the GPU's clock, about a microsecond
NOTHING = Variant("nothing", "nothing", "default")
GUARDS = Variant("guards", "guards", "default")
REPLAY = Variant("replay", "raw replay", "default")
COMPARED = (NOTHING, EAGER, INDUCTOR, STOCK, OURS, REPLAY)
COMPARED_IN_TRAINING = (NOTHING, STOCK, OURS, REPLAY)
Function = Callable[..., Any]
Iterate = Callable[[Sequence[Any]], Any]  # one iteration, on these inputs
Calls = Callable[[Iterate, Sequence[Sequence[Any]]], int]  # makes iterations, and says how many


@dataclass(frozen=True)
class Row:
    """A function, its inputs, new for every burst, and what one iteration does with them.

    `training`: the iteration has a backward.
    """

    name: str
    make: Callable[[], Function]
    draw: Callable[[], Sequence[Any]]
    drive: Callable[[Function, Sequence[Any]], Any] = call_once
    training: bool = False


def training_row(workload: str, title: str) -> Row:
    """A training step of the benchmark."""
    program, setting = all_workloads()[workload].program(torch.device("cuda"), tiny=False)
    draw = Draw(setting)
    return Row(title, lambda: program.function, lambda: program.fresh(draw), program.drive, training=True)


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size, device="cuda")


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def mlp() -> Function:
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).cuda().eval()


def fold(*tensors: torch.Tensor) -> torch.Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = torch.tanh(total + tensor)
    return total


def each(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [double(tensor) for tensor in tensors]


def into_cache(cache: torch.Tensor, new: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """What a decode step does to its cache: one position written in place, and read."""
    cache.index_copy_(1, place, new)
    return torch.tanh(cache[:, :8]).sum(dim=1)


def cache_step() -> list[torch.Tensor]:
    return [_cache(), randn(16, 1, 1024), torch.randint(8, (1,), device="cuda")]


@functools.cache
def _cache() -> torch.Tensor:
    return randn(16, 3200, 1024)  # 200 MB, the same in every call


ROWS = (
    Row("one small kernel", lambda: double, lambda: [randn(1024)]),
    Row("8-layer MLP", mlp, lambda: [randn(16, 256)]),
    Row("48 moving inputs of 1 MB", lambda: fold, lambda: [randn(256, 1024) for _ in range(48)]),
    Row("32 inputs, 32 outputs", lambda: each, lambda: [randn(1024) for _ in range(32)]),
    Row("one input of 256 MB", lambda: double, lambda: [randn(64, 1 << 20)]),
    Row("a cache of 200 MB in place", lambda: into_cache, cache_step),
)


TRAINING = (
    (functools.partial(training_row, "BERT-MLM"), "BERT-base training step, 4 x 128, bf16"),
    (functools.partial(training_row, "RN50-T"), "ResNet-50 training step, batch 8, bf16"),
)


@dataclass
class Times:
    """Microseconds a call: `host` in each burst; `alone` of every single call until it returned, and the wait after it.

    Only what ends when the device does has waits, and so a latency.
    """

    host: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)

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


def measure(row: Row, rounds: int) -> dict[str, Any]:
    """Microseconds by variant, in bursts and alone; the floor; where ours goes; what the device takes."""
    torch._dynamo.reset()  # rows that share a function would compile it for any size, with other guards
    function = row.make()
    compared = COMPARED_IN_TRAINING if row.training else COMPARED
    calls = {v: compiled(v, function) for v in {*compared, INDUCTOR} - {NOTHING, REPLAY}}
    calls[NOTHING] = bare_frame.bare_frame(function)
    calls[GUARDS] = watch = Stopwatch(bare_frame.guards_only(function))
    times = {variant: Times() for variant in (*compared, GUARDS)}
    outputs, in_phases, in_phases_alone = Times(), [], []
    timed: set[Any] = set()
    with active(INDUCTOR):
        replay = captured(row, calls[INDUCTOR])
    for number in range(rounds + 1):
        for variant, taken in times.items():
            sets = [row.draw() for _ in range(2 if variant is REPLAY else 4)]
            one = (lambda _: replay()) if variant is REPLAY else functools.partial(row.drive, calls[variant])
            with active(variant):
                begin_iteration(variant)
                if not number:
                    settle(one, sets)
                burst, singles = _one_round(one, sets, watch.read if variant is GUARDS else time.perf_counter)
                if number and variant is NOTHING:
                    outputs.host.append(making_outputs(one, sets, in_a_burst))
                    outputs.alone.append(making_outputs(one, sets, one_by_one))
                elif number and variant is OURS:
                    in_phases.append(phases(one, sets, timed, in_a_burst))
                    in_phases_alone.append(phases(one, sets, timed, one_by_one))
                elif variant is OURS:
                    timed = launchers()
            if number:
                taken.host.append(burst)
                taken.alone += [alone for alone, _ in singles]
                if variant is not GUARDS:  # whose clock stands still in a wait
                    taken.wait += [wait for _, wait in singles]
    found: dict[str, Any] = {variant.name: taken.summary() for variant, taken in times.items()}
    found["floor"] = floor(found[NOTHING.name], found[REPLAY.name], row.training)
    found["training"] = row.training
    found["outputs"] = outputs.summary()
    if launchers() <= timed:  # one that came amid the rounds was timed in none
        found.update(over_rounds(in_phases))
        found["phases_alone"] = over_rounds(in_phases_alone)["phases"]
    if found.get("phases"):
        found["split"] = split(found, "host", found["phases"])
        found["split_alone"] = split(found, "alone", found["phases_alone"])
    ours = functools.partial(row.drive, calls[OURS])
    for variant, one in ((OURS, ours), (REPLAY, lambda _: replay())):
        with active(variant):
            found[variant.name] |= on_device(one, [row.draw() for _ in range(4)], found[variant.name]["alone"])
    if not row.training:
        found["functions"] = functions_of(ours, [row.draw() for _ in range(4)])
    return found


def floor(least: dict[str, float], replay: dict[str, float], training: bool) -> dict[str, float]:
    """What cannot be avoided: everything but the kernels, and their replay. The latency's is of calls alone."""
    host = least["host"] + replay["host"]
    after = least["alone"] + replay["latency"]
    latency = max(least["alone"] + replay["alone"], replay["latency"]) if training else after
    return {"host": round(host, 2), "latency": round(latency, 2)}


def split(found: dict[str, Any], figure: str, phases: dict[str, float]) -> dict[str, float]:
    """Our host time in parts: all but `outputs` add up to it; those are what `nothing` has in place of our path.

    `figure` is "host", for a call of a burst, or "alone", and `phases` are of such calls.
    """
    guards, nothing, ours = (found[variant.name][figure] for variant in (GUARDS, NOTHING, OURS))
    outputs = found["outputs"][figure]
    driver = phases["tell"] + phases["launch"]
    parts = {
        "guards": guards,
        "frame": nothing - guards - outputs,
        "outputs": outputs,
        "path": ours - (nothing - outputs) - driver,
        "driver": driver,
    }
    return {name: round(value, 2) for name, value in parts.items()}


def settle(one: Iterate, sets: Sequence[Sequence[Any]]) -> None:
    """Compile, record, and go on until it is decided for every function whether its graph is used."""
    for number in range(SETTLE):
        one(sets[number % len(sets)])
        wait()


def wait() -> None:
    """Until the device is done, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def captured(row: Row, call: Function) -> Callable[[], Any]:
    """The plain call as one graph that ignores its arguments."""
    inputs = row.draw()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            row.drive(call, inputs)  # a loss that is kept would keep the gradients' nodes, and with them the stream
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        row.drive(call, inputs)

    def replay() -> Any:
        graph.replay()
        return inputs  # the graph reads them

    return replay


def making_outputs(one: Iterate, sets: Sequence[Sequence[Any]], make_calls: Calls) -> float:
    """Microseconds per iteration in which a bare frame makes outputs and gradients."""
    with bare_frame.timed_outputs() as spent:
        number = make_calls(one, sets)
    return sum(spent) / number / 1e3


def functions_of(one: Iterate, sets: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Who is on the way from our call to the launcher."""
    with active(OURS):
        return host_profile.functions(lambda: _burst(one, sets), wait, BURST)


def launchers() -> set[Any]:
    """Those of all recordings. To look for them takes long, and the caches with it: not within a round that counts."""
    return {
        found.launcher
        for found in gc.get_objects()
        if type(found) is Recording and not found.closed and found.launcher is not None
    }


def phases(
    one: Iterate, sets: Sequence[Sequence[Any]], launchers: Collection[Any], make_calls: Calls
) -> dict[str, float]:
    """Microseconds per iteration in each phase of the launcher in C, over all these launchers."""
    for launcher in launchers:
        launcher.time(True)
    number = make_calls(one, sets)
    total: collections.Counter[str] = collections.Counter()
    for launcher in launchers:
        total.update(launcher.spent())
        launcher.time(False)
    return {phase: spent / number / 1e3 for phase, spent in total.items()}


def over_rounds(bursts: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median and quartiles of each phase; none where no launcher was timed."""
    cuts = {phase: statistics.quantiles([burst[phase] for burst in bursts], n=4) for phase in bursts[0]}
    return {
        name: {phase: round(values[place], 2) for phase, values in cuts.items()}
        for name, place in (("phases", 1), ("phases_q1", 0), ("phases_q3", 2))
    }


def _one_round(
    one: Iterate, sets: Sequence[Sequence[Any]], now: Callable[[], float]
) -> tuple[float, list[tuple[float, float]]]:
    """Microseconds of `now` per call in a burst; and of single calls: until it returned, and of the wait after it."""
    for inputs in sets:
        one(inputs)
    wait()
    start = now()
    _burst(one, sets)
    burst = (now() - start) / BURST
    wait()
    singles = []
    for inputs in _singles(sets):
        start = now()
        one(inputs)
        returned = now()
        wait()
        singles.append(((returned - start) * 1e6, (now() - returned) * 1e6))
    return burst * 1e6, singles


def in_a_burst(one: Iterate, sets: Sequence[Sequence[Any]]) -> int:
    """Make calls one right after the other, and wait for them; how many."""
    _burst(one, sets)
    wait()
    return BURST


def one_by_one(one: Iterate, sets: Sequence[Sequence[Any]]) -> int:
    """Make calls that each find the device idle; how many."""
    for inputs in _singles(sets):
        one(inputs)
        wait()
    return SINGLES


def _burst(one: Iterate, sets: Sequence[Sequence[Any]]) -> None:
    for number in range(BURST):
        one(sets[number % len(sets)])


def _singles(sets: Sequence[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    return itertools.islice(itertools.cycle(sets), SINGLES)


def on_device(one: Iterate, sets: Sequence[Sequence[Any]], host: float) -> dict[str, float]:
    """Median microseconds of the device for a call that takes the host so many; nothing where there is no device.

    Between two events around a call that queues up behind a kernel which only takes time, several times as long as the
    call takes the host: so the device never waits for the host in between. No profiler is asked, which would be in the
    way of the rows that follow.
    """
    if not torch.cuda.is_available():
        return {}
    cycles = int(max(4 * host, 1000.0) * CYCLES)
    taken = []
    for number in range(ON_DEVICE + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(cycles)
        start.record()
        one(sets[number % len(sets)])
        end.record()
        wait()
        if number:  # at first events and the kernel are made ready
            taken.append(start.elapsed_time(end) * 1e3)
    return {"device": round(statistics.median(taken), 2)}


def run(
    rounds: int,
    commit: str | None,
    training: bool,
    only: Sequence[str] = (),
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure the rows with a name in `only`, or a part of one; training steps with fewer rounds: they take longer.

    `keep` gets all rows so far after each of them.
    """
    torch._dynamo.config.recompile_limit = 64  # several variants share one function
    measured: dict[str, Any] = {}
    found = {
        "unit": "microseconds",
        "rounds": rounds,
        "calls_per_burst": BURST,
        "single_calls_per_round": SINGLES,
        "environment": facts.environment("cuda"),
        "commit": facts.commit(commit),
        "rows": measured,
    }

    def add(name: str, row: Row, rounds: int) -> None:
        measured[name] = measure(row, rounds)
        if keep is not None:
            keep(found)

    def wanted(name: str) -> bool:
        return not only or any(part in name for part in only)

    for row in ROWS:
        if wanted(row.name):
            add(row.name, row, rounds)
    for build, title in TRAINING if training else ():
        if wanted(title):
            add(title, build(title), max(rounds // 6, 4))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--training", action="store_true", help="training steps, too, which take minutes to compile")
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], help="only rows with one of these in their name"
    )
    parser.add_argument("--commit", help="the commit's name, where git cannot tell")
    parser.add_argument("--read", type=Path, help="a JSON file of an earlier run, in place of measuring")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers, written anew after each row")
    parser.add_argument("--page", type=Path, help="a Markdown file for the table")
    options = parser.parse_args()

    def keep(found: dict[str, Any]) -> None:
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=2) + "\n")

    result = (
        json.loads(options.read.read_text())
        if options.read
        else run(options.rounds, options.commit, options.training, options.only, keep)
    )
    if options.page is not None:
        options.page.write_text(host_cost_page.page(result))
    print(host_cost_page.page(result))


if __name__ == "__main__":
    main()
