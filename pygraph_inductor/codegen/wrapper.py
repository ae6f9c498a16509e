"""Inductor's Python wrapper with two differences: it leaves partition inputs alone and writes down what it knows.

The last line of a module says which outputs a user sees, and more: `runner.pygraph = {...}`, or `call.pygraph = {...}`
where graph partition is off. It lives in the source, so it survives Inductor's and AOTAutograd's caches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.codegen.wrapper import FreeLine, PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.virtualized import V

from pygraph_inductor.codegen import options
from pygraph_inductor.codegen.concatenations import not_in_pieces
from pygraph_inductor.codegen.control_flow import cut_at_control_flow
from pygraph_inductor.codegen.fewer_pieces import fewest_pieces, hand_on_only_results
from pygraph_inductor.codegen.order import uploads_first
from pygraph_inductor.codegen.visible import visible_count
from pygraph_inductor.partition.cuts import counts, cuts_of
from pygraph_inductor.reporting.places import place_of
from pygraph_inductor.transform.apply import NOTES
from pygraph_inductor.transform.operators import UPLOAD
from pygraph_inductor.transform.outcome import Outcome

_IMPORT_UPLOAD = (
    "from pygraph_inductor.replay.uploads import upload as pygraph_upload  # torch.ops.pygraph_inductor.upload"
)


class PartitionWrapper(SubgraphPythonWrapperCodegen):
    """The code of one partition, or of a subgraph that is none (then it has no partition signature)."""

    def _is_partition_input(self, name: str) -> bool:
        signature = self.partition_signatures
        return options.keep_inputs and signature is not None and name in signature.input_nodes

    def can_reuse(self, input_buffer: Any, output_buffer: Any = None) -> bool:
        """Whether `input_buffer`'s memory may become another buffer; never for an input of the partition."""
        return not self._is_partition_input(input_buffer.get_name()) and super().can_reuse(input_buffer, output_buffer)

    def codegen_free(self, buffer: Any) -> None:
        """Drop a buffer. An input is deleted and nothing more.

        Stock would offer it for reuse, from 2.15 on without asking `can_reuse` (it asks `can_free`).
        """
        name = buffer.get_name()
        if not self._is_partition_input(name) or isinstance(buffer, (ir.InputBuffer, ir.TorchBindObject)):
            super().codegen_free(buffer)
        elif name not in V.graph.removed_buffers and name not in self.freed:
            self.freed.add(name)
            self.writeline(FreeLine(self, buffer))


class Wrapper(PythonWrapperCodegen):
    """The code of a module: its kernels, its partitions and `call`."""

    def __init__(self) -> None:
        super().__init__()
        # Name of each partition function -> the names of its outputs.
        self.partition_outputs: dict[str, list[str]] = {}

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        """Inductor's factory for the wrapper of a module, a partition or a subgraph."""
        if not is_subgraph:
            cut_at_control_flow(V.graph)
            return Wrapper()
        assert subgraph_name is not None and parent_wrapper is not None
        if partition_signatures is not None and isinstance(parent_wrapper, Wrapper):
            parent_wrapper.partition_outputs[subgraph_name] = [
                _name(node) for node in partition_signatures.output_nodes
            ]
        return PartitionWrapper(subgraph_name, parent_wrapper, partition_signatures)

    def push_codegened_graph(self, graph: Any) -> None:
        """Called for a module once its nodes are in order, and before any code is generated for them."""
        if graph is V.graph:
            fewest_pieces(graph.scheduler)
            uploads_first(graph.scheduler)
            not_in_pieces(graph.scheduler)
            hand_on_only_results(graph.scheduler)
        super().push_codegened_graph(graph)

    def generate_fallback_kernel(self, node: Any) -> None:
        """Write the call of an operator. Ours is called directly: the way over the dispatcher takes as long again."""
        if node.op_overload is UPLOAD:
            self.add_import_once(_IMPORT_UPLOAD)
            node.python_kernel_name = "pygraph_upload"
        super().generate_fallback_kernel(node)

    def generate_after_suffix(self, result: Any) -> None:
        """Write what follows the functions: the runner, and what we know about them."""
        super().generate_after_suffix(result)
        owner = "runner" if inductor_config.graph_partition else self.launcher_fn_name
        result.writeline(f"{owner}.pygraph = {self._knowledge()!r}")

    def _knowledge(self) -> dict[str, Any]:
        """Per function: the positions of visible outputs (None: all of them); of all, the effectful operators, the
        inputs that have mirrors, and the names of those that kernels were compiled to find at any address.
        """
        names = [_name(node) for node in V.graph.graph_outputs]
        visible = visible_count(V.graph, len(names))
        saved = set(names[visible:]) - set(names[:visible])
        return {
            "call": {"visible": _positions(names, saved)},
            **{name: {"visible": _positions(outputs, saved)} for name, outputs in self.partition_outputs.items()},
            "effects": sorted(_effectful(V.graph.module)),
            "rewrites": [_line(outcome) for outcome in _outcomes(V.graph.module)],
            "mirrors": _mirrors(V.graph.module),
            "anywhere": sorted(V.graph.unaligned_buffers.intersection(V.graph.graph_inputs)),
            **_pieces(),
        }


def _name(node: Any) -> str:
    """The name of the buffer behind an output; views have the name of what they view, numbers and None have none."""
    return node.maybe_get_name() or "" if hasattr(node, "maybe_get_name") else ""


def _positions(names: list[str], saved: set[str]) -> list[int] | None:
    """The positions whose buffer is not merely saved for the backward; None if that is all of them."""
    positions = [position for position, name in enumerate(names) if not name or name not in saved]
    return None if len(positions) == len(names) else positions


def _outcomes(module: Any) -> tuple[Outcome, ...]:
    notes = module.graph.output_node().meta.get(NOTES)
    return notes.outcomes if notes is not None else ()


def _mirrors(module: Any) -> tuple[str, list[int]] | None:
    """Where mirrors are, and the positions of the inputs that have one as an input of its own, behind all others."""
    notes = module.graph.output_node().meta.get(NOTES)
    return (str(notes.mirrors_on), list(notes.mirrored)) if notes is not None and notes.mirrored else None


def _line(outcome: Outcome) -> str:
    place = place_of([outcome.stack_trace])
    what = outcome.what if outcome.applied else f"not done: {outcome.what}"
    return f"{outcome.rewrite}: {what}" + (f" ({place})" if place else "")


def _pieces() -> dict[str, Any]:
    """Where the graph is cut and why; kernels that can be in graphs, of all. Only for people: never an error."""
    scheduler = V.graph.scheduler
    if not inductor_config.graph_partition or not inductor_config.triton.cudagraphs:
        return {"cuts": [], "kernels": None}
    try:
        cuts = [str(cut) for cut in cuts_of(scheduler.nodes, scheduler.should_partition)]
        return {"cuts": cuts, "kernels": counts(scheduler.nodes, scheduler.should_partition)}
    except Exception as error:
        return {"cuts": [f"not known: {type(error).__name__}: {error}"], "kernels": None}


def _effectful(module: Any) -> set[str]:
    """Operators whose effects happen on the host on every call, as the generated code calls them."""
    wrapped = torch.ops.higher_order.with_effects
    operators = [node.args[1] for node in module.graph.nodes if node.target is wrapped]
    return {
        f"torch.ops.{operator}" if isinstance(operator, torch._ops.OpOverload) else f"torch.ops.higher_order.{operator}"
        for operator in operators
    }
