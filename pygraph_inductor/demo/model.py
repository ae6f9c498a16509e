"""The demo's model: a small decoder-only transformer in plain torch, with random weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The size of the model and of one batch."""

    vocabulary: int = 512
    width: int = 128
    heads: int = 4
    layers: int = 6
    batch: int = 4
    tokens: int = 64


class Block(nn.Module):
    """Attention and a two-layer network, each behind a normalisation and added to what came in."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.projection = nn.Linear(shape.width, shape.width)
        self.network_norm = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.projection(self.attention(self.attention_norm(x))))
        return x + self.dropout(self.down(F.gelu(self.up(self.network_norm(x)))))

    def attention(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.query_key_value(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, tokens, width)


class Transformer(nn.Module):
    """Token and position embeddings, blocks, and one score per word of the vocabulary."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.tokens, shape.width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.scores = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.words(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        return self.scores(self.norm(x))
