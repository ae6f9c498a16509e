"""Brings what precedes the first graph together again, after Inductor has ordered a function's nodes.

The rewrites put uploads in front (`transform.bring_to_device`). Inductor's pass for the peak of memory may put one, or
what is taken out of its list, next to its first use; and its pass that would undo this does not where the peak rises
by a tenth, which in a small function a mask does. So a graph was cut in two by something that launches nothing.
"""

from __future__ import annotations

from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor import ir

from pygraph_inductor.transform import switches
from pygraph_inductor.transform.operators import UPLOAD


def uploads_first(scheduler: Any) -> None:
    """Between scheduling and code generation: move what only waits for the nodes in front behind those."""
    if not (switches.on() and inductor_config.triton.cudagraphs and inductor_config.graph_partition):
        return
    nodes = list(scheduler.nodes)
    if not any(_is_upload(node.node) for node in nodes):
        return
    front: list[Any] = []
    rest: list[Any] = []
    done: set[str] = set()
    for node in nodes:
        outside = scheduler.should_partition(node) is not None
        # In front already; or nothing that it reads, or that reads what it writes, is left behind.
        own = set(node.get_operation_names())
        if outside and (not rest or (_may_be_early(node) and done.issuperset(set(node.ancestors) - own))):
            front.append(node)
            done |= own
        else:
            rest.append(node)
    if front + rest != nodes:
        scheduler.nodes = front + rest
        scheduler.compute_last_usage()


def _may_be_early(node: Any) -> bool:
    """Uploads; what the CPU computes, but nothing that may draw random numbers; a part of a result that is there."""
    parts = [one.node for one in node.get_nodes()]
    if all(isinstance(part, ir.ComputedBuffer) for part in parts):
        return not node.is_gpu()
    return all(_is_upload(part) or isinstance(part, ir.MultiOutput) for part in parts)


def _is_upload(node: Any) -> bool:
    return isinstance(node, ir.FallbackKernel) and node.op_overload is UPLOAD
