"""Conditional nodes, inside the capture of the current stream and elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pygraph_inductor.driver.libcuda import bindings, checked
from tests.gpu.child_graphs import another_stream, go_on_after, no_edges, under_way


def new_condition(graph: Any, value: int) -> Any:
    """The handle of a condition that has this value in every launch, unless a kernel in front of its node sets it."""
    cu = bindings()
    context = checked(cu.cuCtxGetCurrent())
    return checked(cu.cuGraphConditionalHandleCreate(graph, context, value, int(cu.CU_GRAPH_COND_ASSIGN_DEFAULT)))


def add_conditional(
    graph: Any, kind: str = "IF", bodies: int = 1, condition: Any = None, after: Sequence[Any] = ()
) -> tuple[Any, list[Any]]:
    """A conditional node, whose condition always holds where none is given; and its bodies, which are empty."""
    cu = bindings()
    params = cu.CUgraphNodeParams()
    params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = new_condition(graph, 1) if condition is None else condition
    params.conditional.type = getattr(cu.CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{kind}")
    params.conditional.size = bodies
    params.conditional.ctx = checked(cu.cuCtxGetCurrent())
    node = checked(cu.cuGraphAddNode(graph, list(after) or None, *no_edges(), len(after), params))
    return node, [cu.CUgraph(int(body)) for body in params.conditional.phGraph_out]


@contextlib.contextmanager
def captured_into(graph: Any) -> Iterator[torch.cuda.Stream]:
    """What is launched on the stream that this gives is in the graph afterwards."""
    cu = bindings()
    side = another_stream()
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    checked(cu.cuStreamBeginCaptureToGraph(side.cuda_stream, graph, None, None, 0, mode))
    try:
        yield side
    except BaseException:
        cu.cuStreamEndCapture(side.cuda_stream)
        raise
    checked(cu.cuStreamEndCapture(side.cuda_stream))


@contextlib.contextmanager
def body_under(condition: Any) -> Iterator[torch.cuda.Stream]:
    """What is launched on the stream that this gives is in the body of a conditional node afterwards, which comes next
    in the capture of the current stream.
    """
    outer, before = under_way()
    node, (body,) = add_conditional(outer, condition=condition, after=before)
    with captured_into(body) as side:
        yield side
    go_on_after(node)


@contextlib.contextmanager
def conditional_body(value: int = 1) -> Iterator[torch.cuda.Stream]:
    """Such a body, which is executed in every replay, or in none if `value` is 0."""
    with body_under(new_condition(under_way()[0], value)) as side:
        yield side
