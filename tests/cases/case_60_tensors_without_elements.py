"""Inputs and outputs of no elements.

Seen: an error that their memory is not in the pool. Expected: they pass through.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field

SIMULATED = True


def function(x: torch.Tensor, none: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return 2 * x[:0], 1 + torch.cat([none, x]), none.sum() + x.sum()


def check(field: Field) -> None:
    call = field.compiled(function)
    for number in range(6):
        x, none = field.randn(16, 4), torch.empty(0, 4, device=field.device)
        field.same(call(x, none), function(x, none), f"call {number}", tolerance=1e-2)
    field.expect_replays(4)
