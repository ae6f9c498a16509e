"""The forward itself gives a weight new storage (`weight.data = ...`).

Seen: an error about live memory that nobody accounted for. Expected: output and weight as in eager.
"""

from __future__ import annotations

import copy

import torch

from tests.cases.field import Field


class Fading(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = torch.nn.Conv2d(3, 4, kernel_size=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.filter.weight.data = 0.9 * self.filter.weight.data
        return torch.relu(self.filter(x))


def check(field: Field) -> None:
    plain = Fading().to(field.device).eval()
    model = copy.deepcopy(plain)
    call = field.compiled(model)
    with torch.no_grad():
        for number in range(7):
            x = field.randn(1, 3, 8, 8)
            field.same(call(x), plain(x), f"call {number}", tolerance=1e-2)
            field.same(model.filter.weight, plain.filter.weight, f"weight after call {number}")
    field.expect_replays_or_a_reason("set_", "storage", "data")
