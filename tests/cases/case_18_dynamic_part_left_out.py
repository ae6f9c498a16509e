"""Dynamic shapes are kept out of graphs by option, but one operator has a dynamic input and a static output.

Seen: a recording for every size all the same. Expected: the number of recordings does not follow the sizes.
"""

from __future__ import annotations

import torch
from torch._inductor import config as inductor_config

from tests.cases.field import Field

SIZES = (9, 12, 15, 18, 21, 24)


def scaled(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(weight @ weight) * rows.median()


def check(field: Field) -> None:
    with inductor_config.patch({"triton.cudagraph_skip_dynamic_graphs": True}):
        call = field.compiled(scaled)
        weight = field.randn(32, 32)
        for number, size in enumerate(SIZES * 2):
            rows = field.randn(size, 32)
            torch._dynamo.mark_dynamic(rows, 0)
            field.same(call(rows, weight), scaled(rows, weight), f"call {number}, {size} rows")
    field.expect_recordings(most=3)
    field.expect_replays_or_a_reason("dynamic", "shape", "size")
