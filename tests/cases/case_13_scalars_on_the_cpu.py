"""Arguments that are 0-d CPU tensors, next to tensors on the device.

Seen: they alone kept the whole function out of graphs. Expected: graphs, and the value of this call on every call.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field


def mix(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    y = scale * x
    for _ in range(3):
        y = torch.tanh(y @ x * 0.05) + shift
    return y


def check(field: Field) -> None:
    call = field.compiled(mix)
    for number in range(9):
        x = field.randn(16, 16)
        level = number // 3  # a value stays for three calls, then it is another one
        scale, shift = torch.tensor(0.3 * level), torch.tensor(float(level), dtype=torch.float64)
        field.same(call(x, scale, shift), mix(x, scale, shift), f"call {number}")
    field.expect_replays(3)
