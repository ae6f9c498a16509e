"""A `while_loop` whose condition lives on the device.

Seen: it synchronizes on each trip and keeps the function out of graphs. Expected: the number of trips follows the
data of each call. The loop itself cannot be recorded; what surrounds it may be.
"""

from __future__ import annotations

import torch
from torch._higher_order_ops.while_loop import while_loop

from tests.cases.field import Field

LIMIT = 50


def grown(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    start = torch.zeros((), dtype=torch.int64, device=x.device), 0.5 + torch.sin(x)
    condition = lambda trips, y: y.abs().amax() < LIMIT
    trips, y = while_loop(condition, lambda trips, y: (trips + 1, 1.5 * y + 0.1), start)
    return trips.clone(), 2 * y


def plain(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    trips, y = 0, 0.5 + torch.sin(x)
    while y.abs().amax() < LIMIT:
        trips, y = trips + 1, 1.5 * y + 0.1
    return torch.tensor(trips, device=x.device), 2 * y


def check(field: Field) -> None:
    call = field.compiled(grown)
    for number in range(6):
        x = 0.2 * (number + 1) * field.randn(16)
        field.same(call(x), plain(x), f"call {number}")
    field.expect_replays_or_a_reason("while", "loop", "control flow")
