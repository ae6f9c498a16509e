"""Replaces torch._inductor.output_code.CompiledFxGraph.post_compile, which finishes a graph, cached or just compiled.

On CPU, where stock never gets as far as `cudagraphify`, it hands the graph to the simulated driver. On CUDA it
reports the graphs that stock drops without a word.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

import torch

from pygraph_inductor.codegen.attention_seeds import attention_seeds
from pygraph_inductor.codegen.generated_code import read
from pygraph_inductor.recording.plain import seeds_on_host
from pygraph_inductor.replay.mirrors import following
from pygraph_inductor.reporting.facts import FunctionFacts, GraphFacts, register, register_graph
from pygraph_inductor.seams import declines, describe, visit
from pygraph_inductor.seams.compilation import Compilation, current


def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    """Our `post_compile` around the stock one."""

    @functools.wraps(original)
    def post_compile(self: Any, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        compilation = current()
        if not compilation.borrowed or compilation.declined is not None:
            original(self, example_inputs, constants, graph_kwargs)
            return _give_mirrors(self, compilation)
        on_at_entry = bool(graph_kwargs.get("cudagraphs"))
        is_backward = bool(graph_kwargs.get("is_backward"))
        asked = _asked(compilation, is_backward)
        simulated = asked and compilation.simulate and _is_cpu_only(self)
        strict = compilation.settings.strict
        if simulated:
            with declines.harmless("a CPU graph is not simulated", strict):
                _simulate(self, compilation)
        with visit.of(self) as visited:
            original(self, example_inputs, constants, graph_kwargs)
        _give_mirrors(self, compilation)
        if asked and not simulated:
            with declines.harmless("a graph is missing from the report", strict):
                _report_pieces(self, compilation, visited.functions)
        if is_backward and not simulated and not visited.functions and _follows_graphs(compilation):
            _give_seeds_on_host(self)
        if asked and not simulated and not visited.functions:
            with declines.harmless("a graph is missing from the report", strict):
                _report_dropped(self, compilation, on_at_entry)
        return None

    return post_compile


def _give_mirrors(graph: Any, compilation: Compilation) -> None:
    """Fill in the inputs that the rewrites of this graph added."""
    known = _written_down(getattr(graph, "source_code", None) or "").get("mirrors")
    if known:
        device, positions = torch.device(known[0]), known[1]
        graph.current_callable = following(
            graph.current_callable, positions, device, compilation.settings.max_mirror_bytes
        )


def _asked(compilation: Compilation, is_backward: bool) -> bool:
    """Whether graphs were asked for. Stock's own flag is off for CPU graphs, so this looks at what was asked."""
    from torch._inductor import config as inductor_config

    if compilation.backward_off if is_backward else compilation.forward_off:
        return False
    return compilation.always or inductor_config.triton.cudagraphs


def _follows_graphs(compilation: Compilation) -> bool:
    """Whether the forward of this backward may have graphs, also where the backward was told to have none."""
    only_backward_off = compilation.backward_off and not compilation.forward_off
    return only_backward_off or _asked(compilation, is_backward=False)


def _give_seeds_on_host(graph: Any) -> None:
    """A backward without a graph follows a forward that may have one (codegen/attention_seeds.py)."""
    text = read(graph.source_code).get("call") if graph.source_code else None
    seeds = attention_seeds(text) if text is not None else ()
    if not seeds or _is_cpu_only(graph):
        return
    run = graph.current_callable

    def run_with_seeds(inputs: list[Any]) -> Any:
        seeds_on_host(inputs, seeds)
        return run(inputs)

    graph.current_callable = run_with_seeds


def _is_cpu_only(graph: Any) -> bool:
    return set(graph.device_types) <= {"cpu", "meta"}


def _simulate(graph: Any, compilation: Compilation) -> None:
    from pygraph_inductor.driver.devices import driver_for
    from pygraph_inductor.recording.function import RecordedFunction

    kwargs = graph.fx_kwargs
    declared = describe.Declared(
        kind=describe.kind_of(kwargs["is_inference"], kwargs["is_backward"]),
        device=torch.device("cpu"),
        static_inputs=tuple(kwargs["static_input_idxs"] or ()),
        mutated_inputs=tuple(graph.mutated_input_idxs),
        graph_id=kwargs.get("graph_id"),
        source_code=graph.source_code,
    )
    facts = describe.facts_of(graph.current_callable, declared, compilation)
    describe.warn_about_collectives(facts)
    recorded = RecordedFunction(graph.current_callable, facts, driver_for(facts.device))
    graph.current_callable = recorded.entry()


def _report_pieces(graph: Any, compilation: Compilation, pieces: int) -> None:
    """What the generated module says about rewrites and cuts; it survives caches."""
    known = _written_down(graph.source_code or "")
    if "cuts" not in known:
        return
    kwargs = graph.fx_kwargs
    kind = describe.kind_of(kwargs["is_inference"], kwargs["is_backward"])
    name = describe.name_of(kind, kwargs.get("graph_id"))
    cuts = list(known["cuts"])
    if graph.disabled_cudagraphs_reason:
        cuts.append(f"all of it: {str(graph.disabled_cudagraphs_reason).strip().splitlines()[0]}")
    register_graph(GraphFacts(name, compilation.source, pieces, known["kernels"], list(known["rewrites"]), cuts))


def _written_down(source_code: str) -> dict[str, Any]:
    """What our wrapper wrote at the end of a module's text; empty for code that stock generated."""
    for line in reversed(source_code.splitlines()):
        owner, found, value = line.partition(".pygraph = ")
        if found and owner in ("runner", "call"):
            return dict(ast.literal_eval(value))
    return {}


def _report_dropped(graph: Any, compilation: Compilation, on_at_entry: bool) -> None:
    if _has_customized_wrapper():
        declines.note(declines.CUSTOMIZED_WRAPPERS)
        reason = declines.CUSTOMIZED_WRAPPERS
    else:
        reason = _why_dropped(graph, on_at_entry)
    if _is_cpu_only(graph):
        declines.note_cpu_graph()
    kwargs = graph.fx_kwargs
    kind = describe.kind_of(kwargs["is_inference"], kwargs["is_backward"])
    device = ", ".join(sorted(graph.device_types)) or "none"
    name = describe.name_of(kind, kwargs.get("graph_id"))
    register(FunctionFacts(name, kind, compilation.source, device, reasons=[reason]))


def _has_customized_wrapper() -> bool:
    from torch._inductor import config as inductor_config
    from torch._inductor.utils import _unstable_customized_partition_wrapper

    return bool(inductor_config.graph_partition and _unstable_customized_partition_wrapper.wrapper)


def _why_dropped(graph: Any, on_at_entry: bool) -> str:
    """Why stock did not ask for a graph: in its own words where it has any."""
    if _is_cpu_only(graph):
        return "it runs on the CPU"
    if graph.disabled_cudagraphs_reason:
        return str(graph.disabled_cudagraphs_reason)
    info = graph.cudagraph_info
    if info is not None and info.cudagraph_fail_reasons:
        return ", ".join(info.cudagraph_fail_reasons)
    if not on_at_entry:
        return "Inductor turned graphs off for it, as it did for its forward"
    if not graph.partition_maps:
        return "nothing in it can be captured"
    return "Inductor turned graphs off for it"
