"""What one call costs the host: small functions, where nothing but the way to the launch shows.

    python -m scripts.bench.host_cost --out docs/benchmarks/host_cost.json --page docs/benchmarks/host_cost.md

With `--read FILE` nothing is measured, and the page is made from that file.

The variants of a row live in one process and are timed in turns. Host time is taken over bursts short enough that the
GPU keeps up; latency is one call and a wait for the device. "nothing" is a compiled function of the same signature that
launches nothing: what Dynamo and AOTAutograd cost before anybody's graphs. "replay" is the plain call captured whole
and replayed raw. The floor is what cannot be avoided: nothing, the outputs (allocated natively, wrapped and freed), and
the raw replay. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pygraph_inductor.driver.cuda import empty_strided_cuda
from scripts.bench import facts
from scripts.bench.variants import EAGER, INDUCTOR, OURS, STOCK, Variant, active, begin_iteration, compiled

BURST = 20  # calls: the launch queue never fills
SETTLE = 40  # calls before anything is timed
NOTHING = Variant("nothing", "nothing", "default")
REPLAY = Variant("replay", "raw replay", "default")
COMPARED = (NOTHING, EAGER, INDUCTOR, STOCK, OURS, REPLAY)
Function = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """A function, and its inputs, new for every burst."""

    name: str
    make: Callable[[], Function]
    draw: Callable[[], list[torch.Tensor]]


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


def nothing(*tensors: torch.Tensor) -> torch.Tensor:
    return tensors[0].view(-1)


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


def measure(row: Row, rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds by variant: median, quartiles of the host's time, median latency; and the floor."""
    function = row.make()
    calls = {v: compiled(v, nothing if v is NOTHING else function) for v in COMPARED if v is not REPLAY}
    host: dict[Variant, list[float]] = {variant: [] for variant in COMPARED}
    latency: dict[Variant, list[float]] = {variant: [] for variant in COMPARED}
    with torch.no_grad():
        with active(INDUCTOR):
            calls[REPLAY], outputs = captured(calls[INDUCTOR], row.draw())
        for number in range(rounds + 1):
            for variant, call in calls.items():
                sets = [row.draw() for _ in range(2 if variant is REPLAY else 4)]
                with active(variant):
                    begin_iteration(variant)
                    if not number:
                        settle(call, sets)
                    burst, single = _one_round(call, sets)
                if number:
                    host[variant].append(burst)
                    latency[variant].append(single)
    found = {variant.name: _summary(host[variant], latency[variant]) for variant in COMPARED}
    found["floor"] = {
        "host": round(found[NOTHING.name]["host"] + found[REPLAY.name]["host"] + cost_of(outputs), 2),
        "latency": round(found[NOTHING.name]["host"] + found[REPLAY.name]["latency"] + cost_of(outputs), 2),
    }
    return found


def settle(call: Function, sets: Sequence[list[torch.Tensor]]) -> None:
    """Compile, record, and go on until it is decided for every function whether its graph is used."""
    for number in range(SETTLE):
        call(*sets[number % len(sets)])
        torch.cuda.synchronize()


def captured(call: Function, inputs: Sequence[torch.Tensor]) -> tuple[Function, list[torch.Tensor]]:
    """The plain call as one graph that ignores its arguments, and the outputs of a plain call."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            outputs = call(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(*inputs)
    kept = list(inputs)

    def replay(*_: torch.Tensor) -> list[torch.Tensor]:
        graph.replay()
        return kept

    return replay, list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def cost_of(outputs: Sequence[torch.Tensor], times: int = 300) -> float:
    """Microseconds to allocate, wrap and free tensors like these, as generated code does."""
    layouts = [(tuple(tensor.size()), tensor.stride(), tensor.dtype) for tensor in outputs]
    took = []
    for _ in range(times):
        start = time.perf_counter()
        for layout in layouts:
            empty_strided_cuda(*layout)
        took.append(time.perf_counter() - start)
    return statistics.median(took) * 1e6


def _one_round(call: Function, sets: Sequence[list[torch.Tensor]]) -> tuple[float, float]:
    for inputs in sets:
        call(*inputs)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for number in range(BURST):
        call(*sets[number % len(sets)])
    burst = (time.perf_counter() - start) / BURST
    torch.cuda.synchronize()
    start = time.perf_counter()
    call(*sets[0])
    torch.cuda.synchronize()
    return burst * 1e6, (time.perf_counter() - start) * 1e6


def _summary(host: Sequence[float], latency: Sequence[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(host, n=4)
    named = {"host": middle, "host_q1": low, "host_q3": high, "latency": statistics.median(latency)}
    return {name: round(value, 2) for name, value in named.items()}


def run(rounds: int, commit: str | None) -> dict[str, Any]:
    """Measure every row."""
    return {
        "unit": "microseconds",
        "rounds": rounds,
        "calls_per_burst": BURST,
        "environment": facts.environment("cuda"),
        "commit": facts.commit(commit),
        "rows": {row.name: measure(row, rounds) for row in ROWS},
    }


_ABOUT_FLOOR = (
    "; `replay` is the plain call captured whole and replayed raw;"
    " the floor is nothing, the outputs and the raw replay."
)


def page(result: dict[str, Any]) -> str:
    """The numbers as a page of Markdown."""
    where = result["environment"]
    rows = result["rows"]
    # What was measured before raw replays were has no such columns.
    columns = [*(variant.name for variant in COMPARED), "floor"]
    names = [name for name in columns if all(name in variants for variants in rows.values())]
    over = ["ours over the floor"] if "floor" in names else []
    lines = [
        "# What one call costs the host",
        "",
        "Generated from `host_cost.json` by `python -m scripts.bench.host_cost --read … --page …`.",
        "",
        f"{where['gpu']}, {where['cpu']}, torch {where['torch']}, driver {where['driver']}, commit"
        f" {result['commit']['id']}. Microseconds of host time per call, median of {result['rounds']} bursts of"
        f" {result['calls_per_burst']} calls with new input tensors; in brackets the latency of one call. `nothing` is"
        " a compiled function of the same signature that launches nothing; `inductor` is without graphs"
        + (_ABOUT_FLOOR if over else "."),
        "",
        "| | " + " | ".join([*names, *over]) + " |",
        "|---" * (len(names) + len(over) + 1) + "|",
    ]
    for name, variants in rows.items():
        cells = [f"{variants[v]['host']:.0f} ({variants[v]['latency']:.0f})" for v in names]
        if over:
            cells.append(f"{variants[OURS.name]['host'] - variants['floor']['host']:+.0f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--commit", help="the commit's name, where git cannot tell")
    parser.add_argument("--read", type=Path, help="a JSON file of an earlier run, in place of measuring")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    parser.add_argument("--page", type=Path, help="a Markdown file for the table")
    options = parser.parse_args()
    result = json.loads(options.read.read_text()) if options.read else run(options.rounds, options.commit)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    if options.page is not None:
        options.page.write_text(page(result))
    print(page(result))


if __name__ == "__main__":
    main()
