"""Dropout under activation checkpointing: the backward computes the mask again.

Seen: no graph, because of the operators that keep the random state. Expected: the backward's mask is the forward's,
and no two calls share one.
"""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from tests.cases.field import Field


def dropped(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(2 + torch.sin(x), p=0.5, training=True)


def check(field: Field) -> None:
    call = field.compiled(lambda x: 3 * checkpoint(dropped, x, use_reentrant=False))
    masks: list[torch.Tensor] = []
    for number in range(6):
        x = field.randn(512, requires_grad=True)
        y = call(x)
        masks.append(y.detach() != 0)
        y.sum().backward()
        field.same(x.grad, 6 * torch.cos(x.detach()) * masks[-1], f"gradient of call {number}")
        assert not any(torch.equal(masks[-1], earlier) for earlier in masks[:-1]), f"call {number} repeats a mask"
    field.expect_replays(6)
