"""What one call costs the host: small functions, where nothing but the way to the launch shows.

    python -m scripts.bench.host_cost --out docs/benchmarks/host_cost.json --page docs/benchmarks/host_cost.md

With `--read FILE` nothing is measured, and the page is made from that file.

The variants of a row live in one process and are timed in turns. Host time is taken over bursts short enough that the
GPU keeps up; latency is one call and a wait for the device. "nothing" is the iteration with the generated code left out
(`bare_frame.py`): Dynamo's guards on the same inputs and modules, AOTAutograd's wrappers, and the outputs, allocated as
generated code does, wrapped, and freed by the caller. "replay" is the plain call captured whole and replayed raw. The
floor is what cannot be avoided: both together.

Every round has a few single calls as well (`host_cost_timing.py`), each in two parts: until it returned (`alone`), and
the wait after it. The floor of the latency is of single calls, too: "nothing" until it returned, since whatever makes a
call alone slow makes this one slow, and the raw replay's latency, which has a wait of its own. What the device itself
takes is measured after the rounds (`on_device`).

Of training steps, which `--training` adds, "nothing" also has what the iteration does around the functions: gradients
dropped, autocast entered, as many saved tensors, autograd's engine, and a new gradient for every parameter. No step
ends before its kernels do, and these may overlap with the host: so the floor of the latency is the larger of what both
take until they returned and the raw replay's latency. Eager and plain Inductor are left out: they take long, and no
target is about them.

Where our time goes is measured beside it, in the same rounds, since what state the processor is in counts for a factor:
"guards" is the function compiled without AOTAutograd, timed within its calls (`bare_frame.guards_only`); after the
bursts of "nothing" and of ours, in another one each, what "nothing" takes to make outputs, and the phases of our
launcher. `split` puts them together; `split_alone` does it with the same of single calls. After the rounds Python's
profiler lists the functions of one call (`host_profile.py`). Of training steps two more frames tell apart what our path
spends outside of the launcher (`host_cost_training.py`), and once all rows are measured, torch's profiler lists
autograd's nodes and operators (`event_profile.py`): launching a graph takes a process that it once ran in several times
as long. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from scripts.bench import bare_frame, event_profile, facts, host_cost_page, host_profile
from scripts.bench.host_cost_recordings import launchers, over_rounds, phases
from scripts.bench.host_cost_rows import ROWS, TRAINING, Row
from scripts.bench.host_cost_timing import (
    BURST,
    SINGLES,
    Calls,
    Function,
    Iterate,
    Stopwatch,
    Times,
    burst,
    in_a_burst,
    one_by_one,
    one_round,
    settle,
    wait,
)
from scripts.bench.host_cost_training import Frames
from scripts.bench.reasons import or_reason
from scripts.bench.variants import EAGER, INDUCTOR, OURS, STOCK, Variant, active, begin_iteration, compiled

ON_DEVICE = 10  # calls for what the device takes
CYCLES = 2000  # of the GPU's clock, about a microsecond
NOTHING = Variant("nothing", "nothing", "default")
GUARDS = Variant("guards", "guards", "default")
REPLAY = Variant("replay", "raw replay", "default")
COMPARED = (NOTHING, EAGER, INDUCTOR, STOCK, OURS, REPLAY)
COMPARED_IN_TRAINING = (NOTHING, STOCK, OURS, REPLAY)


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
    frames = Frames(row, function) if row.training else None
    for number in range(rounds + 1):
        for variant, taken in times.items():
            sets = [row.draw() for _ in range(2 if variant is REPLAY else 4)]
            one = (lambda _: replay()) if variant is REPLAY else functools.partial(row.drive, calls[variant])
            with active(variant):
                begin_iteration(variant)
                if not number:
                    settle(one, sets)
                in_burst, singles = one_round(one, sets, watch.read if variant is GUARDS else time.perf_counter)
                if number and variant is NOTHING:
                    outputs.host.append(making_outputs(one, sets, in_a_burst))
                    outputs.alone.append(making_outputs(one, sets, one_by_one))
                elif number and variant is OURS:
                    in_phases.append(phases(one, sets, timed, in_a_burst))
                    in_phases_alone.append(phases(one, sets, timed, one_by_one))
                elif variant is OURS:
                    timed = launchers()
            if number:
                taken.add(in_burst, singles, waits=variant is not GUARDS)  # whose clock stands still in a wait
        if frames is not None:
            frames.turn(number)
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
    if frames is not None:
        found["step"] = frames.summary(found)
    else:
        found["functions"] = functions_of(ours, [row.draw() for _ in range(4)])
    return found


def events(row: Row) -> dict[str, Any]:
    """What autograd runs in a step where nothing is launched, without graphs, and in ours."""
    torch._dynamo.reset()
    function = row.make()
    calls = {variant: compiled(variant, function) for variant in (INDUCTOR, OURS)}
    calls = {NOTHING: bare_frame.bare_frame(function), **calls}
    steps = {variant: functools.partial(row.drive, call) for variant, call in calls.items()}
    sets = [row.draw() for _ in range(4)]
    for variant, one in steps.items():
        with active(variant):
            settle(one, sets)
    return event_profile.compared(steps, sets, wait)


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
        return host_profile.functions(lambda: burst(one, sets), wait, BURST)


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
    keep: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Measure the rows with a name in `only`, or a part of one.

    `keep` gets all rows so far after each of them, and again with each profile.
    """

    def wanted(name: str) -> bool:
        return not only or any(part in name for part in only)

    torch._dynamo.config.recompile_limit = 64  # several variants share one function
    measured: dict[str, Any] = {}
    found: dict[str, Any] = {
        "unit": "microseconds",
        "rounds": rounds,
        "rounds_of_training": max(rounds // 2, 4),  # they take longer
        "calls_per_burst": BURST,
        "single_calls_per_round": SINGLES,
        "environment": facts.environment("cuda"),
        "commit": facts.commit(commit),
        "rows": measured,
    }

    steps = []
    for row in ROWS:
        if wanted(row.name):
            measured[row.name] = measure(row, rounds)
            keep(found)
    for build, title in TRAINING if training else ():
        if wanted(title):
            steps.append(build(title))
            measured[title] = measure(steps[-1], found["rounds_of_training"])
            keep(found)
    for step in steps:
        measured[step.name]["events"] = or_reason(functools.partial(events, step))
        keep(found)
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
    file = options.read or options.out
    text = host_cost_page.page(result, *([file.name] if file is not None else []))
    if options.page is not None:
        options.page.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
