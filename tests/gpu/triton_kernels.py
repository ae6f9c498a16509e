"""Triton kernels as a user would write them. Importing this needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def blocks(elements: int) -> int:
    """How many programs of 256 elements cover so many elements."""
    return -(-elements // 256)


@triton.jit
def scale_and_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = where < n
    x = tl.load(x_ptr + where, mask=inside)
    y = tl.load(y_ptr + where, mask=inside)
    tl.store(out_ptr + where, x * 2.0 + y, mask=inside)


@triton.jit
def double_through_a_table(table_ptr, out_ptr, n, BLOCK: tl.constexpr):
    where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = where < n
    x_ptr = (tl.load(table_ptr) * 16).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + where, tl.load(x_ptr + where, mask=inside) * 2.0, mask=inside)


def doubled_through_a_table(x: torch.Tensor) -> torch.Tensor:
    """Twice `x` (fp32), whose address the kernel finds in a table on the device."""
    table = torch.full((1,), x.data_ptr() // 16, dtype=torch.int64, device=x.device)
    out = torch.empty_like(x)
    double_through_a_table[(blocks(x.numel()),)](table, out, x.numel(), BLOCK=256)
    return out
