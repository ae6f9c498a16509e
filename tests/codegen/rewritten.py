"""Graphs before and after rewrites: traced with fake CUDA tensors, run with CUDA retargeted to the CPU."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pygraph_inductor.transform.apply import ALL, apply
from pygraph_inductor.transform.host_values import device_of, moved_to
from pygraph_inductor.transform.operators import UPLOAD

from .fake_cuda import tensors

CPU = torch.device("cpu")


def host(*size: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return {"size": size, "dtype": dtype, "device": "cpu"}


def traced(function: Callable[..., Any], *specs: Any, decomposed: bool = True) -> fx.GraphModule:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    inputs = tensors(mode, specs)
    table = select_decomp_table() if decomposed else {}
    with mode:
        return make_fx(function, decomposition_table=table, tracing_mode="real")(*inputs)


def contents(specs: Any, seed: int) -> list[torch.Tensor]:
    made = []
    generator = torch.Generator().manual_seed(seed)
    for spec in specs:
        size = spec["size"] if isinstance(spec, dict) else spec
        dtype = spec.get("dtype", torch.float32) if isinstance(spec, dict) else torch.float32
        if dtype.is_floating_point:
            made.append(torch.randn(size, generator=generator, dtype=dtype))
        else:
            made.append(torch.randint(0, 3, size, generator=generator).to(dtype))
    return made


def retargeted(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph with everything on the CPU."""

    def on_cpu(value: Any) -> Any:
        return CPU if isinstance(value, torch.device) else value

    graph = copy.deepcopy(module.graph)
    for node in graph.nodes:
        node.args = torch.utils._pytree.tree_map(on_cpu, node.args)
        node.kwargs = torch.utils._pytree.tree_map(on_cpu, node.kwargs)
    return fx.GraphModule(module, graph)


class Rewritten:
    """A function's graph before and after."""

    def __init__(self, function: Callable[..., Any], *specs: Any, on: Any = ALL, decomposed: bool = True) -> None:
        self.specs = specs
        self.module = traced(function, *specs, decomposed=decomposed)
        self.before = copy.deepcopy(self.module.graph)
        self.outcomes = apply(self.module, on, strict=True)

    @property
    def applied(self) -> set[str]:
        return {one.rewrite for one in self.outcomes if one.applied}

    @property
    def refused(self) -> str:
        return "; ".join(one.what for one in self.outcomes if not one.applied)

    @property
    def calls(self) -> list[fx.Node]:
        return list(self.module.graph.find_nodes(op="call_function", target=UPLOAD))

    @property
    def uploaded(self) -> list[list[str]]:
        return [[one.name for one in (*call.args[0], *call.args[1])] for call in self.calls]

    def on_cpu(self) -> list[str]:
        """What the CPU computes."""

        def is_there(node: fx.Node) -> bool:
            leaves = torch.utils._pytree.tree_leaves(node.meta.get("val"))
            return any(isinstance(leaf, torch.Tensor) and leaf.device == CPU for leaf in leaves)

        computed = [node for node in self.module.graph.nodes if node.op == "call_function" and is_there(node)]
        return [str(node.target) for node in computed if node.target is not operator.getitem]

    def crossings(self) -> list[str]:
        """Copies between devices that are left."""
        return [node.name for node in self.module.graph.nodes if moved_to(node) is not None]

    def mixed(self) -> list[str]:
        """Operators on the device that still take CPU tensors."""
        return [
            node.name
            for node in self.module.graph.nodes
            if node.target is not UPLOAD
            and device_of(node) not in (None, CPU)
            and any(device_of(one) == CPU for one in node.all_input_nodes)
        ]

    def same(self, exact: bool = True) -> None:
        original = fx.GraphModule(self.module, self.before)
        for seed in range(3):
            inputs = contents(self.specs, seed)
            torch.manual_seed(seed)
            wanted = retargeted(original)(*[one.clone() for one in inputs])
            torch.manual_seed(seed)
            got = retargeted(self.module)(*[one.clone() for one in inputs])
            tolerance = {"rtol": 0, "atol": 0} if exact else {}
            torch.testing.assert_close(got, wanted, **tolerance)
        outputs = zip(self.before.output_node().args[0], self.module.graph.output_node().args[0], strict=True)
        for old, new in outputs:
            old, new = old.meta["val"], new.meta["val"]
            assert (old.device, old.dtype, old.size(), old.stride()) == (
                new.device,
                new.dtype,
                new.size(),
                new.stride(),
            )


def expect_on_device(rewritten: Rewritten) -> None:
    assert rewritten.crossings() == [] and rewritten.mixed() == [], rewritten.module.graph
