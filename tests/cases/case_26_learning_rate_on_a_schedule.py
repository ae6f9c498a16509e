"""A compiled optimizer step whose learning rate, a CPU tensor, follows a schedule.

Seen: the first value stayed in the graph, or the device was synchronized, or every value was a new recording.
Expected: each step uses its own learning rate.
"""

from __future__ import annotations

import copy

import torch

from tests.cases.field import Field


def check(field: Field) -> None:
    plain = torch.nn.Linear(32, 32).to(field.device)
    model = copy.deepcopy(plain)
    rate = torch.tensor(0.05)
    reference = torch.optim.Adam(plain.parameters(), lr=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=field.device == "cuda")
    step = field.compiled(lambda: optimizer.step())
    for number in range(12):
        x = field.randn(4, 32)
        for module in (plain, model):
            module.zero_grad(set_to_none=True)
            module(x).square().mean().backward()
        value = 0.05 / 2 ** (number // 4)
        reference.param_groups[0]["lr"] = value
        rate.fill_(value)
        reference.step()
        step()
        field.same(model.weight, plain.weight, f"weight after step {number}", tolerance=1e-4)
    field.expect_replays(3)
