"""Gradients in the layout of the parameters that they belong to: what is wanted, and of which outputs it can be asked.

Autograd takes a gradient over only if its strides are the parameter's; otherwise it copies it, by a kernel of its own
outside of any graph. Where Inductor computes convolutions channels-last, it returns their gradients so, too. Asked for
the other layout, it writes the gradient that way in the first place (`codegen/gradients.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

GRADIENTS = "gradients"


class Layout(NamedTuple):
    """Sizes and strides of a tensor without gaps and overlaps."""

    size: tuple[int, ...]
    stride: tuple[int, ...]


def layouts_of(inputs: Sequence[Any]) -> tuple[Layout | None, ...]:
    """What the gradient of each input should look like; None where autograd does not accumulate one into the input.

    Nothing at all of inputs that come in containers: whoever takes those apart counts them differently.
    """
    if any(isinstance(value, (list, tuple, dict)) for value in inputs):
        return ()
    return tuple(_layout_of(value) for value in inputs)


def _layout_of(value: Any) -> Layout | None:
    if not isinstance(value, torch.Tensor) or not (value.requires_grad and value.is_leaf):
        return None
    if value.layout != torch.strided or not _are_known((*value.size(), *value.stride())):
        return None
    layout = Layout(tuple(value.size()), tuple(value.stride()))
    return layout if _is_dense(layout) else None


def _are_known(numbers: Iterable[Any]) -> bool:
    return all(type(number) is int for number in numbers)


def _is_dense(layout: Layout) -> bool:
    step = 1
    for stride, size in sorted(zip(layout.stride, layout.size, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return step > 0


def wanted_of(inputs_of_outputs: Sequence[int | None], layouts: Sequence[Layout | None]) -> tuple[Layout | None, ...]:
    """What each output of a backward should look like, by the input of the forward that it is the gradient of."""
    count = len(layouts)
    return tuple(layouts[one] if one is not None and one < count else None for one in inputs_of_outputs)


def changes(
    outputs: Sequence[Any], strides: Sequence[Any], visible: Iterable[int], wanted: Sequence[Layout | None]
) -> dict[int, tuple[int, ...]]:
    """The strides that outputs are to have instead of `strides`, by position."""
    if not len(outputs) == len(strides) == len(wanted):
        return {}
    return {
        position: layout.stride
        for position in visible
        if position < len(outputs)
        and (layout := wanted[position]) is not None
        and _differs(strides[position], layout)
        and _may_have(outputs[position], layout)
    }


def _differs(strides: Any, layout: Layout) -> bool:
    """Whether autograd would copy: strides of dimensions of size 1 are nothing to it."""
    if strides is None or len(strides) != len(layout.size) or not _are_known(strides):
        return False
    return any(size != 1 and have != want for size, have, want in zip(layout.size, strides, layout.stride, strict=True))


def _may_have(output: Any, layout: Layout) -> bool:
    """Whether `output` is computed for this place alone: with a reader besides it, which may go by its strides
    (`as_strided`), or as a view or an input, which share memory with others, it stays as it is.
    """
    if not isinstance(output, fx.Node) or output.op != "call_function":
        return False
    value = output.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value._is_view():
        return False
    [output_node, *others] = output.users
    once = not others and list(_mentioned(output_node)).count(output) == 1
    return once and _are_known(value.size()) and tuple(value.size()) == layout.size


def _mentioned(node: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), found.append)
    return found
