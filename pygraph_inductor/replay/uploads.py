"""Brings the values of CPU tensors to the device before a replay: packed, and in one asynchronous copy.

What generated code calls for the operator `pygraph_inductor::upload` (transform/operators.py), on every call: so the
few microseconds that this takes matter. The results are ordinary device tensors without history, so a graph borrows
them as it borrows any other input.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

# A tensor with more bytes than this is copied as the program would have had it copied: the detour over pinned memory
# is meant for numbers, lengths, indices and masks, and keeps what it used pinned.
STAGED_BYTES = 4 << 20
# So is what would make one upload's pinned memory larger than this: the allocator keeps what it once pinned, and one
# result that is kept, by a backward, say, keeps all that came with it.
STAGED_IN_ALL = 64 << 20
_ALIGNMENT = 256  # kernels load 16 bytes at once, and libraries choose by up to this
_FEW = 4  # so many numbers are packed one by one; more are stacked first
_SINGLE = frozenset(
    [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    ]
)  # a number of Python has every value of these
_memmove = ctypes.memmove
_reinterpret = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]


def upload(numbers: Sequence[torch.Tensor], hosts: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The 0-d `numbers` as one 1-d device tensor per dtype, in the order of `by_dtype`; then copies of `hosts`.

    With the contents of this moment: later writes of the host do not reach them.
    """
    if len(numbers) == 1 and not hosts and numbers[0].dtype in _SINGLE:
        # A parameter of a kernel: nothing to pin, nothing to wait for, and frozen by a capture.
        return [torch.full((1,), numbers[0].item(), dtype=numbers[0].dtype, device=device)]
    groups = by_dtype(numbers).values()
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return [_frozen(group, device) for group in groups] + [_copied(host, device) for host in hosts]
    packing = _Packing()
    for group in groups:
        packing.add(group[0].dtype, (len(group),), (1,), group if len(group) <= _FEW else [torch.stack(group)])
    large = set()
    for position, host in enumerate(hosts):
        if 0 < host.nbytes <= STAGED_BYTES and packing.total + host.nbytes <= STAGED_IN_ALL:
            dense = _dense(host)
            packing.add(dense.dtype, dense.size(), dense.stride(), [dense])
        else:
            large.add(position)
    packed = packing.to(device)
    if not large:
        return packed
    rest = iter(packed)
    found = [next(rest) for _ in groups]
    return found + [_copied(host, device) if position in large else next(rest) for position, host in enumerate(hosts)]


def by_dtype(numbers: Sequence[torch.Tensor]) -> dict[torch.dtype, list[torch.Tensor]]:
    """The numbers of each dtype, in order."""
    groups: dict[torch.dtype, list[torch.Tensor]] = {}
    for number in numbers:
        groups.setdefault(number.dtype, []).append(number)
    return groups


class _Packing:
    """Results in one piece of memory, each where it is aligned, and what is copied into them."""

    __slots__ = ("results", "total", "writes")

    def __init__(self) -> None:
        self.results: list[tuple[torch.dtype, int, Sequence[int], Sequence[int]]] = []  # dtype, offset, size, stride
        self.writes: list[tuple[int, torch.Tensor]] = []  # offset, and what has its memory there
        self.total = 0

    def add(
        self, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], sources: Sequence[torch.Tensor]
    ) -> None:
        """A result made of dense tensors, one after the other."""
        at = self.total
        self.results.append((dtype, at, size, stride))
        for source in sources:
            if not source.dim():
                source = _dense(source)
            self.writes.append((at, source))
            at += source.nbytes
        self.total = -(-at // _ALIGNMENT) * _ALIGNMENT

    def to(self, device: torch.device) -> list[torch.Tensor]:
        """All results, after one copy that does not wait."""
        if not self.results:
            return []
        # The allocator of pinned memory hands a block out again only when copies from it are done.
        if len(self.results) == 1:
            dtype, _, size, stride = self.results[0]
            staging = torch.empty_strided(size, stride, dtype=dtype, pin_memory=True)
        else:
            staging = torch.empty(self.total, dtype=torch.uint8, pin_memory=True)
        base = staging.data_ptr()
        for offset, source in self.writes:
            address = source.data_ptr()
            if not (base and address):
                raise RuntimeError("there is no memory behind a tensor that is to be uploaded: it is a fake one")
            _memmove(base + offset, address, source.nbytes)
        memory = staging.to(device, non_blocking=True)
        if len(self.results) == 1:
            return [memory]
        typed = {dtype: memory.view(dtype) for dtype, *_ in self.results}
        return [
            _reinterpret(typed[dtype], size, stride, offset // dtype.itemsize)
            for dtype, offset, size, stride in self.results
        ]


def _dense(host: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it, whose elements follow each other in memory in the order of its strides."""
    if host.is_conj() or host.is_neg() or host._is_zerotensor():  # the last has no memory
        host = host.detach().resolve_conj().resolve_neg().clone()
    if host.is_contiguous():
        return host
    like = torch.empty_like(host)  # keeps the strides of a dense tensor
    return host if like.stride() == host.stride() else like.copy_(host.detach())


def _copied(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """By a copy that waits: the host's memory may be pinned, and written again at once."""
    return torch.empty_like(host, device=device).copy_(host.detach())


def _frozen(group: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Numbers in somebody else's capture: as eager freezes them, there is nothing to copy from."""
    result = torch.empty(len(group), dtype=group[0].dtype, device=device)
    for position, number in enumerate(group):
        result[position].fill_(number.item())
    return result
