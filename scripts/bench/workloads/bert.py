"""BERT as the early PyTorch port trains it: next sentence and masked words, a mask from the token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.registry import Draw, Program, Setting, amp, training, workload
from scripts.bench.workloads.layers import NEVER, Block, sinusoids


class Bert(nn.Module):
    """Token, segment and fixed sinusoidal position embeddings, transformer layers, two heads."""

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.words, self.segments = nn.Embedding(vocabulary, width, 0), nn.Embedding(3, width, 0)
        self.register_buffer("positions", sinusoids(length, width), persistent=False)
        self.blocks = nn.ModuleList(Block(width, heads, 4 * width, dropout=NEVER) for _ in range(depth))
        self.next_sentence, self.masked_word = nn.Linear(width, 2), nn.Linear(width, vocabulary)
        self.drop = nn.Dropout(NEVER)

    def forward(self, ids: Tensor, segments: Tensor, label: Tensor, is_next: Tensor) -> Tensor:
        length = ids.shape[1]
        mask = (ids > 0)[:, None, None, :].expand(-1, 1, length, -1)
        x = self.drop(self.words(ids) + self.segments(segments) + self.positions)
        for block in self.blocks:
            x = block(x, mask=mask)
        words = F.nll_loss(F.log_softmax(self.masked_word(x), dim=-1).float().transpose(1, 2), label)
        return words + F.nll_loss(F.log_softmax(self.next_sentence(x[:, 0]), dim=-1).float(), is_next)


@workload(
    "BERT",
    title="BERT_pytorch",
    suite="TorchBench",
    paper=True,
    mode="training",
    batch=16,
    precision="amp",
    structure="twelve layers; hundreds of saved activations and gradients",
)
def bert(setting: Setting) -> Program:
    vocabulary, length = setting.pick(20000, 50), setting.pick(128, 8)
    model = Bert(vocabulary, *setting.pick((768, 12, 12), (16, 1, 2)), length)

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        n = setting.batch
        # Labels never ignored: a mean over no words would be 0/0.
        return (
            draw.integers(vocabulary, n, length, low=1),
            draw.integers(3, n, length),
            draw.integers(vocabulary, n, length),
            draw.integers(2, n),
        )

    return training(setting.place(model, training=True), fresh, setting)


class TextLM(nn.Module):
    """A small causal language model for gradient accumulation."""

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, 4 * width) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids[:, :-1]) + self.positions
        for block in self.blocks:
            x = block(x, causal=True)
        return F.cross_entropy(self.out(self.norm(x)).flatten(0, 1).float(), ids[:, 1:].flatten())


@workload(
    "ACCUM",
    title="gradient accumulation, four micro-batches",
    suite="extra",
    mode="training",
    batch=8,
    precision="amp",
    structure="gradients of four backward passes add up in the same tensors",
)
def accumulation(setting: Setting) -> Program:
    vocabulary, length = setting.pick(32000, 50), setting.pick(256, 8)
    model = TextLM(vocabulary, *setting.pick((512, 6, 8), (16, 1, 2)), length)
    setting.place(model, training=True)
    one = training(model, lambda draw: (), setting)
    parameters = list(model.parameters())

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        return tuple(draw.integers(vocabulary, setting.batch, length + 1) for _ in range(4))

    def drive(call: Callable[..., Any], micro_batches: Sequence[Any]) -> Any:
        for parameter in parameters:
            parameter.grad = None
        total = 0.0
        for ids in micro_batches:
            with amp(setting):
                loss = call(ids) / len(micro_batches)
            loss.backward()
            total = total + loss.detach()
        return total

    return Program(model, fresh, drive, one.observe, one.state)
