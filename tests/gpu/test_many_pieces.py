"""A function in many small graphs, one behind the other: each is recorded once, and nothing is recorded again."""

from __future__ import annotations

from typing import Any

import torch

from tests.gpu.comparing import DEVICE, Counting, agree, compiled
from tests.pieces import broken_up

PIECES = 24
CALLS = 6


def test_no_step_makes_recordings_after_the_second() -> None:
    weights = [(0.1 * torch.randn(32, 32, device=DEVICE)).requires_grad_() for _ in range(PIECES)]
    call = compiled(broken_up(PIECES))
    counting = Counting()

    def step(x: torch.Tensor) -> list[Any]:
        for weight in weights:
            weight.grad = None
        loss = call(x, weights).square().mean()
        loss.backward()
        return [loss, x.grad, *(weight.grad for weight in weights)]

    def recorded() -> list[tuple[int, int]]:
        return [(len(one.recordings), one.retired) for one in counting.functions]

    def make(_: int = 0) -> tuple[torch.Tensor]:
        return (torch.randn(16, 32, device=DEVICE).requires_grad_(),)

    agree(step, make, calls=2, replays=0, every=False)
    assert recorded() == [(1, 0)] * (2 * PIECES), counting
    agree(step, make, calls=CALLS - 2, replays=2 * PIECES * (CALLS - 2), every=False)
    assert recorded() == [(1, 0)] * (2 * PIECES), counting
