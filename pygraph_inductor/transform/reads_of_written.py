"""Keeps what an operator reads apart from what it writes, where the graph gives it one tensor for both.

A rewrite of the FX graph, run by `codegen.graph_pass` before Inductor decides which operators write in place. In the
graph an operator reads its arguments as they were; done in place, it would read what it has just written. Programs say
`op(x.clone(), x)` to rule that out, and Inductor removes the clone as a no-op (seen in torch 2.11 and 2.14).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2, get_mutable_args
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch._subclasses.fake_tensor import FakeTensor

Arguments = dict[str, Any]


def keep_apart(graph: fx.Graph) -> None:
    """Give operators that write a copy of what they read, where both are one tensor's memory."""
    for target, split in _SPLIT.items():
        for node in graph.find_nodes(op="call_function", target=target):
            written, read, put = split(node)
            memories = {memory for one in _nodes(written) if (memory := _memory(one)) is not None}
            for name, argument in read.items():
                replaced = fx.node.map_arg(argument, functools.partial(_apart, graph, node, memories))
                if replaced is not argument:
                    put(name, replaced)


def _apart(graph: fx.Graph, user: fx.Node, written: set[Any], argument: fx.Node) -> fx.Node:
    """A copy of `argument` for `user`, if its memory is among what is written; otherwise the argument."""
    memory = _memory(argument)
    if memory is None or memory not in written:
        return argument
    value = argument.meta["val"]
    with graph.inserting_before(user), value.fake_mode:
        copy = graph.call_function(torch.ops.aten.clone.default, (argument,))
        copy.meta.update(argument.meta)
        copy.meta["val"] = value.clone()
    return copy


def _memory(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, FakeTensor) else None


def _nodes(arguments: Any) -> Iterator[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(arguments, found.append)
    return iter(found)


# What a node writes, what it reads (by name), and how one of the latter is replaced.
_Parts = tuple[Any, Arguments, Callable[[str, Any], None]]


def _by_bases(node: fx.Node) -> _Parts:
    read = {name: value for name, value in node.kwargs.items() if not name.startswith("_")}
    return node.kwargs["_all_bases"], read, node.update_kwarg


def _by_schema(node: fx.Node) -> _Parts:
    names, _ = get_mutable_args(node.args[0])  # type: ignore[arg-type]
    read = {name: value for name, value in node.kwargs.items() if name not in names}
    return [node.kwargs[name] for name in names], read, node.update_kwarg


def _by_kernel(node: fx.Node) -> _Parts:
    arguments: Arguments = node.kwargs["kwargs"]  # type: ignore[assignment]
    names: Any = node.kwargs["tensors_to_clone"]
    read = {name: value for name, value in arguments.items() if name not in names}

    def put(name: str, value: Any) -> None:
        node.update_kwarg("kwargs", {**node.kwargs["kwargs"], name: value})  # type: ignore[dict-item]

    return [arguments[name] for name in names], read, put


_SPLIT: dict[Any, Callable[[fx.Node], _Parts]] = {
    auto_functionalized_v2: _by_bases,
    auto_functionalized: _by_schema,
    triton_kernel_wrapper_functional: _by_kernel,
}
