"""Cuts a graph exactly at its branches and loops, where stock gives the whole function up or hands over bundles.

`torch.cond`, and `switch` of torch 2.14, ask the host which branch to take. Inductor cuts there, and then drops all
graphs of the function, for the sake of its trees (lowering.cond, torch 2.11 to 2.15), which we do not have. And the
tensors that a branch or a loop returns came to the next piece in one list, which no graph can be given: they are taken
out before.
"""

from __future__ import annotations

from typing import Any

from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor import ir

from pygraph_inductor.transform import switches
from pygraph_inductor.transform.operators import UPLOAD

CONTROL_FLOW = "control_flow"
_REASONS = ("control flow operator: torch.cond", "control flow operator: torch.switch")
_BRANCHING = tuple(
    getattr(ir, name) for name in ("Conditional", "Switch", "WhileLoop") if hasattr(ir, name)
)  # Conditional became Switch in torch 2.14


def cut_at_control_flow(graph: Any) -> None:
    """Between lowering and scheduling of `graph` (a GraphLowering)."""
    if CONTROL_FLOW not in switches.on():
        return
    if not (inductor_config.triton.cudagraphs and inductor_config.graph_partition):
        return
    branching = {id(operation) for operation in graph.operations if isinstance(operation, _BRANCHING)}
    if not branching:
        return
    for operation in graph.operations:
        if isinstance(operation, ir.MultiOutput) and any(id(one) in branching for one in operation.inputs):
            operation.fx_node = _not_to_be_captured(operation.fx_node)
    reason = graph.disable_cudagraphs_reason
    if reason is not None and reason.startswith(_REASONS) and not _has_pools_of_the_user(graph):
        graph.disable_cudagraphs_reason = None


def _not_to_be_captured(node: fx.Node | None) -> fx.Node:
    """A node that Inductor's rule for cuts (utils.is_cudagraph_unsafe_op) takes for one to be left outside."""
    outside = fx.Graph().call_function(UPLOAD)
    if node is not None:
        outside.meta.update(node.meta)
    return outside


def _has_pools_of_the_user(graph: Any) -> bool:
    """The one other reason that a reason about branches may have hidden (graph.run_node, from torch 2.14 on)."""
    pool_of = getattr(graph, "_get_node_mempool", None)
    return pool_of is not None and any(pool_of(node) is not None for node in graph.module.graph.nodes)
