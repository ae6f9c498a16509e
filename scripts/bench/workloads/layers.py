"""Transformer pieces that several workloads share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Dropout as far as kernels and random numbers go, without making eager and compiled results incomparable: the two draw
# different random numbers, and with this probability neither drops anything.
NEVER = 1e-30


class Attention(nn.Module):
    """Multi-head attention over `source` (the input itself by default) with an optional additive or boolean mask."""

    def __init__(self, width: int, heads: int, source_width: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(source_width or width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Tensor, source: Tensor | None = None, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        source = x if source is None else source
        batch, length, width = x.shape
        split = (batch, -1, self.heads, width // self.heads)
        query = self.query(x).view(split).transpose(1, 2)
        key, value = (part.view(split).transpose(1, 2) for part in self.key_value(source).chunk(2, dim=-1))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A pre-norm transformer layer, with cross attention if it has a source."""

    def __init__(self, width: int, heads: int, inner: int, cross: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.cross = Attention(width, heads) if cross else None
        self.feed = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Dropout(dropout), nn.Linear(inner, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if cross else 2))
        self.drop = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        x = x + self.drop(self.attention(self.norms[0](x), mask=mask, causal=causal))
        if self.cross is not None:
            x = x + self.drop(self.cross(self.norms[2](x), source, source_mask))
        return x + self.drop(self.feed(self.norms[1](x)))


def sinusoids(length: int, width: int) -> Tensor:
    """A table of sine and cosine positions, made on the CPU as models commonly do."""
    position = torch.arange(length, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-9.210340371976184 / width))
    return torch.stack((torch.sin(position * rate), torch.cos(position * rate)), dim=-1).reshape(length, width)
