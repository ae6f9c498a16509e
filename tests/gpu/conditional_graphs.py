"""Conditional nodes, inside the capture of the current stream and elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pygraph_inductor.driver.libcuda import bindings, checked
from tests.gpu.child_graphs import another_stream, go_on_after, no_edges, under_way


def add_conditional(
    graph: Any, kind: str = "IF", bodies: int = 1, value: int = 1, after: Sequence[Any] = ()
) -> tuple[Any, list[Any]]:
    """A conditional node whose condition has this value in every launch; and its bodies, which are empty."""
    cu = bindings()
    context = checked(cu.cuCtxGetCurrent())
    params = cu.CUgraphNodeParams()
    params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    assign = int(cu.CU_GRAPH_COND_ASSIGN_DEFAULT)
    params.conditional.handle = checked(cu.cuGraphConditionalHandleCreate(graph, context, value, assign))
    params.conditional.type = getattr(cu.CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{kind}")
    params.conditional.size = bodies
    params.conditional.ctx = context
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
def conditional_body(value: int = 1) -> Iterator[torch.cuda.Stream]:
    """What is launched on the stream that this gives is in the body of a conditional node afterwards, and is executed
    if `value` is not 0.
    """
    outer, before = under_way()
    node, (body,) = add_conditional(outer, value=value, after=before)
    with captured_into(body) as side:
        yield side
    go_on_after(node)
