"""What one call costs the host: small functions, where nothing but the way to the launch shows.

    python -m scripts.bench.host_cost --out docs/benchmarks/host_cost.json

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--commit", help="the commit's name, where git cannot tell")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    options = parser.parse_args()
    rows = {row.name: measure(row, options.rounds) for row in ROWS}
    result = {
        "unit": "microseconds",
        "rounds": options.rounds,
        "calls_per_burst": BURST,
        "environment": facts.environment("cuda"),
        "commit": facts.commit(options.commit),
        "rows": rows,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    for name, variants in rows.items():
        print(f"{name}: " + ", ".join(f"{v} {t['host']:.0f} (latency {t['latency']:.0f})" for v, t in variants.items()))


if __name__ == "__main__":
    main()
