"""Random programs that go to and fro between host and device: numbers, masks, indices, detours, `.item()`, writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .fake_cuda import tensors

WIDTH = 8
DEVICE, HOST = torch.device("cuda", 0), torch.device("cpu")
F64, I64 = torch.float64, torch.int64
_item = torch.ops.aten._local_scalar_dense.default


def _spec(size: tuple[int, ...], dtype: torch.dtype, on: torch.device) -> dict[str, Any]:
    return {"size": size, "dtype": dtype, "device": str(on)}


SPECS = [
    _spec((WIDTH, WIDTH), F64, DEVICE),
    _spec((WIDTH, WIDTH), F64, DEVICE),
    _spec((WIDTH,), I64, DEVICE),
    _spec((), F64, HOST),
    _spec((), torch.float32, HOST),
    _spec((), I64, HOST),
    _spec((WIDTH,), I64, HOST),
    _spec((WIDTH,), torch.bool, HOST),
    _spec((WIDTH,), F64, HOST),
    _spec((WIDTH, WIDTH), F64, HOST),
]
HOSTS = [number for number, spec in enumerate(SPECS) if spec["device"] == "cpu"]


@dataclass(frozen=True)
class Mixed:
    """A program, and which of its inputs are parameters and buffers."""

    function: Callable[..., tuple[torch.Tensor, ...]]
    static: frozenset[int]
    names: tuple[str, ...]


def contents(chance: random.Random) -> list[torch.Tensor]:
    """Inputs of one call, all on the CPU."""
    generator = torch.Generator().manual_seed(chance.randrange(1 << 30))
    made = []
    for spec in SPECS:
        if spec["dtype"].is_floating_point:
            made.append(torch.randn(spec["size"], generator=generator, dtype=spec["dtype"]))
        else:
            made.append(torch.randint(0, WIDTH, spec["size"], generator=generator).to(spec["dtype"]))
    return made


def drawn(chance: random.Random, length: int = 14) -> Mixed:
    """What it does is drawn here; the function does the same whenever it is called."""
    statements = [(chance.choice(_STATEMENTS), [chance.random() for _ in range(4)]) for _ in range(length)]
    returned = [chance.random() for _ in range(4)]
    static = frozenset(chance.sample(HOSTS, chance.randrange(6)))

    def function(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        device = inputs[0].device
        # Kinds of values by where they are: a matrix, a vector of indices, numbers, a mask, a vector.
        there: dict[str, list[torch.Tensor]] = {"matrix": list(inputs[:2]), "index": [inputs[2]]}
        here = {
            "number": list(inputs[3:6]),
            "index": [inputs[6]],
            "mask": [inputs[7]],
            "vector": [inputs[8]],
            "matrix": [inputs[9]],
        }

        def pick(values: list[torch.Tensor], number: float) -> torch.Tensor:
            return values[int(number * len(values))]

        for name, numbers in statements:
            a, b, c = numbers[:3]
            x = pick(there["matrix"], a)
            new: torch.Tensor | None = None
            if name == "product":
                new = x @ pick(there["matrix"], b) / WIDTH
            elif name == "sorted":
                new = x.sort(0)[0].t()
            elif name == "scaled":
                new = x * pick(here["number"], b)
            elif name == "compared":
                new = torch.where(x > pick(here["number"], b), x, pick(here["number"], c).to(F64))
            elif name == "rows":
                new = x[pick(here["index"], b) % WIDTH] + x.cos()
            elif name == "put":
                new = x.index_put((pick(here["index"], b).remainder(WIDTH),), pick(there["matrix"], c)[0])
            elif name == "columns":
                new = x[:, pick(there["index"], b) % WIDTH].sin()
            elif name == "masked":
                new = x.masked_fill(pick(here["mask"], b).to(device), 0.5)
            elif name == "bias":
                new = x + pick(here["vector"], b).to(device, non_blocking=c > 0.5)
            elif name == "wide bias":
                new = x - pick(here["matrix"], b).to(device)
            elif name == "narrow bias":
                new = x + pick(here["vector"], b).to(device, torch.float32)
            elif name == "item":
                new = x * _item((pick(there["matrix"], b) > 0.3).sum())
            elif name == "item of the host":
                new = x + _item(pick(here["index"], b).sum() + 1)
            elif name == "written there":
                x.add_(0.5)
            elif name == "written here":
                inputs[(5, 6, 8, 9)[int(a * 4)]].add_(1)
            elif name == "written over":
                inputs[8].copy_(x[0])
            if new is not None:
                there["matrix"].append(new)
            if name == "down":
                here["matrix"].append((1 + x.sin()).cpu())
            elif name == "row down":
                here["vector"].append(x.amax(0).cpu() * 2)
            elif name == "sorted on the host":
                here["index"].append(x.sum(0).cpu().sort()[1])
            elif name == "mask from lengths":
                here["mask"].append(torch.arange(WIDTH) < pick(here["index"], b)[0])
            elif name == "positions":
                here["index"].append(torch.arange(WIDTH).flip(0) + pick(here["index"], b))
            elif name == "table":
                here["vector"].append(torch.exp(torch.arange(WIDTH, dtype=F64) / -3))
            elif name == "number computed":
                here["number"].append((pick(here["number"], a) * 2 + 1).to(F64).sqrt().nan_to_num())
            elif name == "computed here":
                here["vector"].append(pick(here["vector"], a).tanh() * pick(here["number"], b))
            elif name == "random":
                here["vector"].append(torch.rand(WIDTH, dtype=F64) + pick(here["vector"], a))
            elif name == "up":
                there["index"].append(pick(here["index"], a).abs().to(device))
            elif name == "view here":
                here["matrix"].append(pick(here["matrix"], a).t())
        results = [one for values in (*there.values(), *here.values()) for one in values]
        values = [pick(results, number) for number in returned]
        values.append(there["matrix"][-1] + 0.0)
        # Copies of their own, straight from the host.
        copied = inputs[8] if returned[1] < 0.3 else pick(here["vector"], returned[0])
        values += [
            copied.to(device),
            copied.to(device),
            copied[None].to(device),
            pick(here["number"], returned[2]).to(device),
        ]
        return tuple(values)

    return Mixed(function, static, tuple(name for name, _ in statements))


_STATEMENTS = [
    *("product", "product", "sorted", "scaled", "scaled", "compared", "rows", "put", "columns", "masked", "bias"),
    *("wide bias", "narrow bias", "item", "item of the host", "written there", "written here", "written over", "down"),
    *("row down", "sorted on the host", "mask from lengths", "positions", "table", "number computed"),
    *("computed here", "random", "up", "view here"),
]


def traced(mixed: Mixed) -> fx.GraphModule:
    """As AOTAutograd hands a graph on: without writes, except that inputs are copied to at the end."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    inputs = tensors(mode, SPECS)
    with mode:
        function = torch.func.functionalize(mixed.function, remove="mutations_and_views")
        return make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="real")(*inputs)
