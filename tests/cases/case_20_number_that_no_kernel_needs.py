"""An int argument that decides nothing in the generated code.

Seen: a recording for each of its values. Expected: recordings do not follow it.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field

SIMULATED = True


def layer(x: torch.Tensor, step: int) -> torch.Tensor:
    if 2 * step + 1 < 0:
        x = -x
    return 1 + torch.relu(x @ x)


def check(field: Field) -> None:
    call = field.compiled(layer)
    for step in range(5, 17):
        x = field.randn(16, 16)
        field.same(call(x, step), layer(x, step), f"step {step}")
    field.expect_recordings(most=4)
    field.expect_replays(6)
