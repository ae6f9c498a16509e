"""Child graphs inside the capture of the current stream: no stream may be asked to launch a graph there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from pygraph_inductor.driver.libcuda import bindings, checked


def add_child(graph: Any) -> None:
    """Go on with a graph (a `CUgraph`, of which CUDA makes a copy)."""
    cu = bindings()
    stream = torch.cuda.current_stream().cuda_stream
    under_way = checked(cu.cuStreamGetCaptureInfo(stream))
    outer = next(value for value in under_way if isinstance(value, cu.CUgraph))
    before = next(value for value in under_way if isinstance(value, (list, tuple)))
    child = checked(cu.cuGraphAddChildGraphNode(outer, list(before), len(before), graph))
    only = cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    edge = [] if int(cu.CUDA_VERSION) < 13000 else [None]
    checked(cu.cuStreamUpdateCaptureDependencies(stream, [child], *edge, 1, int(only)))


@contextlib.contextmanager
def child_graph() -> Iterator[torch.cuda.Stream]:
    """What is launched on the stream that this gives is in a child graph afterwards."""
    cu = bindings()
    side = torch.cuda.Stream()
    checked(cu.cuStreamBeginCapture(side.cuda_stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    try:
        yield side
    except BaseException:
        cu.cuStreamEndCapture(side.cuda_stream)
        raise
    graph = checked(cu.cuStreamEndCapture(side.cuda_stream))
    add_child(graph)
    checked(cu.cuGraphDestroy(graph))
