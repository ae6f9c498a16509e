"""Keeps an integer that a program takes out of a tensor (`.item()`) a 0-d tensor, where only the device uses it.

Taken out, it makes the host wait for the device, cuts the graph, and is a number by which recordings differ. Safe if
every use is an operator on device tensors of a wide type whose result has the same dtype, sizes and strides with a 0-d
int64 tensor in the number's place: then it is the same arithmetic. Sizes, checks, and everything that the host decides
by it need the number, and the cut. Floats are kept on the device by torch itself, in the same operators, next to half
precision, too (tests/codegen/test_python_numbers.py).
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from pygraph_inductor.transform.host_values import device_of
from pygraph_inductor.transform.outcome import Outcome
from pygraph_inductor.transform.same_results import is_integral, name_of

ITEMS = "items"
_ITEM = torch.ops.aten._local_scalar_dense.default
_ELEMENTWISE = frozenset({"add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge"})
# Narrower types would round or wrap the number before they compute with it.
_WIDE = (torch.float32, torch.float64, torch.int64)
# What the host may do with the number before the device gets it, and the operator that does it to a tensor.
_ON_NUMBERS = {
    operator.add: torch.ops.aten.add.Tensor,
    operator.sub: torch.ops.aten.sub.Tensor,
    operator.mul: torch.ops.aten.mul.Tensor,
}


class _Needed(Exception):
    """The host needs the number; the text says what for."""


def has_items(graph: fx.Graph) -> bool:
    """Whether a graph takes numbers out of tensors."""
    return bool(graph.find_nodes(op="call_function", target=_ITEM))


def keep_items(graph: fx.Graph, switches: Collection[str]) -> list[Outcome]:
    """Rewrite `graph` in place."""
    outcomes = []
    for item in graph.find_nodes(op="call_function", target=_ITEM):
        source = item.args[0]
        value = source.meta.get("val") if isinstance(source, fx.Node) else None
        if not isinstance(value, torch.Tensor) or not is_integral(value.dtype) or value.dtype is torch.bool:
            continue
        try:
            _check(item, value)
        except _Needed as reason:
            outcomes.append(Outcome.at(item, ITEMS, False, str(reason)))
        else:
            outcomes.append(Outcome.at(item, ITEMS, True, "a number that only the device uses stays there"))
            _replace(graph, item, _as_number(graph, item))
    return outcomes


def _check(number: fx.Node, source: torch.Tensor) -> None:
    """Raise `_Needed` if a use of `number` is not one of those that can do with a 0-d tensor."""
    for user in number.users:
        if user.target in _ON_NUMBERS:
            if not all(one is number or type(one) is int for one in user.args):
                raise _Needed("the host computes with it and with another number")
            _check(user, source)
        elif not _can_do_with_tensor(user, number, source):
            raise _Needed(f"the host needs the number for {user.target}")


def _can_do_with_tensor(user: fx.Node, number: fx.Node, source: torch.Tensor) -> bool:
    """Whether `user` is an operator on the device, on a tensor and the number, and gives the same with a 0-d tensor."""
    value = user.meta.get("val")
    if name_of(user.target) not in _ELEMENTWISE or len(user.args) != 2 or user.kwargs or user.args[1] is not number:
        return False
    first = user.args[0]
    if not isinstance(value, torch.Tensor) or value.device.type != "cuda" or not isinstance(first, fx.Node):
        return False
    if device_of(first) != value.device or first.meta["val"].dtype not in _WIDE:
        return False
    with first.meta["val"].fake_mode:
        scalar = torch.empty((), dtype=torch.int64, device=source.device)
        result = _of_tensors(user)(first.meta["val"], scalar)
    same = result.dtype == value.dtype and tuple(result.size()) == tuple(value.size())
    return bool(same and result.stride() == value.stride() and result.device == value.device)


def _of_tensors(user: fx.Node) -> Any:
    packet = user.target.overloadpacket  # type: ignore[union-attr]
    return packet.Tensor


def _replace(graph: fx.Graph, number: fx.Node, tensor: fx.Node) -> None:
    """Give all users of the number the tensor; what the host computed from the number is computed from the tensor."""
    for user in list(number.users):
        if user.target in _ON_NUMBERS:
            parts = [tensor if one is number else _whole(graph, user, one, tensor) for one in user.args]
            _replace(graph, user, _node(graph, user, _ON_NUMBERS[user.target], tuple(parts), {}, tensor))  # type: ignore[index]
        else:
            user.target = _of_tensors(user)
            user.args = (user.args[0], tensor)
    graph.erase_node(number)


def _as_number(graph: fx.Graph, item: fx.Node) -> fx.Node:
    """The tensor that the number is taken out of, as 0-d int64: what the number counts as."""
    tensor = item.args[0]
    assert isinstance(tensor, fx.Node)
    if tensor.meta["val"].dim():
        tensor = _node(graph, item, torch.ops.aten.reshape.default, (tensor, []), {}, tensor)
    if tensor.meta["val"].dtype is not torch.int64:
        convert = torch.ops.prims.convert_element_type.default
        tensor = _node(graph, item, convert, (tensor, torch.int64), {}, tensor)
    return tensor


def _whole(graph: fx.Graph, user: fx.Node, value: Any, like: fx.Node) -> fx.Node:
    keywords = {"dtype": torch.int64, "layout": torch.strided, "device": device_of(like), "pin_memory": False}
    return _node(graph, user, torch.ops.aten.full.default, ([], value), keywords, like)


def _node(graph: fx.Graph, before: fx.Node, target: Any, args: Any, kwargs: dict[str, Any], like: fx.Node) -> fx.Node:
    with graph.inserting_before(before):
        node = graph.call_function(target, args, kwargs)
    with like.meta["val"].fake_mode:
        values = fx.node.map_arg(args, lambda one: one.meta["val"])
        node.meta["val"] = target(*values, **kwargs)
    if "stack_trace" in before.meta:
        node.meta["stack_trace"] = before.meta["stack_trace"]
    return node
