"""Tells Inductor how the gradients that a backward returns are to be laid out (`transform/gradients.py` says which).

Inductor enforces the strides that it notes in the output node before its passes (`bw_outputs_user_visible`). It notes
them behind its own propagation of fake tensors, where they are those of convolutions computed channels-last, and not
those that AOTAutograd traced (`fx_codegen_and_compile`, torch 2.11 to 2.15). So what is wanted instead is put there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import fx

from pygraph_inductor.transform.apply import NOTES, Notes
from pygraph_inductor.transform.gradients import GRADIENTS, Layout, changes, wanted_of
from pygraph_inductor.transform.outcome import Outcome

_WANTED = "pygraph_inductor_gradients"  # in the meta of the output node
_STRIDES = "original_output_strides"  # Inductor's, there
_VISIBLE = "user_visible_output_idxs"  # Inductor's, there: outputs whose strides it enforces


def wanted(graph: fx.Graph, layouts: tuple[Layout | None, ...]) -> tuple[Layout | None, ...]:
    """What the outputs of a backward should look like, by the layouts of the inputs that Inductor's entry was given.
    Nothing if none has a wish.
    """
    found = wanted_of(_inputs_of_outputs(graph), layouts)
    return found if any(found) else ()


def ask(graph: fx.Graph, wanted: tuple[Layout | None, ...]) -> None:
    """Leave what is wanted where `lay_out` finds it: it is called for graphs within this one, too."""
    graph.output_node().meta[_WANTED] = wanted


def lay_out(graph: fx.Graph) -> None:
    """Have the outputs laid out as was asked."""
    node = graph.output_node()
    if not {_WANTED, _STRIDES, _VISIBLE} <= node.meta.keys():
        return
    strides = list(node.meta[_STRIDES])
    changed = changes(_outputs(graph), strides, node.meta[_VISIBLE], node.meta[_WANTED])
    if not changed:
        return
    for position, stride in changed.items():
        strides[position] = stride
    node.meta[_STRIDES] = strides
    notes = node.meta.get(NOTES, Notes((), frozenset()))
    outcome = Outcome(GRADIENTS, True, f"{len(changed)} laid out as their parameters")
    node.meta[NOTES] = replace(notes, outcomes=(*notes.outcomes, outcome))


def _inputs_of_outputs(graph: fx.Graph) -> list[int | None]:
    """Of which input of the forward each output is the gradient. AOTAutograd describes outputs, whatever it did to the
    inputs before (removed duplicates, took subclasses apart, added tokens); only what it did nothing to has a number.
    """
    from torch._functorch._aot_autograd.descriptors import GradAOTOutput, PlainAOTInput

    described = graph.output_node().meta.get("desc")
    if not isinstance(described, (list, tuple)) or len(described) != len(_outputs(graph)):
        return []
    return [
        one.grad_of.idx if isinstance(one, GradAOTOutput) and isinstance(one.grad_of, PlainAOTInput) else None
        for one in described
    ]


def _outputs(graph: fx.Graph) -> Any:
    found = graph.output_node().args[0]
    return found if isinstance(found, (tuple, list)) else [found]
