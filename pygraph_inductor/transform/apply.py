"""Runs the rewrites that keep a function in one graph, before Inductor sees it. Whatever fails is undone.

What became of them is written into the graph's output node, where the wrapper finds it (codegen/wrapper.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pygraph_inductor.transform import constants, mirrors
from pygraph_inductor.transform.bring_to_device import REWRITES, bring_to_device
from pygraph_inductor.transform.host_values import device_of, devices_of
from pygraph_inductor.transform.items import ITEMS, has_items, keep_items
from pygraph_inductor.transform.outcome import Outcome

NOTES = "pygraph_inductor"  # in the meta of the output node


@dataclass(frozen=True)
class Notes:
    """What the rewrites leave for later: their outcomes, which outputs were on the CPU, and which inputs have mirrors:
    inputs of their own, behind all others.
    """

    outcomes: tuple[Outcome, ...]
    host_outputs: frozenset[int]
    mirrored: tuple[int, ...] = ()
    mirrors_on: torch.device | None = None


# Each with the switches that turn it on.
_STEPS: tuple[tuple[Callable[[fx.Graph, Collection[str]], list[Outcome]], tuple[str, ...]], ...] = (
    (keep_items, (ITEMS,)),  # first: a number out of a CPU tensor becomes a CPU tensor to bring to the device
    (bring_to_device, REWRITES),
)
ALL = frozenset(name for _, names in _STEPS for name in names)


def apply(
    module: fx.GraphModule, switches: Collection[str], strict: bool = False, static: Collection[int] = ()
) -> tuple[Outcome, ...]:
    """Rewrite the graph of `module` in place; only graphs that a rewrite concerns. `static`: the positions of
    parameters and buffers among its inputs. It may have more inputs afterwards (`mirrors.used`).
    """
    if not concerns(module.graph):
        return ()
    mirrors.mark(module.graph, static)
    host_outputs = frozenset(position for position, value in enumerate(_outputs(module.graph)) if _is_on_cpu(value))
    outcomes: list[Outcome] = []
    for step, names in _STEPS:
        on = [name for name in names if name in switches]
        if on:
            outcomes += _undone_on_failure(module, step, on, strict)
    device, _ = devices_of(module.graph)
    notes = Notes(tuple(outcomes), host_outputs, mirrors.mirrored(module.graph), device)
    module.graph.output_node().meta[NOTES] = notes
    module.recompile()
    return tuple(outcomes)


def concerns(graph: fx.Graph) -> bool:
    """Whether there is anything to look at: one CUDA device, and tensors or numbers on the host."""
    constants.describe(graph)
    device, on_host = devices_of(graph)
    return device is not None and (on_host or has_items(graph))


def _undone_on_failure(
    module: fx.GraphModule, step: Callable[..., list[Outcome]], on: list[str], strict: bool
) -> list[Outcome]:
    before = copy.deepcopy(module.graph)
    try:
        outcomes = step(module.graph, on)
        module.graph.lint()
        return outcomes
    except Exception as error:
        module.graph = before
        constants.forget(module)
        if strict:
            raise
        return [Outcome(", ".join(on), False, f"undone: {type(error).__name__}: {_first_line(error)}")]


def undo(module: fx.GraphModule, before: fx.Graph, error: Exception) -> None:
    """Put the graph back that `module` had before `apply`: the compiler could not do with what it was given."""
    notes = module.graph.output_node().meta.get(NOTES)
    outcomes = notes.outcomes if notes is not None else ()
    module.graph = before
    constants.forget(module)
    what = f"undone: {type(error).__name__}: {_first_line(error)}"
    undone = tuple(Outcome(one.rewrite, False, what, one.stack_trace) for one in outcomes if one.applied)
    before.output_node().meta[NOTES] = Notes(undone, frozenset())


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def put_outputs_back(graph: fx.Graph) -> None:
    """Copy outputs that Inductor's own passes moved to the device back to the CPU, where the program has them.

    Its pass for constructors (post_grad.ConstructorMoverPass, torch 2.11 to 2.15) does not spare outputs.
    """
    notes = graph.output_node().meta.get(NOTES)
    if notes is None:
        return
    output = graph.output_node()
    values = list(_outputs(graph))
    for position in notes.host_outputs:
        value = values[position]
        if isinstance(value, fx.Node) and not _is_on_cpu(value) and device_of(value) is not None:
            with graph.inserting_before(output):
                back = graph.call_function(torch.ops.prims.device_put.default, (value, torch.device("cpu")))
            with value.meta["val"].fake_mode:
                back.meta["val"] = torch.ops.prims.device_put.default(value.meta["val"], torch.device("cpu"))
            values[position] = back
    if values != list(_outputs(graph)):
        output.args = (tuple(values),)


def _outputs(graph: fx.Graph) -> Any:
    found = graph.output_node().args[0]
    return found if isinstance(found, (tuple, list)) else [found]


def _is_on_cpu(value: Any) -> bool:
    return isinstance(value, fx.Node) and device_of(value) == torch.device("cpu")
