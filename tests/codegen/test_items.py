"""Numbers taken out of tensors: kept on the device where only the device uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .rewritten import Rewritten, expect_on_device, host


def item_of(compute: Callable[..., Any], *specs: Any) -> Rewritten:
    """With the number of positive elements, as a number, in the second argument."""

    def function(x, *rest):
        count = torch.ops.aten._local_scalar_dense.default((x > 0).sum())
        torch._check(count >= 0)
        return compute(x, count, *rest)

    return Rewritten(function, *specs)


def items(rewritten: Rewritten) -> int:
    item = torch.ops.aten._local_scalar_dense.default
    return len(rewritten.module.graph.find_nodes(op="call_function", target=item))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, n: (x * n, x / n, x + n),
        lambda x, n: (x - (2 * n + 1),),
        lambda x, n: ((x > n), x.long() * n, (x.double() - n * n)),
    ],
)
def test_number_that_only_the_device_uses_stays_there(cuda, compute):
    rewritten = item_of(compute, (8, 8))
    assert rewritten.applied == {"items"} and items(rewritten) == 0
    expect_on_device(rewritten)
    rewritten.same()


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, n: (x * n, torch.zeros(8, device=x.device).expand(n, 8)),
        lambda x, n: (x.half() * n,),
        lambda x, n: (x.int() * n,),
        lambda x, n: (x.sum().int() * n,),
        lambda x, n: (x + torch.full((8, 8), n, device=x.device),),
        lambda x, n: (x * n, n),
        lambda x, n: (x * n, torch.zeros(8) + n),
        lambda x, n: (x * (n / 2),),
    ],
)
def test_number_that_the_host_needs_is_taken_out(cuda, compute):
    rewritten = item_of(compute, (8, 8))
    assert "items" not in rewritten.applied and items(rewritten) == 1
    assert "needs" in rewritten.refused


def test_two_numbers_that_the_host_computes_with_are_taken_out(cuda):
    def function(x, count):
        return (x * (count + torch.ops.aten._local_scalar_dense.default((x > 1).sum())),)

    rewritten = item_of(function, (8, 8))
    assert not rewritten.applied and items(rewritten) == 2
    assert "the host computes with it and with another number" in rewritten.refused
    rewritten.same()


def test_number_out_of_a_tensor_of_the_host_is_uploaded(cuda):
    def function(x, lengths):
        return (x * torch.ops.aten._local_scalar_dense.default(lengths),)

    rewritten = Rewritten(function, (8, 8), host(dtype=torch.int64))
    assert rewritten.applied == {"items", "host_scalars"} and items(rewritten) == 0
    assert rewritten.uploaded == [["lengths_1"]]
    rewritten.same()
