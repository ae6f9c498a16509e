"""Parameters get new storage between calls, never at an old address.

Seen: one new recording per call, then none any more. Expected: right with the new weights, at a bounded cost.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.cases.field import Field

SIMULATED = True


def check(field: Field) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).to(field.device).eval()
    call = field.compiled(model)
    used = []
    with torch.no_grad():
        for number in range(20):
            for parameter in model.parameters() if number >= 3 else ():
                used.append(parameter.data)
                parameter.data = torch.randn_like(parameter)
            x = field.randn(4, 32)
            field.same(call(x), model(x), f"call {number}")
    field.expect_recordings(most=1)
    field.expect_replays(18)
