"""An int argument that only scales values.

Seen: it forced a recording per value. Expected: right for every value, recordings or not.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field


def phased(x: torch.Tensor, t: int) -> torch.Tensor:
    angles = t * torch.arange(x.shape[-1], device=x.device)
    return (t * x + torch.cos(angles)) @ x.T


def check(field: Field) -> None:
    call = field.compiled(phased)
    for t in [*range(3, 9)] * 3:
        x = field.randn(8, 16)
        field.same(call(x, t), phased(x, t), f"t = {t}", tolerance=1e-2)
    field.expect_replays(4)
