"""Gradients accumulate: a second backward comes before the gradients are reset.

Seen: an error about overwritten outputs, although outputs were cloned. Expected: the sum of gradients, as in eager.
"""

from __future__ import annotations

import copy

from torch import nn

from tests.cases.field import Field

SIMULATED = True


def check(field: Field) -> None:
    plain = nn.Linear(16, 4).to(field.device)
    model = copy.deepcopy(plain)
    call = field.compiled(model)
    for micro_step in range(5):
        x = field.randn(3, 16, requires_grad=True)
        same_x = x.detach().clone().requires_grad_()
        call(x).square().sum().backward()
        plain(same_x).square().sum().backward()
        where = f"after micro-step {micro_step}"
        field.same([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()], where)
        field.same(x.grad, same_x.grad, f"gradient of the input {where}")
    field.expect_replays(6)
