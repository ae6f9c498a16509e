"""48 inputs that are somewhere else on every call.

Seen: most of the host's time went into copies to fixed buffers. Expected: right, and nothing is staged.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field


def chained(*parts: torch.Tensor) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = torch.tanh(total + part)
    return total


def check(field: Field) -> None:
    call = field.compiled(chained)
    sets = [[field.randn(64, 1024) for _ in range(48)] for _ in range(3)]
    for number in range(9):
        parts = sets[number % 3]
        field.same(call(*parts), chained(*parts), f"call {number}")
    field.expect_replays(7)
    staged = sum(recording.staged for one in field.functions for recording in one.recordings)
    assert staged == 0, f"{staged} tensors were staged; {field.account()}"
