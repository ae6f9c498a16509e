"""What is measured of the host's cost: small functions, and training steps of the benchmark.

Small, so that nothing but the way to the launch shows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scripts.bench.host_cost_timing import Function
from scripts.bench.registry import Draw, all_workloads, call_once


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
