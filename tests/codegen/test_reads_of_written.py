"""The rewrite that keeps reads apart from writes, on graphs made by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch._subclasses.fake_tensor import FakeTensorMode

from pygraph_inductor.transform.reads_of_written import keep_apart

clone = torch.ops.aten.clone.default


@torch.library.custom_op("pygraph_tests_transform::move", mutates_args=("target",))
def move(source: list[torch.Tensor], target: torch.Tensor) -> None:
    target.copy_(source[0])


OPERATOR = torch.ops.pygraph_tests_transform.move.default


def by_bases(graph: fx.Graph, read: Any, written: fx.Node) -> fx.Node:
    named = {"source": read, "_target_base_index": 0, "_all_bases": [written]}
    return graph.call_function(auto_functionalized_v2, (OPERATOR,), named)


def by_schema(graph: fx.Graph, read: Any, written: fx.Node) -> fx.Node:
    return graph.call_function(auto_functionalized, (OPERATOR,), {"source": read, "target": written})


def by_kernel(graph: fx.Graph, read: Any, written: fx.Node) -> fx.Node:
    arguments = {"source": read, "target": written}
    return graph.call_function(
        triton_kernel_wrapper_functional, (), {"kwargs": arguments, "tensors_to_clone": ["target"], "kernel_idx": 0}
    )


def read_by(node: fx.Node) -> Any:
    return node.kwargs["kwargs"]["source"] if "kwargs" in node.kwargs else node.kwargs["source"]


def graph_of(count: int) -> tuple[fx.Graph, list[fx.Node]]:
    graph, mode = fx.Graph(), FakeTensorMode()
    nodes = [graph.placeholder(f"x{number}") for number in range(count)]
    with mode:
        for node in nodes:
            node.meta["val"] = torch.empty(4, 4)
    return graph, nodes


WAYS = pytest.mark.parametrize("operator", [by_bases, by_schema, by_kernel])


@WAYS
def test_tensor_that_is_read_and_written_is_read_from_a_copy(operator):
    graph, [x] = graph_of(1)
    node = operator(graph, x, x)
    keep_apart(graph)
    graph.lint()
    copy = read_by(node)
    assert copy.target is clone and copy.args == (x,)
    assert copy.meta["val"].untyped_storage()._cdata != x.meta["val"].untyped_storage()._cdata


@WAYS
def test_view_of_what_is_written_is_read_from_a_copy(operator):
    graph, [x] = graph_of(1)
    view = graph.call_function(torch.ops.aten.view.default, (x, [16]))
    view.meta["val"] = x.meta["val"].view(16)
    node = operator(graph, view, x)
    keep_apart(graph)
    assert read_by(node).target is clone and read_by(node).meta["val"].shape == (16,)


@WAYS
def test_list_is_copied_only_where_it_has_to_be(operator):
    graph, [x, y] = graph_of(2)
    node = operator(graph, [y, x], x)
    keep_apart(graph)
    first, second = read_by(node)
    assert first is y and second.target is clone


@WAYS
def test_other_tensors_are_left_alone(operator):
    graph, [x, y] = graph_of(2)
    node = operator(graph, y, x)
    keep_apart(graph)
    assert read_by(node) is y and len(graph.nodes) == 3
