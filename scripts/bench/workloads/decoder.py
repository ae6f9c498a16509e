"""A Llama-like decoder: prefill, decoding with a cache written in place, decoding with a cache that grows, experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.registry import Draw, Program, Setting, tensors_of, workload


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Each token goes to its two best experts; how many tokens an expert gets depends on the data."""

    def __init__(self, width: int, inner: int, count: int) -> None:
        super().__init__()
        self.route = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(Mlp(width, inner) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        chance, chosen = self.route(rows).float().softmax(-1).topk(2, dim=-1)
        weights = (chance / chance.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(rows)
        for n, expert in enumerate(self.experts):
            token, place = torch.where(chosen == n)
            out.index_add_(0, token, expert(rows[token]) * weights[token, place, None])
        return out.view_as(x)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of (batch, heads, length, size) at integer positions (length,)."""
    half = x.shape[-1] // 2
    rate = torch.exp(torch.arange(half, device=x.device, dtype=torch.float32) * (-9.2 / half))
    angle = positions.float()[:, None] * rate
    sine, cosine = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int, experts: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * groups) * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed = Experts(width, inner, experts) if experts else Mlp(width, inner)
        self.norms = nn.ModuleList([Norm(width), Norm(width)])

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        rows = self.qkv(self.norms[0](x)).view(batch, length, -1, self.size).transpose(1, 2)
        query, key, value = rows.split((self.heads, self.groups, self.groups), dim=1)
        return rotate(query, positions), rotate(key, positions), value

    def finish(self, x: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        share = self.heads // self.groups
        key, value = key.repeat_interleave(share, dim=1), value.repeat_interleave(share, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


class Decoder(nn.Module):
    def __init__(
        self, vocabulary: int, width: int, depth: int, heads: int, groups: int, inner: int, experts: int = 0
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, groups, inner, experts) for _ in range(depth))
        self.norm, self.out = Norm(width), nn.Linear(width, vocabulary, bias=False)

    def prefill(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Logits of the last token, and the keys and values of every layer."""
        x, cache = self.words(ids), []
        positions = torch.arange(ids.shape[1], device=ids.device)
        for layer in self.layers:
            query, key, value = layer.project(x, positions)
            cache += [key, value]
            x = layer.finish(x, query, key, value, None, causal=True)
        return self.out(self.norm(x[:, -1])), *cache

    def decode_in_place(self, ids: Tensor, position: Tensor, *cache: Tensor) -> Tensor:
        """One token; keys and values are written into caches of full length at `position`."""
        x = self.words(ids)
        mask = torch.arange(cache[0].shape[2], device=ids.device)[None, :] <= position[:, None]
        for layer, keys, values in zip(self.layers, cache[::2], cache[1::2], strict=True):
            query, key, value = layer.project(x, position)
            keys.index_copy_(2, position, key)
            values.index_copy_(2, position, value)
            x = layer.finish(x, query, keys, values, mask, causal=False)
        return self.out(self.norm(x[:, -1]))

    def decode_growing(self, ids: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
        """One token; the caches come back one longer, as new tensors."""
        x, longer = self.words(ids), []
        position = torch.full((1,), cache[0].shape[2], device=ids.device)
        for layer, keys, values in zip(self.layers, cache[::2], cache[1::2], strict=True):
            query, key, value = layer.project(x, position)
            keys, values = torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)
            longer += [keys, values]
            x = layer.finish(x, query, keys, values, None, causal=False)
        return self.out(self.norm(x[:, -1])), *longer


SIZES = ((32000, 1024, 12, 16, 4, 2816), (50, 16, 2, 4, 2, 32))


def decoder(setting: Setting, experts: int = 0, depth: int | None = None) -> tuple[Decoder, int]:
    vocabulary, width, full_depth, *sizes = setting.pick(*SIZES)
    model = Decoder(vocabulary, width, depth or full_depth, *sizes, experts=experts)
    return setting.place(model), vocabulary


def caches(model: Decoder, setting: Setting, draw: Draw, length: int) -> list[Tensor]:
    layer = model.layers[0]
    return [draw.normal(setting.batch, layer.groups, length, layer.size) for _ in range(2 * len(model.layers))]


LLM = {"suite": "extra", "mode": "inference", "precision": "bf16", "tags": frozenset({"llm"})}


@workload(
    "PREFILL",
    title="decoder, prefill",
    batch=1,
    structure="one pass over a prompt; every key and value is an output",
    **LLM,
)
def prefill(setting: Setting) -> Program:
    model, vocabulary = decoder(setting)
    length = setting.pick(512, 8)
    return Program(model.prefill, lambda draw: (draw.integers(vocabulary, setting.batch, length),))


@workload(
    "DECODE-S",
    title="decoder, static cache",
    batch=8,
    structure="200 MB of caches owned by the caller and written in place",
    **LLM,
)
def decode_static(setting: Setting) -> Program:
    model, vocabulary = decoder(setting)
    length = setting.pick(2048, 8)
    cache = tuple(caches(model, setting, Draw(setting), length))

    def step(ids: Tensor, position: Tensor) -> Tensor:
        return model.decode_in_place(ids, position, *cache)

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        return draw.integers(vocabulary, setting.batch, 1), draw.integers(length, 1)

    return Program(step, fresh, observe=lambda logits: [*tensors_of(logits), *cache], state=lambda: cache)


@workload(
    "DECODE-P",
    title="decoder, growing cache",
    batch=8,
    structure="every cache is a new input and comes back longer as a new output",
    **LLM,
)
def decode_plain(setting: Setting) -> Program:
    model, vocabulary = decoder(setting)
    length = setting.pick(511, 7)

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        return draw.integers(vocabulary, setting.batch, 1), *caches(model, setting, draw, length)

    return Program(model.decode_growing, fresh)


@workload(
    "MOE",
    title="decoder with eight experts",
    batch=1,
    structure="tokens per expert depend on the data",
    tolerance=0.1,
    **LLM,
)
def mixture(setting: Setting) -> Program:
    # Four layers: every expert call is a graph of its own, and most of them meet a new number of tokens.
    model, vocabulary = decoder(setting, experts=setting.pick(8, 2), depth=setting.pick(4, 1))
    length = setting.pick(128, 8)

    def logits(ids: Tensor) -> Tensor:
        return model.prefill(ids)[0]

    return Program(logits, lambda draw: (draw.integers(vocabulary, setting.batch, length),))
