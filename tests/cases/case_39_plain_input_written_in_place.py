"""In-place arithmetic on a tensor that the caller made outside of any graph, at old and new addresses.

Seen: no graph, although one made by hand could do it. Expected: the caller's tensor is updated on every call.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field

SIMULATED = True


def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x += 1
    y = torch.relu(x @ weight)
    x *= 0.5
    return y


def check(field: Field) -> None:
    call = field.compiled(function)
    weight = field.randn(16, 16)
    met = [field.randn(16, 16)]
    for number in range(8):
        x = met[0] if number % 3 == 2 else field.randn(16, 16)
        met.append(x)
        same_x = x.clone()
        wanted = function(same_x, weight)
        field.same((call(x, weight), x), (wanted, same_x), f"call {number}")
    field.expect_replays(5)
