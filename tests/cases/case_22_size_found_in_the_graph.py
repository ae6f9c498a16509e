"""A size is found out by an operator inside the function and reaches what is recorded behind it.

Seen: a graph of another size was replayed. Expected: every call uses its own size.
"""

from __future__ import annotations

import torch
from torch._dynamo import config as dynamo_config

from tests.cases.field import Field

ROWS = 16


@torch.library.custom_op("pygraph_tests_field::count", mutates_args=())
def count(flags: torch.Tensor) -> int:
    return int(flags.sum())


@count.register_fake
def _(flags: torch.Tensor) -> int:
    return torch.library.get_ctx().new_dynamic_size(min=0, max=ROWS)


def head_and_rest(x: torch.Tensor, flags: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    head = x.narrow(0, 0, torch.ops.pygraph_tests_field.count(flags))
    return 1 + torch.relu(head @ weight).sum(dim=0), 2 * x


def check(field: Field) -> None:
    with dynamo_config.patch(capture_dynamic_output_shape_ops=True):  # else the front end breaks the graph there
        call = field.compiled(head_and_rest)
        weight = field.randn(8, 8)
        for number, size in enumerate((3, 7, 7, 12, 3, 16, 5, 12, 7, 3, 12, 7)):
            flags = (torch.arange(ROWS, device=field.device) < size).int()
            x = field.randn(ROWS, 8)
            field.same(call(x, flags, weight), head_and_rest(x, flags, weight), f"call {number}, {size} rows")
    field.expect_replays(3)
