"""Adapts the order of pieces (`partition/order.py`) to Inductor's scheduler, and what pieces hand on.

Inductor orders nodes for the fewest pieces, too, but takes that order only if it raises the peak of memory by less
than a tenth, which in a small function any tensor does. Here several such orders are weighed, and some bytes are free.
But pieces that depend on different sizes found on the device are not merged: each combination of them would need a
recording of its own.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir, memory
from torch._inductor.scheduler import get_scheduler_node_symbol_uses
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.symbol import SymT, symbol_is_type

from pygraph_inductor.partition import order
from pygraph_inductor.transform import switches

LOGGER = logging.getLogger("pygraph_inductor")
ORDER = "order"
# The peak of memory may rise by this much without regard to what it was.
_FREE_BYTES = 64 << 20
_USUAL_BUDGET = 1.1  # what Inductor allows by itself; from torch 2.13 on it is an option


def fewest_pieces(scheduler: Any) -> None:
    """Between scheduling and code generation: put the nodes into an order with fewer pieces, if memory allows."""
    if ORDER not in switches.on() or not (inductor_config.triton.cudagraphs and inductor_config.graph_partition):
        return
    try:
        better = _better_order(scheduler)
    except Exception as error:
        LOGGER.warning("the pieces of a graph stay in the order of Inductor: %s: %s", type(error).__name__, error)
        return
    if better is not None:
        scheduler.nodes = better
        scheduler.compute_last_usage()


def _better_order(scheduler: Any) -> list[Any] | None:
    nodes = list(scheduler.nodes)
    outside = [scheduler.should_partition(node) is not None for node in nodes]
    if order.pieces(outside) < 2 or any(map(_talks_to_ranks, nodes)):
        return None
    before = _before(scheduler, nodes)
    if before is None or order.pieces(outside) == order.fewest(before, outside):
        return None
    numbers = [_data_dependent(node) for node in nodes]
    allowed = max(order.most_numbers(range(len(nodes)), outside, numbers), 1)
    candidates = [one for one in order.orders(before, outside) if order.most_numbers(one, outside, numbers) <= allowed]
    if not candidates:
        return None
    peak, peak_of = _peaks(scheduler, nodes)
    least, _, found = min((peak_of(one), number, one) for number, one in enumerate(candidates))
    budget = getattr(inductor_config.triton, "cudagraph_partition_memory_budget", _USUAL_BUDGET)
    return [nodes[number] for number in found] if least <= max(peak * budget, peak + _FREE_BYTES) else None


def _before(scheduler: Any, nodes: Sequence[Any]) -> list[list[int]] | None:
    """What must come before each node: what it depends on; of those that write to memory that it touches, and of those
    that touch memory that it writes to, and of what can be told apart by its order, whatever came before.

    None if the nodes are not in the order that this asks for. That writes keep their order is looked at here once more,
    since compiling for the CPU loses dependencies that stand for it when it fuses (torch 2.11).
    """
    number_of = {name: number for number, node in enumerate(nodes) for name in node.get_operation_names()}
    memory_of = _memories(nodes)
    touching: dict[str, list[int]] = {}
    writing: dict[str, list[int]] = {}
    turns: list[int] = []
    before: list[list[int]] = []
    for number, node in enumerate(nodes):
        found = {number_of[scheduler.name_to_buf[one.name].defining_op_name()] for one in node.unmet_dependencies}
        found.discard(number)
        written = {memory_of(name) for buffer in node.get_outputs() for name in buffer.get_mutations()}
        touched = {memory_of(one.name) for one in node.read_writes.reads | node.read_writes.writes} | written
        for where in touched:
            found.update(writing.get(where, ()))
            touching.setdefault(where, []).append(number)
        for where in written:
            found.update(one for one in touching[where] if one != number)
            writing[where], touching[where] = [number], [number]
        if any(map(_keeps_its_turn, node.get_nodes())):
            found.update(turns[-1:])
            turns.append(number)
        if found and max(found) > number:
            return None
        before.append(sorted(found))
    return before


def _memories(nodes: Sequence[Any]) -> Callable[[str], str]:
    """One name for all buffers that are, or may be, the same memory."""
    parent: dict[str, str] = {}

    def memory_of(name: str) -> str:
        while name in parent:
            name = parent[name]
        return name

    for node in nodes:
        for buffer in node.get_outputs():
            for other in (*buffer.get_mutations(), *buffer.get_aliases()):
                one, other = memory_of(buffer.get_name()), memory_of(other)
                if one != other:
                    parent[one] = other
    return memory_of


def _keeps_its_turn(node: Any) -> bool:
    """Whether a node draws random numbers, or may do what shows elsewhere than in its results."""
    part = node.node
    if not isinstance(part, ir.ExternKernel) or isinstance(part, _PURE):
        return False
    operator = getattr(part, "op_overload", None)
    if operator is None:
        return not isinstance(part, (ir.ExternKernelOut, ir.ExternKernelAlloc))  # matrix products and the like
    if not isinstance(operator, torch._ops.OpOverload):
        return True
    known = operator.namespace in ("aten", "prims", "pygraph_inductor")
    return not known or torch.Tag.nondeterministic_seeded in operator.tags


_PURE = tuple(
    getattr(ir, name)
    for name in ("MultiOutput", "DeviceCopy", "DynamicScalar", "AssertScalar", "UserDefinedTritonKernel")
    if hasattr(ir, name)
)
_COLLECTIVES = tuple(getattr(ir, name) for name in ("_CollectiveKernel", "_WaitKernel") if hasattr(ir, name))


def _talks_to_ranks(node: Any) -> bool:
    """All ranks must come to the same order, and what they estimate may differ."""
    return any(
        isinstance(part.node, _COLLECTIVES)
        or getattr(getattr(part.node, "op_overload", None), "namespace", "") in ("c10d", "_c10d_functional", "symm_mem")
        for part in node.get_nodes()
    )


def _data_dependent(node: Any) -> frozenset[Any]:
    """The sizes and numbers found on the device that a node computes with."""
    symbols = {symbol for part in node.get_nodes() for symbol in get_scheduler_node_symbol_uses(part)}
    return frozenset(one for one in symbols if symbol_is_type(one, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)))


def _peaks(scheduler: Any, nodes: Sequence[Any]) -> tuple[int, Callable[[Sequence[int]], int]]:
    """The peak of memory in the order at hand, and in any other, as Inductor estimates it."""
    outputs = OrderedSet(V.graph.get_output_names())
    inputs = OrderedSet(V.graph.graph_inputs.keys())
    peak, freeable = memory.prepare_planning_info(
        list(nodes), scheduler.name_to_buf, scheduler.name_to_fused_node, inputs, outputs
    )

    def peak_of(candidate: Sequence[int]) -> int:
        return memory.estimate_peak_memory([nodes[number] for number in candidate], freeable, outputs)[0]

    return peak, peak_of


def hand_on_only_results(scheduler: Any) -> None:
    """Have pieces return what they make or write for others, and not inputs that the caller still has.

    Inductor lets them return every input that is needed later, since its graphs have them at other addresses.
    """
    if ORDER not in switches.on() or not (inductor_config.triton.cudagraphs and inductor_config.graph_partition):
        return
    scheduler.get_graph_partition_signature = functools.partial(_results_only, scheduler.get_graph_partition_signature)


def _results_only(signatures_of: Callable[..., Any], partitions: Any, skip_cudagraphs: Any) -> list[Any]:
    return [_without_inputs(one) for one in signatures_of(partitions=partitions, skip_cudagraphs=skip_cudagraphs)]


def _without_inputs(signature: Any) -> Any:
    # Only names that the caller deletes when it makes the call are gone after it.
    kept = {name for name, deleted in signature.input_deallocation.items() if not deleted}
    made = [node for node in signature.output_nodes if node.maybe_get_name() not in kept]
    return replace(signature, output_nodes=made)
