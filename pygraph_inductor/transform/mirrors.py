"""Gives a graph the device copies of CPU parameters and buffers as inputs of their own, behind the others.

`replay/mirrors.py` keeps the copies and fills them in. As inputs they are memory that generated code neither reuses nor
writes to: Inductor writes in place only to inputs that the graph copies back to, and plans memory around all others.
What remains is that nobody else gets hold of them, so a copy is an input only where all that could see its memory is
operators of PyTorch itself that declare no writes, and no output.
"""

from __future__ import annotations

import operator
from collections.abc import Collection

import torch
from torch import fx

from pygraph_inductor.transform.same_results import makes_new, name_of

MIRRORS = "mirrors"
# In the meta of placeholders: of a parameter or buffer its position, of a mirror the position of what it mirrors.
_STATIC, _OF = "pygraph_static", "pygraph_mirror_of"


def mark(graph: fx.Graph, static: Collection[int]) -> None:
    """Note which inputs are parameters and buffers: what is not expected to change between calls."""
    for position, node in enumerate(graph.find_nodes(op="placeholder")):
        if position in static:
            node.meta[_STATIC] = position


def can_be_mirrored(node: fx.Node) -> bool:
    """Whether `node` is a dense CPU tensor of the module, of fixed size, that the graph does not write to."""
    value = node.meta.get("val")
    return (
        _STATIC in node.meta
        and isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and all(type(size) is int for size in (*value.size(), *value.stride()))
        and value.numel() > 0
        and not (value.is_complex() or value.is_quantized or value.is_neg())
        and torch.empty_like(value, device="meta").stride() == value.stride()
        and all(_only_reads(user) for user in node.users)
    )


def stays_inside(start: fx.Node, is_copy: bool) -> bool:
    """Whether only operators that write nothing and keep nothing see the memory of a mirror that `start` is given.

    `is_copy`: `start` is a copy to the device, in whose place the mirror comes.
    """
    if not is_copy and not _only_reads(start):
        return False
    todo, seen = [start], {start}
    if not is_copy and makes_new(start):
        return True
    while todo:
        for user in todo.pop().users:
            if user.op == "output" or not _only_reads(user):
                return False
            if user not in seen and not makes_new(user):
                seen.add(user)
                todo.append(user)
    return True


def _only_reads(user: fx.Node) -> bool:
    """Whether it is an operator of PyTorch itself that writes to nothing, or the end of the graph."""
    if user.op == "output" or user.target is operator.getitem:
        return True
    return bool(name_of(user.target)) and not user.target._schema.is_mutable  # type: ignore[union-attr]


def add(graph: fx.Graph, node: fx.Node, device: torch.device) -> fx.Node:
    """A new input for the mirror of `node`."""
    last = graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(last):
        mirror = graph.placeholder(f"pygraph_mirror_{node.meta[_STATIC]}")
    with node.meta["val"].fake_mode:
        mirror.meta["val"] = torch.empty_like(node.meta["val"], device=device, requires_grad=False)
    mirror.meta[_OF] = node.meta[_STATIC]
    return mirror


def used(graph: fx.Graph) -> list[fx.Node]:
    """The inputs that are mirrors, in order, behind all others. Takes those away that nothing came to use."""
    added = [node for node in graph.find_nodes(op="placeholder") if _OF in node.meta]
    for node in added:
        if not node.users:
            graph.erase_node(node)
    return [node for node in added if node.users]


def mirrored(graph: fx.Graph) -> tuple[int, ...]:
    """The positions of the inputs that they are mirrors of."""
    return tuple(node.meta[_OF] for node in used(graph))
