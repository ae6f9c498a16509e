"""Child graphs inside the capture of the current stream: no stream may be asked to launch a graph there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from pygraph_inductor.driver.libcuda import bindings, checked


def add_child(graph: Any) -> None:
    """Go on with a graph (a `CUgraph`, of which CUDA makes a copy)."""
    outer, before = under_way()
    go_on_after(checked(bindings().cuGraphAddChildGraphNode(outer, before, len(before), graph)))


def under_way() -> tuple[Any, list[Any]]:
    """The graph that the current stream is captured into, and the nodes that its next one comes after."""
    cu = bindings()
    found = checked(cu.cuStreamGetCaptureInfo(torch.cuda.current_stream().cuda_stream))
    graph = next(value for value in found if isinstance(value, cu.CUgraph))
    return graph, list(next(value for value in found if isinstance(value, (list, tuple))))


def go_on_after(node: Any) -> None:
    """What the current stream is given next comes after this node."""
    cu = bindings()
    stream = torch.cuda.current_stream().cuda_stream
    only = cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    checked(cu.cuStreamUpdateCaptureDependencies(stream, [node], *no_edges(), 1, int(only)))


def no_edges() -> list[None]:
    """The argument for edges that CUDA 13 has behind the one for nodes."""
    return [] if int(bindings().CUDA_VERSION) < 13000 else [None]


def another_stream() -> torch.cuda.Stream:
    """Not the current one: torch has a few dozen streams, and gives them out again and again."""
    current = torch.cuda.current_stream()
    return next(stream for stream in iter(torch.cuda.Stream, None) if stream != current)


@contextlib.contextmanager
def child_graph() -> Iterator[torch.cuda.Stream]:
    """What is launched on the stream that this gives is in a child graph afterwards."""
    cu = bindings()
    side = another_stream()
    checked(cu.cuStreamBeginCapture(side.cuda_stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    try:
        yield side
    except BaseException:
        cu.cuStreamEndCapture(side.cuda_stream)
        raise
    graph = checked(cu.cuStreamEndCapture(side.cuda_stream))
    add_child(graph)
    checked(cu.cuGraphDestroy(graph))
