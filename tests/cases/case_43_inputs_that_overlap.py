"""Inputs that are expanded, overlap themselves, or share memory with each other.

Seen: no graph, or a copy that mixed them up. Expected: eager's result. Windows of one signal overlap themselves,
which Inductor itself keeps out of graphs up to torch 2.12: there a reason will do.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field


def sharing(wide: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return 1 + 2 * wide, a @ b


def windows(parts: torch.Tensor) -> torch.Tensor:
    return parts.sum(dim=-1)


def check(field: Field) -> None:
    call = field.compiled(sharing)
    for number in range(6):
        row, store = field.randn(1, 32), field.randn(20, 16)
        args = row.expand(8, 32), store[:16], store[4:].T[:, :16]
        field.same(call(*args), sharing(*args), f"call {number}")
    field.expect_replays(4)

    call = field.compiled(windows)
    replayed = field.replays
    for number in range(6):
        parts = field.randn(64).unfold(0, 8, 2)
        field.same(call(parts), windows(parts), f"windows, call {number}")
    field.expect_replays_or_a_reason("overlap", least=replayed + 1)
