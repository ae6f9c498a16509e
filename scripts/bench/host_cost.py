"""What one call costs the host: small functions, where nothing but the way to the launch shows.

    python -m scripts.bench.host_cost --out docs/benchmarks/host_cost.json --page docs/benchmarks/host_cost.md

With `--read FILE` nothing is measured, and the page is made from that file.

The variants of a row live in one process and are timed in turns. Host time is taken over bursts short enough that the
GPU keeps up; latency is one call and a wait for the device. "nothing" is a compiled function of the same signature that
launches nothing: what Dynamo and AOTAutograd cost before anybody's graphs. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scripts.bench import facts
from scripts.bench.variants import EAGER, INDUCTOR, OURS, STOCK, Variant, active, begin_iteration, compiled

BURST = 20  # calls: the launch queue never fills
NOTHING = Variant("nothing", "nothing", "default")
COMPARED = (NOTHING, EAGER, INDUCTOR, STOCK, OURS)
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


ROWS = (
    Row("one small kernel", lambda: double, lambda: [randn(1024)]),
    Row("8-layer MLP", mlp, lambda: [randn(16, 256)]),
    Row("48 moving inputs of 1 MB", lambda: fold, lambda: [randn(256, 1024) for _ in range(48)]),
    Row("32 inputs, 32 outputs", lambda: each, lambda: [randn(1024) for _ in range(32)]),
)


def measure(row: Row, rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds by variant: median, quartiles of the host's time, median latency."""
    function = row.make()
    calls = {v: compiled(v, nothing if v is NOTHING else function) for v in COMPARED}
    host: dict[Variant, list[float]] = {variant: [] for variant in COMPARED}
    latency: dict[Variant, list[float]] = {variant: [] for variant in COMPARED}
    with torch.no_grad():
        for number in range(rounds + 1):
            for variant, call in calls.items():
                sets = [row.draw() for _ in range(4)]
                with active(variant):
                    begin_iteration(variant)
                    burst, single = _one_round(call, sets)
                if number:  # the first round compiles, records and warms up
                    host[variant].append(burst)
                    latency[variant].append(single)
    return {variant.name: _summary(host[variant], latency[variant]) for variant in COMPARED}


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


def page(result: dict[str, Any]) -> str:
    """The numbers as a page of Markdown."""
    where = result["environment"]
    names = [variant.name for variant in COMPARED]
    lines = [
        "# What one call costs the host",
        "",
        "Generated from `host_cost.json` by `python -m scripts.bench.host_cost --read … --page …`.",
        "",
        f"{where['gpu']}, {where['cpu']}, torch {where['torch']}, driver {where['driver']}, commit"
        f" {result['commit']['id']}. Microseconds of host time per call, median of {result['rounds']} bursts of"
        f" {result['calls_per_burst']} calls with new input tensors; in brackets the latency of one call. `nothing` is"
        " a compiled function of the same signature that launches nothing; `inductor` is without graphs.",
        "",
        "| | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for name, variants in result["rows"].items():
        cells = [f"{variants[v]['host']:.0f} ({variants[v]['latency']:.0f})" for v in names]
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
