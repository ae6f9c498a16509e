"""Brings the values of CPU tensors to the device before a replay: packed, and in one asynchronous copy.

What generated code calls through the operator `pygraph_inductor::upload` (transform/operators.py). The results are
ordinary device tensors, so a graph borrows them as it borrows any other input.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

# A tensor with more bytes than this is copied as the program would have had it copied: the detour over pinned memory
# is meant for numbers, lengths, indices and masks, and keeps what it used pinned.
STAGED_BYTES = 4 << 20
_ALIGNMENT = 256  # kernels load 16 bytes at once, and libraries choose by up to this


def upload(numbers: Sequence[torch.Tensor], hosts: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The 0-d `numbers` as one 1-d device tensor per dtype, in the order of `by_dtype`; then copies of `hosts`.

    With the contents of this moment: later writes of the host do not reach them.
    """
    if torch.is_grad_enabled():
        with torch.no_grad():
            return _uploaded(numbers, hosts, device)
    return _uploaded(numbers, hosts, device)


def _uploaded(
    numbers: Sequence[torch.Tensor], hosts: Sequence[torch.Tensor], device: torch.device
) -> list[torch.Tensor]:
    groups = list(by_dtype(numbers).values())
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return [_frozen(group, device) for group in groups] + [_copied(host, device) for host in hosts]
    pieces = [_Piece(group[0].dtype, (len(group),), (1,), [*map(_dense, group)]) for group in groups]
    pieces += [_piece(host) for host in hosts if 0 < host.nbytes <= STAGED_BYTES]
    packed = iter(_packed(pieces, device)) if pieces else iter(())
    results = [next(packed) for _ in groups]
    return results + [next(packed) if 0 < one.nbytes <= STAGED_BYTES else _copied(one, device) for one in hosts]


def by_dtype(numbers: Sequence[torch.Tensor]) -> dict[torch.dtype, list[torch.Tensor]]:
    """The numbers of each dtype, in order."""
    groups: dict[torch.dtype, list[torch.Tensor]] = {}
    for number in numbers:
        groups.setdefault(number.dtype, []).append(number)
    return groups


@dataclass(frozen=True)
class _Piece:
    """One result and what goes into it: 0-d tensors one after the other, or the memory of one dense tensor."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    sources: list[torch.Tensor]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * sum(source.numel() for source in self.sources)


def _piece(host: torch.Tensor) -> _Piece:
    dense = _dense(host)
    return _Piece(host.dtype, tuple(host.size()), tuple(dense.stride()), [dense])


def _packed(pieces: Sequence[_Piece], device: torch.device) -> list[torch.Tensor]:
    offsets, total = [], 0
    for piece in pieces:
        total = -(-total // _ALIGNMENT) * _ALIGNMENT
        offsets.append(total)
        total += piece.nbytes
    # The allocator of pinned memory hands a block out again only when copies from it are done.
    staging = torch.empty(total, dtype=torch.uint8, pin_memory=True)
    for piece, offset in zip(pieces, offsets, strict=True):
        if len(piece.sources) == 1:
            ctypes.memmove(staging.data_ptr() + offset, piece.sources[0].data_ptr(), piece.nbytes)
        else:
            torch.stack(piece.sources, out=staging[offset : offset + piece.nbytes].view(piece.dtype))
    memory = torch.empty(total, dtype=torch.uint8, device=device)
    memory.copy_(staging, non_blocking=True)
    storage = memory.untyped_storage()
    return [
        torch.empty(0, dtype=piece.dtype, device=device).set_(
            storage, offset // piece.dtype.itemsize, piece.size, piece.stride
        )
        for piece, offset in zip(pieces, offsets, strict=True)
    ]


def _dense(host: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it, whose elements follow each other in memory in the order of its strides."""
    if host.is_conj() or host.is_neg():
        host = host.resolve_conj().resolve_neg()
    if host._is_zerotensor():
        host = host.clone()  # it has no memory
    if host.is_contiguous():
        return host
    like = torch.empty_like(host)  # keeps the strides of a dense tensor
    return host if like.stride() == host.stride() else like.copy_(host)


def _copied(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """By a copy that waits: the host's memory may be pinned, and written again at once."""
    return torch.empty_like(host, device=device).copy_(host)


def _frozen(group: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Numbers in somebody else's capture: as eager freezes them, there is nothing to copy from."""
    result = torch.empty(len(group), dtype=group[0].dtype, device=device)
    for position, number in enumerate(group):
        result[position].fill_(number.item())
    return result
