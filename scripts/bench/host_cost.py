"""What one call costs the host: small functions, where nothing but the way to the launch shows.

    python -m scripts.bench.host_cost --out docs/benchmarks/host_cost.json --page docs/benchmarks/host_cost.md

With `--read FILE` nothing is measured, and the page is made from that file.

The variants of a row live in one process and are timed in turns. Host time is taken over bursts short enough that the
GPU keeps up; latency is one call and a wait for the device. "nothing" is the iteration with the generated code left out
(`bare_frame.py`): Dynamo's guards on the same inputs and modules, AOTAutograd's wrappers, and the outputs, allocated as
generated code does, wrapped, and freed by the caller. "replay" is the plain call captured whole and replayed raw. The
floor is what cannot be avoided: both together.

Of training steps, which `--training` adds, "nothing" also has what the iteration does around the functions: gradients
dropped, autocast entered, as many saved tensors, autograd's engine, and a new gradient for every parameter. No step
ends before its kernels do, and these may overlap with the host: so the floor of the latency is the larger of the floor
on the host and the raw replay's latency. Eager and plain Inductor are left out: they take long, and no target is about
them.

A second table says how much of our time is the launcher's, and in which of its phases. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pygraph_inductor.recording.record import Recording
from scripts.bench import bare_frame, facts
from scripts.bench.registry import Draw, all_workloads, call_once
from scripts.bench.variants import EAGER, INDUCTOR, OURS, STOCK, Variant, active, begin_iteration, compiled

BURST = 20  # calls: the launch queue never fills
SETTLE = 40  # calls before anything is timed
NOTHING = Variant("nothing", "nothing", "default")
REPLAY = Variant("replay", "raw replay", "default")
COMPARED = (NOTHING, EAGER, INDUCTOR, STOCK, OURS, REPLAY)
COMPARED_IN_TRAINING = (NOTHING, STOCK, OURS, REPLAY)
Function = Callable[..., Any]


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
    """Microseconds a call."""

    host: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        low, middle, high = statistics.quantiles(self.host, n=4)
        named = {"host": middle, "host_q1": low, "host_q3": high, "latency": statistics.median(self.latency)}
        return {name: round(value, 2) for name, value in named.items()}


def measure(row: Row, rounds: int) -> dict[str, Any]:
    """Microseconds by variant: median and quartiles of the host's time, median latency; the floor; our phases."""
    function = row.make()
    compared = COMPARED_IN_TRAINING if row.training else COMPARED
    calls = {v: compiled(v, function) for v in {*compared, INDUCTOR} - {NOTHING, REPLAY}}
    calls[NOTHING] = bare_frame.bare_frame(function)
    times = {variant: Times() for variant in compared}
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
                burst, single = _one_round(one, sets)
            if number:
                taken.host.append(burst)
                taken.latency.append(single)
    found: dict[str, Any] = {variant.name: taken.summary() for variant, taken in times.items()}
    found["floor"] = floor(found[NOTHING.name], found[REPLAY.name], row.training)
    found["training"] = row.training
    with active(OURS):
        found["phases"] = phases(functools.partial(row.drive, calls[OURS]), [row.draw() for _ in range(4)])
    return found


def floor(least: dict[str, float], replay: dict[str, float], training: bool) -> dict[str, float]:
    """What cannot be avoided: everything but the kernels, and their replay."""
    host = least["host"] + replay["host"]
    latency = max(host, replay["latency"]) if training else least["host"] + replay["latency"]
    return {"host": round(host, 2), "latency": round(latency, 2)}


def settle(one: Callable[[Sequence[Any]], Any], sets: Sequence[Sequence[Any]]) -> None:
    """Compile, record, and go on until it is decided for every function whether its graph is used."""
    for number in range(SETTLE):
        one(sets[number % len(sets)])
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


def phases(one: Callable[[Sequence[Any]], Any], sets: Sequence[Sequence[Any]]) -> dict[str, float]:
    """Microseconds per iteration in each phase of the launcher in C, over all functions of the iteration."""
    launchers = [
        found.launcher
        for found in gc.get_objects()
        if type(found) is Recording and not found.closed and found.launcher is not None
    ]
    for inputs in sets:  # the first calls after something else have memory to find
        one(inputs)
    for launcher in launchers:
        launcher.time(True)
    for number in range(BURST):
        one(sets[number % len(sets)])
    total: dict[str, float] = {}
    for launcher in launchers:
        for phase, spent in launcher.spent().items():
            total[phase] = total.get(phase, 0.0) + spent / BURST / 1e3
        launcher.time(False)
    return {phase: round(spent, 2) for phase, spent in total.items()}


def _one_round(one: Callable[[Sequence[Any]], Any], sets: Sequence[Sequence[Any]]) -> tuple[float, float]:
    for inputs in sets:
        one(inputs)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for number in range(BURST):
        one(sets[number % len(sets)])
    burst = (time.perf_counter() - start) / BURST
    torch.cuda.synchronize()
    start = time.perf_counter()
    one(sets[0])
    torch.cuda.synchronize()
    return burst * 1e6, (time.perf_counter() - start) * 1e6


def run(
    rounds: int,
    commit: str | None,
    training: bool,
    only: str = "",
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure every row whose name has `only` in it; training steps with fewer rounds, since they take longer.

    `keep` gets all rows so far after each of them.
    """
    torch._dynamo.config.recompile_limit = 64  # several variants share one function
    measured: dict[str, Any] = {}
    found = {
        "unit": "microseconds",
        "rounds": rounds,
        "calls_per_burst": BURST,
        "environment": facts.environment("cuda"),
        "commit": facts.commit(commit),
        "rows": measured,
    }

    def add(name: str, row: Row, rounds: int) -> None:
        measured[name] = measure(row, rounds)
        if keep is not None:
            keep(found)

    for row in ROWS:
        if only in row.name:
            add(row.name, row, rounds)
    for build, title in TRAINING if training else ():
        if only in title:
            add(title, build(title), max(rounds // 6, 4))
    return found


_ABOUT_FLOOR = "; `replay` is the plain call captured whole and replayed raw; the floor is nothing and the raw replay."
_ABOUT_TRAINING = (
    " Of training steps, `nothing` also has dropping gradients, autocast, as many saved tensors (activations are the"
    " same ones in every call), autograd's engine, and a new gradient for every parameter. The floor of their latency"
    " is the larger of the floor on the host and the raw replay's latency. How far we are above it is a ratio, of the"
    " host's time and in brackets of the latency."
)
# What was measured first had a function with one output in place of this.
_NOTHING_AT_FIRST = (
    "a compiled function of the same signature that launches nothing (where ours is below the floor, it cost more than"
    " all of our call, and is none)"
)
_NOTHING = "the compiled function without its generated code, which makes new outputs and launches nothing"


def page(result: dict[str, Any]) -> str:
    """The numbers as a page of Markdown."""
    where = result["environment"]
    rows = result["rows"]
    # What was measured before raw replays were has no such columns.
    columns = [*(variant.name for variant in COMPARED), "floor"]
    names = [name for name in columns if any(name in variants for variants in rows.values())]
    over = ["ours over the floor"] if "floor" in names else []
    fewer = " (of training steps, a sixth as many)" if any("training step" in name for name in rows) else ""
    nothing = _NOTHING if any("training" in variants for variants in rows.values()) else _NOTHING_AT_FIRST
    lines = [
        "# What one call costs the host",
        "",
        "Generated from `host_cost.json` by `python -m scripts.bench.host_cost --read … --page …`.",
        "",
        f"{where['gpu']}, {where['cpu']}, torch {where['torch']}, driver {where['driver']}, commit"
        f" {result['commit']['id']}. Microseconds of host time per call, median of {result['rounds']} bursts of"
        f" {result['calls_per_burst']} calls with new input tensors"
        f"{fewer}; in brackets the latency of one call. `nothing` is"
        f" {nothing}; `inductor` is without graphs"
        + (_ABOUT_FLOOR if over else ".")
        + (_ABOUT_TRAINING if any(variants.get("training") for variants in rows.values()) else ""),
        "",
        *_table(["", *names, *over], [_cells(name, variants, names, over) for name, variants in rows.items()]),
    ]
    split = {name: variants["phases"] for name, variants in rows.items() if "phases" in variants}
    if split:
        heads = list(next(iter(split.values())))
        lines += [
            "",
            "Where our time goes: the launcher in C compares the inputs with the recording (`accept`), makes outputs"
            " (`allocate`), rewrites node parameters (`tell`), replays (`launch`) and hands out (`wrap`). The rest is"
            " Dynamo's, AOTAutograd's and, in training, autograd's.",
            "",
            *_table(
                ["", *heads, "the rest"],
                [
                    [
                        name,
                        *(f"{spent[h]:.1f}" for h in heads),
                        f"{rows[name]['ours']['host'] - sum(spent.values()):.0f}",
                    ]
                    for name, spent in split.items()
                ],
            ),
        ]
    return "\n".join(lines) + "\n"


def _cells(name: str, variants: dict[str, Any], names: Sequence[str], over: Sequence[str]) -> list[str]:
    cells = [name]
    known = {v: value for v, value in variants.items() if v != "floor" or has_floor(variants)}
    cells += [f"{known[v]['host']:.0f} ({known[v]['latency']:.0f})" if v in known else "-" for v in names]
    if over:
        cells.append(_distance(variants))
    return cells


def has_floor(variants: dict[str, Any]) -> bool:
    """Whether the data tells it: a replay is not all that a step must do, and at first nothing else was measured."""
    return "floor" in variants and NOTHING.name in variants


def _distance(variants: dict[str, Any]) -> str:
    """From the floor to ours: microseconds, of a training step the ratio."""
    if not has_floor(variants):
        return "-"
    ours, least = variants[OURS.name], variants["floor"]
    if variants.get("training"):
        return f"{ours['host'] / least['host']:.2f}x ({ours['latency'] / least['latency']:.2f}x)"
    return f"{ours['host'] - least['host']:+.0f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--training", action="store_true", help="training steps, too, which take minutes to compile")
    parser.add_argument("--only", default="", help="only rows with this in their name")
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
        options.page.write_text(page(result))
    print(page(result))


if __name__ == "__main__":
    main()
