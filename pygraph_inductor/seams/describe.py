"""Builds `Facts` about a generated function from what Inductor passes, what it wrote, and what the text says.

The last step at compile time; what comes after knows nothing of Inductor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pygraph_inductor.codegen import generated_code
from pygraph_inductor.codegen.attention_seeds import attention_seeds
from pygraph_inductor.codegen.generated_code import FunctionText
from pygraph_inductor.codegen.twin_kernels import TritonTwins
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.reporting.facts import warn_once
from pygraph_inductor.reporting.places import place_of
from pygraph_inductor.seams import identity
from pygraph_inductor.seams.compilation import Compilation

UNREADABLE = "its generated code cannot be read, so what it writes is not known"


@dataclass(frozen=True)
class Declared:
    """What Inductor says about a function."""

    kind: str
    device: torch.device
    static_inputs: Sequence[int]
    mutated_inputs: Sequence[int]
    stack_traces: Sequence[str | None] = ()
    graph_id: int | None = None
    # The module's text, where the compiled graph is at hand; else it is read from the module's file.
    source_code: str | None = None
    pieces: int = 1  # functions that the graph was cut into
    # Of its inputs, those that generated code takes for aligned, and those that are not the graph's own, of which
    # nobody says so; None where the compiled graph does not tell.
    aligned_inputs: frozenset[int] | None = None
    inner_inputs: frozenset[int] = frozenset()


def kind_of(is_inference: bool, is_backward: bool) -> str:
    """How reports name the part that a graph plays."""
    return "inference" if is_inference else "backward" if is_backward else "forward"


def name_of(kind: str, graph_id: int | None) -> str:
    """ "forward 0/1": kind and compile id, as in torch's own logs."""
    compile_id = torch._guards.CompileContext.current_compile_id()
    if compile_id is not None:
        return f"{kind} {compile_id}"
    return f"{kind} graph {graph_id}" if graph_id is not None else kind


def facts_of(run: Callable[[list[Any]], Any], declared: Declared, compilation: Compilation) -> Facts:
    """Everything that recording needs to know about `run`."""
    namespace = _globals_of(run)
    function = getattr(run, "__name__", "call")
    known = _written_down(namespace)
    source = declared.source_code or _source_of(namespace)
    texts = _texts(source)
    text = texts.get(function)
    effects = _effects(known, text, texts.get("call"))
    visible = known.get(function, {}).get("visible")
    anywhere = _anywhere(known, text)
    partition = function.removeprefix("partition_")
    name = name_of(declared.kind, declared.graph_id)
    return Facts(
        name=f"{name}, partition {partition}" if partition != function else name,
        kind=declared.kind,
        source=place_of(declared.stack_traces) or compilation.source,
        device=declared.device,
        static_inputs=frozenset(declared.static_inputs),
        mutated_inputs=frozenset(declared.mutated_inputs),
        reused_inputs=text.reused if text else frozenset(),
        checked_inputs=_checked_inputs(declared, anywhere),
        anywhere_inputs=_only_for_triton(anywhere, text),
        visible_outputs=None if visible is None else frozenset(visible),
        namespace=namespace,
        triton_kernels=text.kernels if text else frozenset(),
        allocators=tuple(name for name in (text.allocators if text else ()) if name in namespace),
        attention_seeds=attention_seeds(text) if text else (),
        refusal=UNREADABLE if text is None else _refusal(text, effects),
        once_only=bool(effects or (text and text.collectives)),
        capture_sizes=_capture_sizes(),
        skip_dynamic=_graph_option("cudagraph_skip_dynamic_graphs"),
        settings=compilation.settings,
        graph_hash=identity.graph_hash(source, function, declared.kind, sorted(declared.static_inputs)),
        decisions_folder=identity.decisions_folder(),
        compile_ns=_compile_ns(compilation) // max(declared.pieces, 1),
        twins=TritonTwins(namespace, source) if text and source and declared.device.type == "cuda" else None,
    )


def _compile_ns(compilation: Compilation) -> int:
    """What Inductor took for the graph at hand, until now."""
    return time.perf_counter_ns() - compilation.began_ns if compilation.began_ns else 0


def warn_about_collectives(facts: Facts) -> None:
    """One warning for a function that stays plain because it talks to other ranks."""
    if facts.refusal is not None and facts.refusal.startswith(_RANKS):
        warn_once(facts, facts.refusal, "it runs without a graph")


_RANKS = "collectives while a process group of"


def _refusal(text: FunctionText, effects: Sequence[str]) -> str | None:
    if effects:
        return f"{effects[0]} has effects on the host, which a replay would skip"
    if text.collectives:
        ranks = _ranks()
        if ranks > 1:
            return f"{_RANKS} {ranks} ranks is initialised: {_brief(text.collectives)}"
    return None


def _ranks() -> int:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return distributed.get_world_size()


def _brief(operators: Sequence[str]) -> str:
    """ "all_reduce_ and 2 more" instead of full names."""
    names = sorted({name.removeprefix("torch.ops.").split(".")[1] for name in operators})
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _effects(known: dict[str, Any], text: FunctionText | None, whole: FunctionText | None) -> list[str]:
    """The effectful operators that this very function calls, or may call: some have other names in the text."""
    return [
        name
        for name in known.get("effects", ())
        if text is None or whole is None or name in text.calls or name not in whole.calls
    ]


def _globals_of(run: Any) -> dict[str, Any]:
    """The globals of the generated module: `run` is one of its functions, or a bound method of its runner."""
    while not hasattr(run, "__globals__") and (inner := getattr(run, "__func__", getattr(run, "func", None))):
        run = inner
    return getattr(run, "__globals__", {})


def _written_down(namespace: dict[str, Any]) -> dict[str, Any]:
    """What our wrapper wrote into the module; empty for code that stock generated."""
    for owner in (namespace.get("runner"), namespace.get("call")):
        known = getattr(owner, "pygraph", None)
        if isinstance(known, dict):
            return known
    return {}


def _source_of(namespace: dict[str, Any]) -> str | None:
    """The text of the module, from its file; None if it cannot be had."""
    try:
        with open(namespace["__file__"]) as file:
            return file.read()
    except (OSError, KeyError):
        return None


def _texts(source: str | None) -> dict[str, FunctionText]:
    """What the text of the module says about each of its functions; empty if it cannot be read."""
    try:
        return generated_code.read(source) if source is not None else {}
    except SyntaxError:
        return {}


def _checked_inputs(
    declared: Declared, anywhere: frozenset[int]
) -> Callable[[Sequence[Any]], Sequence[int]] | frozenset[int]:
    """Which tensors must be realigned: those that the code was compiled to find aligned.

    The inputs of the first call do not tell: theirs may be aligned by chance, where the code expects any address, or
    not, where it does not. Only what one partition hands another is judged by them, as stock graphs judge everything.

    Static inputs are where they were compiled for, except for what a forward saved: that may be a tensor of its caller,
    and what the forward has realigned for itself is not what it saves.
    """
    if declared.device.type == "cpu":
        return frozenset()
    saved = frozenset(declared.static_inputs) - anywhere if declared.kind == "backward" else frozenset()
    if declared.aligned_inputs is not None and not declared.inner_inputs:
        return declared.aligned_inputs | saved
    from torch._inductor import compile_fx

    static, known, inner = tuple(declared.static_inputs), declared.aligned_inputs, declared.inner_inputs

    def checked(inputs: Sequence[Any]) -> Sequence[int]:
        found = compile_fx.get_input_idxs_to_check(inputs, static)
        return sorted(saved.union(found if known is None else known | inner.intersection(found)))

    return checked


def _anywhere(known: dict[str, Any], text: FunctionText | None) -> frozenset[int]:
    """The inputs that the code expects at any address, as our wrapper wrote down. None of stock's code."""
    names = frozenset(known.get("anywhere", ()))
    return frozenset(position for position, name in enumerate(text.inputs if text else ()) if name in names)


def _only_for_triton(positions: frozenset[int], text: FunctionText | None) -> frozenset[int]:
    """Those that nothing else is given: an operator may launch kernels that have the names of ours by chance, where a
    function that was compiled by itself is in it, and a subgraph has expectations of its own.
    """
    kinds = {"triton", "returned"}
    return frozenset(one for one in positions if text and all(use.kind in kinds for use in text.uses[one]))


def aligned_inputs(graph: Any, number: int) -> tuple[frozenset[int] | None, frozenset[int]]:
    """`Declared.aligned_inputs` and `inner_inputs` for the function that a CompiledFxGraph hands over as that one."""
    checked = getattr(graph, "inputs_to_check", None)
    if checked is None:
        return None, frozenset()
    maps = getattr(graph, "partition_maps", None)
    if not maps:
        return frozenset(checked), frozenset()
    if not 0 <= number < len(maps):
        return None, frozenset()
    mapping = maps[number].input_index_mapping
    inner = frozenset(position for position, of_graph in enumerate(mapping) if of_graph is None)
    return frozenset(position for position, of_graph in enumerate(mapping) if of_graph in checked), inner


def _capture_sizes() -> tuple[Any, ...] | None:
    sizes = _graph_option("cudagraph_capture_sizes")
    return None if sizes is None else tuple(sizes)


def _graph_option(name: str) -> Any:
    from torch._inductor import config as inductor_config

    return getattr(inductor_config.triton, name)
