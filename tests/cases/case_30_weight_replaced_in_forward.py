"""The forward itself gives a weight new storage (`weight.data = ...`).

Seen: an error about live memory that nobody accounted for. Expected: output and weight as in eager. Where Inductor
puts the exchange into the graph, no replay can repeat it, so a reason will do.
"""

from __future__ import annotations

import copy

import torch

from tests.cases.field import Field

SIMULATED = True


class Fading(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mix.weight.data = 0.9 * self.mix.weight.data
        return torch.relu(self.mix(x))


def check(field: Field) -> None:
    plain = Fading().to(field.device).eval()
    model = copy.deepcopy(plain)
    call = field.compiled(model)
    with torch.no_grad():
        for number in range(7):
            x = field.randn(4, 16)
            field.same(call(x), plain(x), f"call {number}")
            field.same(model.mix.weight, plain.mix.weight, f"weight after call {number}")
    field.expect_replays_or_a_reason("storage")
