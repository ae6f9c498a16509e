"""Other tensors over a tensor's memory: its bytes, its elements without history; copies between equal layouts."""

from __future__ import annotations

import torch

from pygraph_inductor.replay.plan import Layout


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from the first to behind the last element, as a flat uint8 tensor sharing it."""
    span = Layout.of(tensor).span
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), tensor.storage_offset() * tensor.itemsize, (span,), (1,))


def covers_its_span(tensor: torch.Tensor) -> bool:
    """Whether the elements fill the memory from first to last exactly once (dense in some order of dimensions)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory (expanded or unfolded tensors)."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size == 1:
            continue
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as an ordinary tensor with a version counter of its own."""
    alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return alias.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def copy_memory(target: torch.Tensor, source: torch.Tensor) -> None:
    """Fill a tensor that is nobody else's with one of its layout, and with what is between the elements of that: code
    that is given a tensor may look there (`as_strided`). No version counter changes.
    """
    bytes_of(target).copy_(bytes_of(source))


def copy_contents(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy between two tensors of one layout, overlapping elements included; no version counter changes.

    Only elements are written: the gaps of a strided tensor may be somebody else's.
    """
    if overlaps_itself(target):
        bytes_of(target).copy_(bytes_of(source))
    else:
        alias_of(target).copy_(alias_of(source))
