"""Constants of a graph on the device: made once, when the graph is compiled, instead of copied in every call.

Dynamo keeps what `torch.tensor([1, 2], device="cuda")` is made of as a CPU constant of the graph, which the generated
code copies to the device, waiting, each time. Nobody can write to such a constant, so its copy never gets stale; it is
freed with the compiled graph, and the bytes that one graph may keep are limited (`config.max_constant_bytes`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

_PREFIX = "_pygraph_constant_"


def real_value(node: fx.Node) -> torch.Tensor | None:
    """The tensor behind a `get_attr`; None if it is no plain tensor with contents."""
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name, None)
    return value if type(value) in (torch.Tensor, torch.nn.Parameter) and not isinstance(value, FakeTensor) else None


def describe(graph: fx.Graph) -> None:
    """Give constants a fake value as other nodes have one."""
    mode = next(
        (node.meta["val"].fake_mode for node in graph.nodes if hasattr(node.meta.get("val"), "fake_mode")), None
    )
    for node in graph.find_nodes(op="get_attr"):
        if mode is not None and "val" not in node.meta and (value := real_value(node)) is not None:
            node.meta["val"] = mode.from_tensor(value, static_shapes=True)


def copy_of(node: fx.Node, device: torch.device) -> fx.Node:
    """A constant with the same contents on `device`, in front of everything. Raises what allocating it raises."""
    value, module = real_value(node), node.graph.owning_module
    assert value is not None and module is not None
    name = _PREFIX + str(node.target).replace(".", "_")
    with unset_fake_temporarily(), torch.no_grad():
        setattr(module, name, place(value.detach(), device))
    with node.graph.inserting_before(next(iter(node.graph.nodes))):
        copy = node.graph.create_node("get_attr", name)
    with node.meta["val"].fake_mode:
        copy.meta["val"] = torch.empty_like(node.meta["val"], device=device)
    return copy


def place(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The copy itself."""
    return value.to(device)


def forget(module: fx.GraphModule) -> None:
    """Drop copies that a rewrite made before it was undone."""
    for name in [name for name in vars(module) if name.startswith(_PREFIX)]:
        delattr(module, name)
