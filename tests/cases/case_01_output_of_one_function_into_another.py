"""Two compiled functions in a row: the first one's output is the second one's input.

Seen: an error that the first output had been overwritten. Expected: the composition equals eager on every call.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field

SIMULATED = True


def wave(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + 1


def stretch(x: torch.Tensor) -> torch.Tensor:
    return 2 * torch.cos(x)


def check(field: Field) -> None:
    first, second = field.compiled(wave), field.compiled(stretch)
    for number in range(6):
        x = field.randn(64)
        field.same(second(first(x)), stretch(wave(x)), f"call {number}")
    field.expect_replays(8)
