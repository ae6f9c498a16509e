"""Small models with random weights, each with batches to call it on. Sizes are for coverage, not for speed.

`Workload.inputs()` makes one fresh batch; `call` is what gets compiled and returns a loss, or outputs in evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.gpu.comparing import DEVICE


@dataclass
class Workload:
    """A model, what of it is compiled, and its batches."""

    model: nn.Module
    call: Callable[..., Any]
    inputs: Callable[[], tuple]
    settings: dict[str, Any] = field(default_factory=dict)  # torch._dynamo.config, while it compiles


def tokens(vocabulary: int, *size: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, size, device=DEVICE)


def pictures(*size: int) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE)


def of_transformers(name: str, config: str, **sizes: Any) -> nn.Module:
    """A model of the transformers library from a configuration, on the device, in training mode."""
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, name)(getattr(transformers, config)(**sizes)).to(DEVICE).train()


def bert(dropout: float) -> Workload:
    model = of_transformers(
        "BertForMaskedLM",
        "BertConfig",
        vocab_size=500,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    call = lambda words, labels: model(input_ids=words, labels=labels, return_dict=False)[0]
    return Workload(model, call, lambda: (tokens(500, 4, 32), tokens(500, 4, 32)))


def t5() -> Workload:
    model = of_transformers(
        "T5ForConditionalGeneration",
        "T5Config",
        vocab_size=500,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        use_cache=False,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    call = lambda words, labels: model(input_ids=words, labels=labels, return_dict=False)[0]
    return Workload(model, call, lambda: (tokens(500, 4, 24), tokens(500, 4, 16)))


def xlnet() -> Workload:
    model = of_transformers(
        "XLNetLMHeadModel",
        "XLNetConfig",
        vocab_size=500,
        d_model=64,
        n_layer=2,
        n_head=4,
        d_inner=128,
        dropout=0.0,
        use_mems_eval=False,
        use_mems_train=False,
    )
    call = lambda words, labels: model(input_ids=words, labels=labels, return_dict=False)[0]
    return Workload(model, call, lambda: (tokens(500, 4, 24), tokens(500, 4, 24)))


def resnet(blocks: list[int]) -> Workload:
    """ResNet with bottleneck blocks; [3, 4, 6, 3] of them are ResNet-50."""
    resnets = pytest.importorskip("torchvision.models.resnet")
    model = resnets.ResNet(resnets.Bottleneck, blocks, num_classes=10).to(DEVICE).train()
    call = lambda images, labels: F.cross_entropy(model(images), labels)
    return Workload(model, call, lambda: (pictures(4, 3, 64, 64), tokens(10, 4)))


class UNet(nn.Module):
    """Two levels down, two up, with skip connections."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = self.block(3, width)
        self.down = nn.ModuleList([self.block(width, 2 * width), self.block(2 * width, 4 * width)])
        self.up = nn.ModuleList([self.block(6 * width, 2 * width), self.block(3 * width, width)])
        self.leave = nn.Conv2d(width, 1, 1)

    @staticmethod
    def block(before: int, after: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = [self.enter(x)]
        for block in self.down:
            skips.append(block(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], 1))
        return self.leave(x)


def unet() -> Workload:
    model = UNet().to(DEVICE)
    call = lambda image, wanted: F.mse_loss(model(image), wanted)
    return Workload(model, call, lambda: (pictures(2, 3, 32, 32), pictures(2, 1, 32, 32)))


class Recommender(nn.Module):
    """26 embedding tables and a dense part, joined by the products of all pairs."""

    def __init__(self, tables: int = 26, rows: int = 100, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))
        self.top = nn.Sequential(nn.Linear(width + self.pairs.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: torch.Tensor, *sparse: torch.Tensor) -> torch.Tensor:
        low = self.bottom(dense)
        looked_up = (table(one).sum(1) for table, one in zip(self.tables, sparse, strict=True))
        features = torch.stack([low, *looked_up], 1)
        products = features @ features.transpose(1, 2)
        return self.top(torch.cat([low, products[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(1)


def recommender() -> Workload:
    model = Recommender().to(DEVICE)

    def call(wanted: torch.Tensor, dense: torch.Tensor, *sparse: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(model(dense, *sparse), wanted)

    def inputs() -> tuple:
        sparse = (tokens(100, 32, 4) for _ in range(26))
        return (torch.rand(32, device=DEVICE), torch.randn(32, 13, device=DEVICE), *sparse)

    return Workload(model, call, inputs)


class Tagger(nn.Module):
    """A recurrent network: one LSTM layer over embedded words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.leave = nn.Linear(32, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.leave(self.lstm(self.embedding(words))[0])


def lstm() -> Workload:
    model = Tagger().to(DEVICE)
    call = lambda words, tags: F.cross_entropy(model(words).flatten(0, 1), tags.flatten())
    settings = {"allow_rnn": True} if hasattr(torch._dynamo.config, "allow_rnn") else {}
    return Workload(model, call, lambda: (tokens(100, 4, 6), tokens(8, 4, 6)), settings)


class Checkpointed(nn.Module):
    """Blocks with dropout whose activations are computed again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 64))
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x.square().mean()


def checkpointed() -> Workload:
    model = Checkpointed().to(DEVICE)
    return Workload(model, model, lambda: (torch.randn(32, 64, device=DEVICE),))


class Decoder(nn.Module):
    """GPT-2 in small, one token a call, with a key-value cache of fixed size that is written in place."""

    def __init__(
        self, layers: int = 2, width: int = 64, heads: int = 4, length: int = 32, vocabulary: int = 100
    ) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.mix = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.join = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.wide = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.narrow = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))

    def forward(self, word: torch.Tensor, place: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """`word`: (batch,), `place`: (1,), `cache`: (layers, 2, batch, heads, length, width per head)."""
        x = self.words(word) + self.places(place)
        seen = (torch.arange(cache.shape[4], device=cache.device) <= place)[None]
        for layer, mix in enumerate(self.mix):
            q, k, v = mix(self.norms[2 * layer](x)).unflatten(-1, (3, self.heads, -1)).unbind(1)
            cache[layer, 0].index_copy_(2, place, k[:, :, None])
            cache[layer, 1].index_copy_(2, place, v[:, :, None])
            attended = F.scaled_dot_product_attention(q[:, :, None], cache[layer, 0], cache[layer, 1], attn_mask=seen)
            x = x + self.join[layer](attended.flatten(1))
            x = x + self.narrow[layer](F.gelu(self.wide[layer](self.norms[2 * layer + 1](x))))
        return self.norms[-1](x) @ self.words.weight.t()


TRAINING: dict[str, Callable[[], Workload]] = {
    "bert": lambda: bert(0.0),
    "bert_dropout": lambda: bert(0.1),
    "t5": t5,
    "xlnet": xlnet,
    "resnet": lambda: resnet([1, 1, 1, 1]),
    "resnet50": lambda: resnet([3, 4, 6, 3]),
    "unet": unet,
    "recommender": recommender,
    "lstm": lstm,
    "checkpointed": checkpointed,
}
SLOW = {"resnet50"}
