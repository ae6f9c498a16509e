"""Speech models: an encoder-decoder whose masks come from lengths on the CPU, and the decoder of Speech2Text2."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.registry import Draw, Program, Setting, training, workload
from scripts.bench.workloads.layers import NEVER, Block, sinusoids


def padding_mask(lengths: Tensor, length: int, like: Tensor) -> Tensor:
    """Which positions are real, made on the CPU and copied, as a (batch, 1, 1, length) boolean mask."""
    real = torch.arange(length)[None, :] < lengths[:, None]
    return real[:, None, None, :].to(like.device)


class SpeechTransformer(nn.Module):
    """Frames through an encoder, characters through a decoder. Lengths come on the CPU, as from a data loader."""

    def __init__(self, features: int, vocabulary: int, width: int, depth: int, heads: int, inner: int) -> None:
        super().__init__()
        self.frames = nn.Sequential(nn.Linear(features, width), nn.LayerNorm(width))
        self.words = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(Block(width, heads, inner) for _ in range(depth))
        self.decoder = nn.ModuleList(Block(width, heads, inner, cross=True) for _ in range(depth))
        self.out = nn.Linear(width, vocabulary, bias=False)
        self.out.weight = self.words.weight
        self.width = width

    def forward(self, frames: Tensor, frame_lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
        x = self.frames(frames)
        time, length = frames.shape[1], targets.shape[1]
        x = x + sinusoids(time, self.width).to(device=x.device, dtype=x.dtype)
        heard = padding_mask(frame_lengths, time, x)
        silent = (~heard[:, 0, 0, :, None]).expand_as(x)
        for block in self.encoder:
            x = block(x, mask=heard).masked_fill(silent, 0.0)
        y = self.words(targets) * math.sqrt(self.width)
        y = y + sinusoids(length, self.width).to(device=y.device, dtype=y.dtype)
        earlier = torch.ones(length, length, dtype=torch.bool).tril()
        written = torch.arange(length)[None, :] < target_lengths[:, None]
        visible = (earlier[None, None] & written[:, None, None, :]).to(y.device)
        for block in self.decoder:
            y = block(y, mask=visible, source=x, source_mask=heard)
        return self.out(y)


@workload(
    "ST",
    title="speech_transformer",
    suite="TorchBench",
    paper=True,
    mode="inference",
    batch=1,
    precision="bf16",
    structure="padding and causal masks made on the CPU from CPU lengths",
)
def speech_transformer(setting: Setting) -> Program:
    vocabulary, features = setting.pick(4233, 50), setting.pick(320, 16)
    width, depth, heads, inner = setting.pick((512, 6, 8, 2048), (16, 1, 2, 32))
    time, length = setting.pick((204, 27), (12, 6))
    model = setting.place(SpeechTransformer(features, vocabulary, width, depth, heads, inner))

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        return (
            draw.normal(setting.batch, time, features),
            draw.host_integers(time + 1, setting.batch, low=time // 2),
            draw.integers(vocabulary, setting.batch, length),
            draw.host_integers(length + 1, setting.batch, low=length // 2),
        )

    return Program(model, fresh)


class SpeechDecoder(nn.Module):
    """The decoder of Speech2Text2, without an encoder: sinusoidal positions that skip padding, causal attention."""

    def __init__(
        self, vocabulary: int, width: int, depth: int, heads: int, inner: int, longest: int, padding: int
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=padding)
        self.register_buffer("positions", sinusoids(longest, width), persistent=False)
        self.blocks = nn.ModuleList(Block(width, heads, inner, dropout=NEVER) for _ in range(depth))
        self.out = nn.Linear(width, vocabulary, bias=False)
        self.padding, self.width = padding, width

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        real = ids != self.padding
        place = torch.cumsum(real.int(), dim=1).long() * real
        x = self.words(ids) * math.sqrt(self.width) + self.positions[place]
        length = ids.shape[1]
        mask = torch.full((length, length), torch.finfo(x.dtype).min).triu(1).to(device=x.device, dtype=x.dtype)
        for block in self.blocks:
            x = block(x, mask=mask)
        return F.cross_entropy(self.out(x).flatten(0, 1).float(), labels.flatten())


@workload(
    "STCLM",
    title="Speech2Text2ForCausalLM",
    suite="HuggingFace",
    paper=True,
    mode="training",
    batch=256,
    precision="amp",
    structure="a small decoder at a large batch; the class is gone from transformers 5, so it is written here",
)
def speech_decoder(setting: Setting) -> Program:
    vocabulary, length = setting.pick(10000, 50), setting.pick(128, 8)
    width, depth, heads, inner = setting.pick((256, 6, 4, 2048), (16, 1, 2, 32))
    model = SpeechDecoder(vocabulary, width, depth, heads, inner, longest=length + 2, padding=1)

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        return tuple(draw.integers(vocabulary, setting.batch, length, low=2) for _ in range(2))

    return training(setting.place(model, training=True), fresh, setting)
