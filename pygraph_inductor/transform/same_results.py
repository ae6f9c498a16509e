"""Which operators give the same on the device as on the host: always, within rounding, or not for sure.

The safety condition of every rewrite that moves a computation. What is not listed is not moved.
"""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch import fx


class Same(enum.IntEnum):
    """How well results agree between host and device."""

    EXACT = 0  # bit for bit
    ROUNDED = 1  # float results may differ in the last places, as two orders of adding up do
    UNKNOWN = 2  # or: may raise, or has effects


_VIEWS = frozenset(
    [
        "alias",
        "as_strided_copy",
        "cat",
        "clone",
        "detach",
        "expand",
        "flip",
        "permute",
        "reshape",
        "select",
        "slice",
        "squeeze",
        "squeeze_copy",
        "stack",
        "t",
        "transpose",
        "unsqueeze",
        "view",
        "_unsafe_view",
        "repeat",
        "rev",
        "tril",
        "triu",
        "broadcast_in_dim",
        "lift_fresh_copy",
    ]
)
_CONSTRUCTORS = frozenset(["full", "zeros", "ones", "scalar_tensor", "iota", "arange"])
_COMPARISONS = frozenset(
    [
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_not",
        "logical_xor",
        "any",
        "all",
        "isnan",
        "isinf",
    ]
)
_BITS = frozenset(["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"])
_SELECTIONS = frozenset(["where", "masked_fill", "neg", "abs"])
# Exact for integers, rounded for floats. No division of integers: it raises on the host and does not on the device.
_ARITHMETIC = frozenset(
    [
        "add",
        "sub",
        "mul",
        "rsub",
        "sum",
        "cumsum",
        "minimum",
        "maximum",
        "clamp",
        "clamp_min",
        "clamp_max",
        "amax",
        "amin",
        "square",
    ]
)
_FLOATS = frozenset(
    [
        "div",
        "reciprocal",
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "tanh",
        "sigmoid",
        "relu",
        "pow",
        "mean",
        "erf",
        "silu",
        "cumprod",
        "prod",
        "lerp",
    ]
)
_WIDE = (torch.float32, torch.float64)
_PRODUCTS = frozenset(["mm", "addmm", "bmm", "baddbmm", "convolution", "embedding", "index", "gather"])
_NEW = _COMPARISONS | _BITS | _ARITHMETIC | _FLOATS | _PRODUCTS | {"where"}


def is_integral(dtype: torch.dtype) -> bool:
    """Integers and booleans."""
    return not dtype.is_floating_point and not dtype.is_complex


def name_of(target: Any) -> str:
    """ "add" of aten.add.Tensor; empty for what is no operator of PyTorch itself."""
    if isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims"):
        return target._schema.name.partition("::")[2]
    return ""


def makes_new(node: fx.Node) -> bool:
    """Whether the result is surely in memory of its own, whatever the compiler makes of it."""
    return name_of(node.target) in _NEW


def is_constructor(node: fx.Node) -> bool:
    """Whether a node makes a tensor out of numbers, the same on every device."""
    value = node.meta.get("val")
    if (
        name_of(node.target) not in _CONSTRUCTORS
        or not isinstance(value, torch.Tensor)
        or node.kwargs.get("pin_memory")
    ):
        return False
    return name_of(node.target) != "arange" or is_integral(value.dtype)


def conversion(source: torch.dtype, to: torch.dtype) -> Same:
    """How well converting a tensor to another dtype agrees."""
    if source == to:
        return Same.EXACT
    if source.is_complex or to.is_complex:
        return Same.UNKNOWN
    if to is torch.bool or is_integral(to):
        # A float beyond the range of the integer is undefined, and defined differently.
        return Same.EXACT if to is torch.bool or is_integral(source) else Same.UNKNOWN
    # To half precision, compiled code on the device may keep more places than the type has.
    return Same.EXACT if to in _WIDE else Same.UNKNOWN


def agreement(node: fx.Node, rounded_inputs: bool) -> Same:
    """How well `node`, an operator on CPU tensors, would agree, given whether its inputs are only rounded."""
    name, value = name_of(node.target), node.meta.get("val")
    if not name or not isinstance(value, torch.Tensor) or node.target._schema.is_mutable:  # type: ignore[union-attr]
        return Same.UNKNOWN
    if is_constructor(node):
        return Same.EXACT
    inputs = [one.meta["val"] for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
    found = _by_name(name, node, value, inputs)
    if rounded_inputs and found is not Same.UNKNOWN:
        # A number that is off by a rounding must not decide a comparison, or become an integer.
        found = Same.ROUNDED if value.dtype in _WIDE and name not in _COMPARISONS else Same.UNKNOWN
    return found


def _by_name(name: str, node: fx.Node, value: torch.Tensor, inputs: list[torch.Tensor]) -> Same:
    if not inputs or any(one.is_complex() for one in (value, *inputs)):
        return Same.UNKNOWN
    if name in ("convert_element_type", "_to_copy"):
        return conversion(inputs[0].dtype, value.dtype)
    if name in _VIEWS or name in _COMPARISONS:
        return Same.EXACT
    integral = all(is_integral(one.dtype) for one in (value, *inputs))
    if name in _BITS:
        return Same.EXACT if integral else Same.UNKNOWN
    if name in _SELECTIONS:
        return Same.EXACT
    if name in _ARITHMETIC and integral:
        return Same.EXACT
    if (name in _ARITHMETIC or name in _FLOATS) and value.dtype in _WIDE:
        return Same.ROUNDED if all(one.dtype in _WIDE or is_integral(one.dtype) for one in inputs) else Same.UNKNOWN
    return Same.UNKNOWN
