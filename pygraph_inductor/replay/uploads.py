"""Brings the values of CPU tensors to the device before a replay: packed, and in one asynchronous copy.

What generated code calls through the operator `pygraph_inductor::upload` (transform/operators.py). The result is an
ordinary device tensor, so a graph borrows it as it borrows any other input.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

# A tensor with more bytes than this is copied as the program would have had it copied: the detour over pinned memory
# is meant for scalars, lengths, indices and masks, and keeps what it used pinned.
STAGED_BYTES = 4 << 20
_FEW_BYTES, _LITTLE, _MUCH = 16, 16, 256  # alignment: kernels load 16 bytes at once, libraries look at 256


def upload(hosts: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copies of `hosts` on `device`, with the contents of this moment: later writes of the host do not reach them."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return [_alone(host, device) for host in hosts]
    small = [number for number, host in enumerate(hosts) if 0 < host.nbytes <= STAGED_BYTES]
    if not small:
        return [_copied(host, device) for host in hosts]
    dense = [_dense(hosts[number]) for number in small]
    offsets, total = _offsets(dense)
    # The allocator of pinned memory hands a block out again only when copies from it are done.
    staging = torch.empty(total, dtype=torch.uint8, pin_memory=True)
    start = staging.data_ptr()
    for host, offset in zip(dense, offsets, strict=True):
        ctypes.memmove(start + offset, host.data_ptr(), host.nbytes)
    memory = torch.empty(total, dtype=torch.uint8, device=device)
    memory.copy_(staging, non_blocking=True)
    storage = memory.untyped_storage()
    packed = {
        number: torch.empty(0, dtype=host.dtype, device=device).set_(
            storage, offset // host.itemsize, host.size(), host.stride()
        )
        for number, host, offset in zip(small, dense, offsets, strict=True)
    }
    return [packed[number] if number in packed else _copied(host, device) for number, host in enumerate(hosts)]


def _offsets(dense: Sequence[torch.Tensor]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for host in dense:
        alignment = _LITTLE if host.nbytes <= _FEW_BYTES else _MUCH
        end = -(-end // alignment) * alignment
        offsets.append(end)
        end += host.nbytes
    return offsets, end


def _dense(host: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it, whose elements follow each other in memory in the order of its strides."""
    if host.is_conj() or host.is_neg():
        host = host.resolve_conj().resolve_neg()
    if host.is_contiguous():
        return host
    like = torch.empty_like(host)  # keeps the strides of a dense tensor
    return host if like.stride() == host.stride() else like.copy_(host)


def _copied(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """By a copy that waits: the host's memory may be pinned, and written again at once."""
    return torch.empty_like(host, device=device).copy_(host)


def _alone(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Without staging. In somebody else's capture a number is frozen, as eager freezes it, and a tensor is refused."""
    if device.type == "cuda" and host.dim() == 0:
        return torch.full((), host.item(), dtype=host.dtype, device=device)
    return _copied(host, device)
