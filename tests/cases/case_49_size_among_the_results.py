"""A function returns a size next to a tensor and runs backward, for several shapes.

Seen: a crash on the second shape. Expected: values, sizes and gradients as in eager.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field


def doubled(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    both = torch.cat([x, x])
    return torch.relu(torch.addmm(both, both, both.T @ both)), both.size(0)


def check(field: Field) -> None:
    call = field.compiled(doubled)
    for rows in (2, 2, 2, 3, 3, 5, 2, 5, 3, 5, 3, 5):
        x = field.randn(rows, 4, requires_grad=True)
        same_x = x.detach().clone().requires_grad_()
        got, size = call(x)
        wanted, wanted_size = doubled(same_x)
        field.same((got.detach(), int(size)), (wanted.detach(), wanted_size), f"{rows} rows", tolerance=1e-2)
        got.sum().backward()
        wanted.sum().backward()
        field.same(x.grad, same_x.grad, f"gradient of {rows} rows", tolerance=1e-2)
    field.expect_replays(4)
