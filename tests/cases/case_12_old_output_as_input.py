"""An output is kept over other calls and a step mark, and is then an input of the same function.

Seen: an error, or dead memory was read. Expected: a kept output is an ordinary tensor.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field

SIMULATED = True


def bend(x: torch.Tensor) -> torch.Tensor:
    return 1.5 * torch.relu(x) + 0.25


def check(field: Field) -> None:
    call = field.compiled(bend)
    for number in range(5):
        first, second = field.randn(32), field.randn(32)
        kept = call(first)
        torch.compiler.cudagraph_mark_step_begin()
        field.same(call(second), bend(second), f"round {number}, the call between")
        field.same(call(kept), bend(bend(first)), f"round {number}, the kept output as input")
        field.same(kept, bend(first), f"round {number}, the kept output itself")
    field.expect_replays(12)
