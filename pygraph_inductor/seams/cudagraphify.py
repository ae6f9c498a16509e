"""Replaces torch._inductor.compile_fx.cudagraphify: hands a compiled function to recording instead of the trees.

Called at compile time, once per partition or whole graph, by `CompiledFxGraph.post_compile`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.reporting.facts import FunctionFacts, register, warn_once
from pygraph_inductor.seams import declines, describe, visit
from pygraph_inductor.seams.compilation import Compilation, current


def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    """Our `cudagraphify` around the stock one."""

    @functools.wraps(original)
    def cudagraphify(model: Callable[..., Any], static_input_idxs: Sequence[int] = (), **kwargs: Any) -> Any:
        compilation = current()
        visit.count_function()
        if not compilation.borrowed or compilation.declined is not None:
            return original(model, static_input_idxs, **kwargs)
        if reason := declines.of_process():
            declines.note(reason)
            return original(model, static_input_idxs, **kwargs)
        declared = _declared(static_input_idxs, kwargs)
        if kwargs.get("kernel_free_cudagraph"):
            return _without_kernels(model, declared, compilation)
        try:
            return _recorded(model, describe.facts_of(model, declared, compilation))
        except Exception as error:
            if compilation.settings.strict:
                raise
            return _plain(model, declared, compilation, error)

    return cudagraphify


def _declared(static_input_idxs: Sequence[int], kwargs: dict[str, Any]) -> describe.Declared:
    graph = visit.graph()
    aligned, inner = describe.aligned_inputs(graph, visit.functions() - 1)
    return describe.Declared(
        kind=describe.kind_of(kwargs["is_inference"], kwargs["is_backward"]),
        device=torch.device("cuda", kwargs["device_index"]),
        static_inputs=tuple(static_input_idxs),
        mutated_inputs=tuple(kwargs.get("mutated_input_idxs", ())),
        stack_traces=tuple(kwargs.get("stack_traces") or ()),
        graph_id=graph.fx_kwargs.get("graph_id") if graph is not None else None,
        source_code=getattr(graph, "source_code", None),
        pieces=len(getattr(graph, "partition_maps", None) or ()),
        aligned_inputs=aligned,
        inner_inputs=inner,
    )


def _recorded(model: Callable[..., Any], facts: Facts) -> Any:
    from pygraph_inductor.driver.devices import driver_for
    from pygraph_inductor.recording.function import RecordedFunction

    describe.warn_about_collectives(facts)
    return RecordedFunction(model, facts, driver_for(facts.device)).entry()


def _without_kernels(model: Callable[..., Any], declared: describe.Declared, compilation: Compilation) -> Any:
    """A function that launches nothing (from torch 2.14 on Inductor says so) is best called as it is."""
    _report(declared, compilation, "it has no kernels")
    return model


def _plain(model: Callable[..., Any], declared: describe.Declared, compilation: Compilation, error: Exception) -> Any:
    """Our own failure must not be the user's: run without a graph, and with all inputs aligned."""
    from torch._inductor.utils import align_inputs_from_check_idxs
    from torch.utils._ordered_set import OrderedSet

    reason = f"{type(error).__name__}: {error}"
    facts = _report(declared, compilation, reason)
    knob = "pygraph_inductor.config.strict = True raises instead"
    warn_once(facts, reason, "it runs without a graph", knob)
    aligned: Callable[..., Any] | None = None

    def run(inputs: list[Any]) -> Any:
        nonlocal aligned
        if aligned is None:
            of_device = [isinstance(one, torch.Tensor) and one.device.type == declared.device.type for one in inputs]
            checked = [position for position, ours in enumerate(of_device) if ours]
            aligned = align_inputs_from_check_idxs(model, checked, OrderedSet(declared.mutated_inputs))
        return aligned(inputs)

    return run


def _report(declared: describe.Declared, compilation: Compilation, reason: str) -> FunctionFacts:
    name = describe.name_of(declared.kind, declared.graph_id)
    source = describe.place_of(declared.stack_traces) or compilation.source
    return register(FunctionFacts(name, declared.kind, source, str(declared.device), reasons=[reason]))
