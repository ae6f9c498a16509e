"""Inputs are views at any offset, so that some are not aligned to 16 bytes.

Seen: an assertion, a copy into a stale buffer, or wrong data. Expected: eager's result, in any order of offsets.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field

OFFSETS = ((0, 0), (0, 0), (0, 0), (1, 0), (3, 2), (4, 4), (0, 7), (5, 1), (0, 0))


def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cumsum(2 * torch.relu(x) + y, dim=0), x @ y


def check(field: Field) -> None:
    call = field.compiled(function)
    left, right = field.randn(1100), field.randn(1100)
    for number, (i, j) in enumerate(OFFSETS):
        left += 0.1
        x, y = left[i : i + 1024], right[j : j + 1024]
        field.same(call(x, y), function(x, y), f"call {number} at offsets {i} and {j}", tolerance=1e-2)
    field.expect_replays(5)
