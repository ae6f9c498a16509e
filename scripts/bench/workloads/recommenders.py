"""Recommenders: a very wide autoencoder, and embedding tables by the dozen."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.registry import Draw, Program, Setting, training, workload


class DeepRecommender(nn.Module):
    """An autoencoder over a user's ratings of every item: 197,951 in and out, 512-512-1024 between, SELU."""

    def __init__(self, items: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        sizes = (items, *widths, *reversed(widths[:-1]), items)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.middle = len(widths)
        self.drop = nn.Dropout(1e-30)

    def forward(self, ratings: Tensor) -> Tensor:
        x = ratings
        for depth, layer in enumerate(self.layers, start=1):
            x = F.selu(layer(x))
            if depth == self.middle:
                x = self.drop(x)
        return x


RECOMMENDER = {
    "title": "nvidia_deeprecommender",
    "suite": "TorchBench",
    "paper": True,
    "structure": "one very wide input: stock graphs copy all of it",
}


def recommender(setting: Setting, train: bool) -> tuple[nn.Module, int]:
    items = setting.pick(197951, 512)
    return setting.place(DeepRecommender(items, setting.pick((512, 512, 1024), (16, 16, 32))), train), items


@workload("DR-I", mode="inference", batch=8192, precision="bf16", **RECOMMENDER)
def recommender_inference(setting: Setting) -> Program:
    model, items = recommender(setting, train=False)
    return Program(model, lambda draw: (draw.uniform(setting.batch, items, high=5.0),))


@workload("DR-T", mode="training", batch=256, precision="amp", **RECOMMENDER)
def recommender_training(setting: Setting) -> Program:
    model, items = recommender(setting, train=True)

    def masked_error(ratings: Tensor) -> Tensor:
        seen = ratings > 0
        return ((model(ratings) - ratings).square() * seen).sum() / seen.sum().clamp(min=1)

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        return (F.relu(draw.uniform(setting.batch, items, low=-5.0, high=5.0)),)

    return training(model, fresh, setting, masked_error)


class Bag(nn.Embedding):
    """Rows of a table, summed: with the fused operator, except in training, where its backward waits for the device."""

    def forward(self, ids: Tensor) -> Tensor:
        if self.training:
            return super().forward(ids).sum(1)
        return F.embedding_bag(ids, self.weight, mode="sum")


class Dlrm(nn.Module):
    """Dense features through an MLP, sparse ones through a table each, pairwise products, an MLP on top."""

    def __init__(self, tables: int, rows: int, width: int, dense: int, bottom: tuple[int, ...], top: tuple[int, ...]):
        super().__init__()
        self.tables = nn.ModuleList(Bag(rows, width) for _ in range(tables))
        self.bottom = mlp((dense, *bottom, width))
        pairs = (tables + 1) * tables // 2
        self.top = mlp((width + pairs, *top, 1), last=nn.Sigmoid())
        self.register_buffer("lower", torch.tril_indices(tables + 1, tables + 1, offset=-1), persistent=False)

    def forward(self, dense: Tensor, *sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = torch.stack([x, *(table(ids) for table, ids in zip(self.tables, sparse, strict=True))], dim=1)
        products = rows @ rows.transpose(1, 2)
        pairs = products[:, self.lower[0], self.lower[1]]
        return self.top(torch.cat((x, pairs), dim=1))


def mlp(sizes: tuple[int, ...], last: nn.Module | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last or nn.ReLU())


DLRM = {"title": "dlrm", "structure": "an embedding table and an index input for each of 26 sparse features"}


def dlrm(setting: Setting, train: bool) -> tuple[nn.Module, int, int, int]:
    tables, rows = setting.pick(26, 4), setting.pick(100_000, 50)
    bottom, top = setting.pick(((512, 256), (1024, 1024, 512, 256)), ((16,), (16,)))
    model = Dlrm(tables, rows, setting.pick(64, 8), 13, bottom, top)
    return setting.place(model, train), tables, rows, setting.pick(10, 3)


def features(setting: Setting, tables: int, rows: int, bag: int, draw: Draw) -> tuple[Tensor, ...]:
    return draw.normal(setting.batch, 13), *(draw.integers(rows, setting.batch, bag) for _ in range(tables))


@workload("DLRM", mode="inference", batch=2048, precision="bf16", suite="TorchBench", paper=True, **DLRM)
def dlrm_inference(setting: Setting) -> Program:
    model, *sizes = dlrm(setting, train=False)
    return Program(model, lambda draw: features(setting, *sizes, draw))


@workload("DLRM-T", mode="training", batch=2048, precision="amp", suite="extra", **DLRM)
def dlrm_training(setting: Setting) -> Program:
    model, *sizes = dlrm(setting, train=True)

    def loss(clicked: Tensor, *inputs: Tensor) -> Tensor:
        # Binary cross entropy written out: autocast refuses the operator itself.
        odds = model(*inputs).float().squeeze(1).clamp(1e-6, 1 - 1e-6)
        return -(clicked * odds.log() + (1 - clicked) * (1 - odds).log()).mean()

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        return draw.integers(2, setting.batch).float(), *features(setting, *sizes, draw)

    return training(model, fresh, setting, loss)
