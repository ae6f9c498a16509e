"""Training steps that keep their gradient buffers (`zero_grad(set_to_none=False)`).

Seen: the second forward and backward raised, each step marked or not. Expected: training as in eager.
"""

from __future__ import annotations

import copy

import torch

from tests.cases.field import Field


def check(field: Field) -> None:
    plain = torch.nn.Linear(64, 256).to(field.device)
    model = copy.deepcopy(plain)
    call = field.compiled(model)
    pairs = [(module, torch.optim.SGD(module.parameters(), lr=0.01)) for module in (plain, model)]
    for step in range(8):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.rand(2, 64, device=field.device)
        plain(x).square().mean().backward()
        call(x).square().mean().backward()
        field.same(model.weight.grad, plain.weight.grad, f"gradient in step {step}")
        if step % 2:
            for _, optimizer in pairs:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
    field.same(list(model.parameters()), list(plain.parameters()), "parameters after training")
    field.expect_replays(12)
