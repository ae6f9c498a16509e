"""A replay is worth having: a function of fifty kernels is faster from a graph than launch by launch."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from tests.gpu.comparing import DEVICE, Counting, compiled, plainly

ATTEMPTS = 3  # other processes may use the machine
CALLS = 50


def seconds(call: Callable[[torch.Tensor], torch.Tensor], inputs: list[torch.Tensor]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for number in range(CALLS):
        call(inputs[number % len(inputs)])
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS


def test_replay_of_fifty_kernels_beats_the_plain_call() -> None:
    weight = torch.randn(64, 64, device=DEVICE) * 0.1

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(25):
            x = torch.tanh(x @ weight) + 0.5
        return x

    call, counting = compiled(function), Counting()
    inputs = [torch.randn(64, 64, device=DEVICE) for _ in range(4)]
    with torch.no_grad():
        for x in inputs:
            call(x)
        ratios = []
        for _ in range(ATTEMPTS):
            with plainly():
                plain = seconds(call, inputs)
            ratios.append(plain / seconds(call, inputs))
            if ratios[-1] >= 1.3:
                break
    counting.expect(replays=CALLS)
    assert max(ratios) >= 1.3, f"plain call over replay: {ratios}"
