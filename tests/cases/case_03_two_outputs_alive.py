"""The outputs of two calls are alive together.

Seen: reading the first one raised, marking steps did not help. Expected: it keeps its value, whatever follows.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field

SIMULATED = True


def squared(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def check(field: Field) -> None:
    call = field.compiled(squared)
    kept = []
    for number in range(12):
        if number % 4 >= 2:
            torch.compiler.cudagraph_mark_step_begin()
        x = field.randn(16, 16)
        kept.append((call(x), squared(x)))
        for earlier, (got, wanted) in enumerate(kept):
            field.same(got, wanted, f"output {earlier} after call {number}")
    field.expect_replays(10)
