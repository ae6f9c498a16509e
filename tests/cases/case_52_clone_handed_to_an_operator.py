"""An operator reads a clone of the tensor that it writes to.

Seen: the clone was optimized away, so that it read what it had just written. Expected: as in eager.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field

SIMULATED = True


@torch.library.custom_op("pygraph_tests_field::shift_into", mutates_args=("target",))
def shift_into(source: torch.Tensor, target: torch.Tensor) -> None:
    for place in range(source.shape[0]):
        target[(place + 1) % source.shape[0]] = source[place]


def shifted(x: torch.Tensor) -> torch.Tensor:
    torch.ops.pygraph_tests_field.shift_into(x.clone(), x)
    return 2 * x


def check(field: Field) -> None:
    call = field.compiled(shifted)
    for number in range(6):
        x = number + torch.arange(6.0, device=field.device)
        same_x = x.clone()
        wanted = shifted(same_x)
        field.same((call(x), x), (wanted, same_x), f"call {number}")
    field.expect_replays(4)
