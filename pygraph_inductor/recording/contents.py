"""Contents of tensors: copies that can be put back, digests, comparison bit for bit.

Verification needs to know what a call wrote and whether two calls agree, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pygraph_inductor.replay.views import alias_of, bytes_of, covers_its_span, overlaps_itself

_CHUNK = 32 << 20  # bytes; what a digest needs besides the tensor is a few times that
_LOW_HALF = 0xFFFFFFFF
# Odd, so that nothing is lost: digits of the golden ratio, pi and e.
_POSITION, _FACTORS = 0x9E3779B97F4A7C15 - (1 << 64), (0x243F6A8885A308D3, 0xB7E151628AED2A6B - (1 << 64))


def _writable(tensor: torch.Tensor) -> torch.Tensor:
    # The gaps of a strided tensor may be somebody else's: only its own elements are read and put back.
    if covers_its_span(tensor) or overlaps_itself(tensor):
        return bytes_of(tensor).view(tensor.dtype)
    return alias_of(tensor)


class Kept:
    """A copy of what some tensors hold, which can be compared or put back. Version counters stay as they are."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._originals = tuple(_writable(tensor) for tensor in tensors)
        self._copies = tuple(original.clone() for original in self._originals)

    def put_back(self) -> None:
        """Write the copies back."""
        for original, copy in zip(self._originals, self._copies, strict=True):
            original.copy_(copy)

    def unchanged(self) -> bool:
        """Whether the tensors still hold, bit for bit, what was kept."""
        return all(same_bits(original, copy) for original, copy in zip(self._originals, self._copies, strict=True))

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor as it was kept, and as it is now."""
        return list(zip(self._copies, self._originals, strict=True))


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is torch.uint8 and tensor.dim() == 1:
        return tensor
    # An expanded tensor is not made contiguous: it may be a million times its memory.
    return bytes_of(tensor if covers_its_span(tensor) or overlaps_itself(tensor) else tensor.contiguous())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equality of two tensors of one layout: nan equals the same nan, 0.0 differs from -0.0."""
    if a.size() != b.size() or a.dtype != b.dtype:
        return False
    if a.stride() != b.stride():
        a, b = a.contiguous(), b.contiguous()
    return a.numel() == 0 or bool(torch.equal(_flat_bytes(a), _flat_bytes(b)))


def _mixed(words: torch.Tensor, start: int) -> torch.Tensor:
    """Numbers of which each bit depends on all of a word and its position; no two words give the same at one position.

    Sums of words times weights would do for chance, not for what programs make: 0 and -1, blocks that changed places,
    one value everywhere.
    """
    mixed = torch.arange(start, start + words.numel(), dtype=torch.int64, device=words.device)
    mixed.mul_(_POSITION).add_(words)
    for factor in _FACTORS:
        # The shift alone would drag the sign in.
        mixed.bitwise_xor_((mixed >> 32).bitwise_and_(_LOW_HALF)).mul_(factor)
    return mixed.bitwise_xor_((mixed >> 32).bitwise_and_(_LOW_HALF))


def _digest(tensor: torch.Tensor) -> torch.Tensor:
    """A 0-d int64 that almost surely differs when any byte differs; order matters."""
    flat = _flat_bytes(tensor)
    head = flat.numel() // 8 * 8
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    in_words = flat.is_contiguous() and flat.storage_offset() % 8 == 0 and flat.data_ptr() % 8 == 0
    for start in range(0, head, _CHUNK):
        chunk = flat[start : min(start + _CHUNK, head)]
        words = (chunk if in_words else chunk.clone()).view(torch.int64)
        total = total + _mixed(words, start // 8).sum()
    for byte in flat[head:].to(torch.int64):
        total = total * 257 + byte
    return total


def digests(tensors: Sequence[torch.Tensor]) -> list[int]:
    """One number per tensor, with one synchronisation for all of them."""
    if not tensors:
        return []
    return torch.stack([_digest(tensor.detach()) for tensor in tensors]).tolist()
