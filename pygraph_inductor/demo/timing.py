"""Time per call with our graphs, without graphs and with stock graphs, on one GPU in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import pygraph_inductor
from pygraph_inductor.demo.model import Shape
from pygraph_inductor.demo.workloads import Workload, new_tokens, step

WARM_UP = 4  # plain call, recording, and two replays; stock needs three
ROUNDS = 5
CALLS = 20  # a round; queued without waiting, as a real loop does


@dataclass(frozen=True)
class Times:
    """Milliseconds per call."""

    ours: float
    no_graphs: float
    stock: float


def measure(workload: Workload, shape: Shape, device: torch.device, compiled: Callable[[bool], Callable]) -> Times:
    """Compile and time the three variants one after the other; `compiled(graphs)` is the decorator to use."""
    ours = variant(workload, shape, device, compiled(True))
    pygraph_inductor.disable()
    try:
        no_graphs = variant(workload, shape, device, compiled(False))
        stock = variant(workload, shape, device, compiled(True))
    finally:
        torch.compiler.reset()
        pygraph_inductor.enable()
    return Times(ours, no_graphs, stock)


def variant(workload: Workload, shape: Shape, device: torch.device, compiled: Callable) -> float:
    """Milliseconds per call of one variant: the median of a few rounds."""
    torch.compiler.reset()
    model = workload.model(shape, device)
    call = compiled(model)
    batches = [new_tokens(shape, device) for _ in range(CALLS)]
    one_round(workload, call, model, batches[:WARM_UP])
    rounds = [one_round(workload, call, model, batches) for _ in range(ROUNDS)]
    return statistics.median(rounds)


def one_round(workload: Workload, call: Callable, model: torch.nn.Module, batches: list[Tensor]) -> float:
    """Milliseconds per call over all batches."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for tokens in batches:
        torch.compiler.cudagraph_mark_step_begin()
        step(workload, call, model, tokens)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1000 / len(batches)
