"""A compiled model is deleted and the compiler reset.

Seen: the memory of its graphs stayed. Expected: memory is back where it was before.
"""

from __future__ import annotations

import gc

import torch
from torch import nn

from tests.cases.field import Field

SLACK = 8 << 20


def use(field: Field) -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).to(field.device).eval()
    call = field.compiled(model)
    with torch.no_grad():
        for number in range(4):
            x = field.randn(512, 1024)
            field.same(call(x), model(x), f"call {number}", tolerance=1e-2)


def allocated_afterwards() -> int:
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def check(field: Field) -> None:
    use(field)
    before = allocated_afterwards()  # workspaces of the libraries belong to the base
    for _ in range(3):
        use(field)
    grown = allocated_afterwards() - before
    assert grown <= SLACK, f"{grown / 2**20:.0f} MiB more are allocated"
    field.expect_replays(8)
