"""A custom operator writes to tensors of the caller.

Seen: no graph, because inputs are mutated. Expected: the caller's tensors are written on every call, from a graph.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field

SIMULATED = True


@torch.library.custom_op("pygraph_tests_field::turn_", mutates_args=("q", "k"))
def turn_(q: torch.Tensor, k: torch.Tensor, angle: torch.Tensor) -> None:
    q *= torch.cos(angle)
    k *= torch.sin(angle)


def scores(q: torch.Tensor, k: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    torch.ops.pygraph_tests_field.turn_(q, k, angle)
    return q @ k.T


def check(field: Field) -> None:
    call = field.compiled(scores)
    for number in range(7):
        q, k, angle = field.randn(8, 16), field.randn(8, 16), field.randn(16)
        same_q, same_k = q.clone(), k.clone()
        wanted = scores(same_q, same_k, angle)
        field.same((call(q, k, angle), q, k), (wanted, same_q, same_k), f"call {number}")
    field.expect_replays(4)
