"""Replaces torch._inductor.compile_fx.compile_fx, the entry of Inductor: the first step of a compilation.

Reads the knobs once, registers our code generation, and turns CUDA graphs on where `config.always` asks for it.
"""

from __future__ import annotations

import copy
import functools
import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from pygraph_inductor.codegen import gradients, registration
from pygraph_inductor.replay import native
from pygraph_inductor.reporting.places import place_of
from pygraph_inductor.seams import declines
from pygraph_inductor.seams.compilation import Compilation, entered, from_knobs, going_on
from pygraph_inductor.transform import apply, mirrors
from pygraph_inductor.transform.gradients import GRADIENTS, Layout, layouts_of

_GRAPHS = "triton.cudagraphs"
_FAILED = "a compilation is left to stock PyTorch"


def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    """Our `compile_fx` around the stock one."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_fx(*args: Any, **kwargs: Any) -> Any:
        if entered():  # stock calls itself again after it has applied options
            return original(*args, **kwargs)
        compilation = replace(from_knobs(), declined=_FAILED)
        with declines.harmless(_FAILED, compilation.settings.strict):
            call = signature.bind(*args, **kwargs)
            call.apply_defaults()
            compilation = _prepare(call.arguments, compilation)
            args, kwargs = call.args, call.kwargs
        with going_on(compilation):
            return original(*args, **kwargs)

    return compile_fx


def _prepare(arguments: dict[str, Any], compilation: Compilation) -> Compilation:
    """Change the arguments of `compile_fx` so that the compilation, and its backward later, is ours."""
    model = arguments["model_"]
    options = dict(arguments["config_patches"] or {})
    compilation = _compilation(compilation, model, options)
    if _is_turned_on_by_us(compilation, options, model, arguments["example_inputs_"]):
        arguments["config_patches"] = {**options, _GRAPHS: True}
    if _may_be_recorded(compilation, model, arguments["example_inputs_"]):
        native.begin()
        if GRADIENTS in compilation.rewrites:
            compilation = replace(compilation, layouts=layouts_of(arguments["example_inputs_"]))
    arguments["inner_compile"] = _remembering(arguments["inner_compile"], compilation)
    _register(compilation)
    return compilation


def _compilation(compilation: Compilation, model: Any, options: dict[str, Any]) -> Compilation:
    nodes = model.graph.nodes if isinstance(model, torch.fx.GraphModule) else ()
    annotation = getattr(model, "meta", {}).get("cudagraph_annotation")  # torch._dynamo.override_cudagraphs, 2.12+
    wish = getattr(annotation, "fwd", None)
    forward_off = wish is False
    asked = bool(wish or options.get(_GRAPHS, _stock_option(_GRAPHS)) or compilation.always) and not forward_off
    compilation = replace(
        compilation,
        asked=asked,
        source=place_of(node.meta.get("stack_trace") for node in nodes if node.op == "call_function"),
        forward_off=forward_off,
        backward_off=forward_off or getattr(annotation, "bwd", None) is False,
    )
    reason = declines.of_wrapper(options) if compilation.borrowed else None
    if asked and reason is not None:
        declines.note(reason)
    return replace(compilation, declined=reason)


def _is_turned_on_by_us(compilation: Compilation, options: dict[str, Any], model: Any, inputs: Any) -> bool:
    """Whether `config.always` applies: nobody said yes or no, and a CUDA device takes part."""
    return (
        compilation.always
        and compilation.borrowed
        and compilation.declined is None
        and _GRAPHS not in options
        and not _stock_option(_GRAPHS)
        and _touches_cuda(model, inputs)
    )


def _may_be_recorded(compilation: Compilation, model: Any, inputs: Any) -> bool:
    """Whether graphs are wanted, by us, on a device that has them."""
    ours = compilation.asked and compilation.borrowed and compilation.declined is None
    return ours and (compilation.simulate or _touches_cuda(model, inputs))


def _stock_option(name: str) -> Any:
    from torch._inductor import config as inductor_config

    return functools.reduce(getattr, name.split("."), inductor_config)


def _touches_cuda(model: Any, inputs: Any) -> bool:
    """Whether a CUDA tensor goes into the graph or comes to be in it."""
    values = list(inputs)
    if isinstance(model, torch.fx.GraphModule):
        values += [node.meta.get("val", node.meta.get("example_value")) for node in model.graph.nodes]
        values += [*model.parameters(), *model.buffers()]
    leaves = torch.utils._pytree.tree_leaves(values)
    return any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in leaves)


def _remembering(inner_compile: Callable[..., Any], compilation: Compilation) -> Callable[..., Any]:
    """`inner_compile` with the compilation current: a backward is compiled long after the entry has returned."""

    @functools.wraps(inner_compile)
    def compile_inner(*args: Any, **kwargs: Any) -> Any:
        at_hand = replace(compilation, began_ns=time.perf_counter_ns(), wanted=_wanted(args, kwargs, compilation))
        with going_on(at_hand):
            with declines.harmless("code generation is left to stock PyTorch", compilation.settings.strict):
                _register(compilation)
            if not args or not isinstance(args[0], torch.fx.GraphModule):
                return inner_compile(*args, **kwargs)
            before = _rewrite(args[0], _static_inputs(args, kwargs), at_hand)
            try:
                return inner_compile(*_with_mirrors(args), **_static_with_mirrors(args, kwargs))
            except Exception as error:
                if before is None or compilation.settings.strict:
                    raise
                apply.undo(args[0], before, error)
            return inner_compile(*args, **kwargs)

    return compile_inner


def _wanted(args: tuple[Any, ...], kwargs: dict[str, Any], compilation: Compilation) -> tuple[Layout | None, ...]:
    """What the outputs of a backward should look like."""
    if not any(compilation.layouts) or not kwargs.get("is_backward"):
        return ()
    with declines.harmless("gradients stay as Inductor lays them out", compilation.settings.strict):
        if args and isinstance(args[0], torch.fx.GraphModule):
            return gradients.wanted(args[0].graph, compilation.layouts)
    return ()


def _static_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[int]:
    """Which inputs of the graph may be given mirrors: where the graph can be given more inputs."""
    from torch._subclasses.fake_tensor import FakeTensor

    if len(args) < 2 or not isinstance(args[1], (list, tuple)) or "static_input_idxs" not in kwargs:
        return frozenset()
    static = frozenset(kwargs["static_input_idxs"] or ())
    return frozenset(index for index, value in enumerate(args[1]) if index in static and isinstance(value, FakeTensor))


def _with_mirrors(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a compilation, with an example for each input that rewrites added."""
    more = [node.meta["val"] for node in mirrors.used(args[0].graph)]
    return (args[0], [*args[1], *more], *args[2:]) if more else args


def _static_with_mirrors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Mirrors are static inputs as much as what they mirror."""
    more = range(len(args[1]), len(args[1]) + len(mirrors.used(args[0].graph)))
    return {**kwargs, "static_input_idxs": [*kwargs["static_input_idxs"], *more]} if more else kwargs


def _rewrite(module: torch.fx.GraphModule, static: frozenset[int], compilation: Compilation) -> torch.fx.Graph | None:
    """All that is done to a graph before Inductor sees it. Returns a copy of what it was, if anything was done."""
    before = _transform(module, static, compilation)
    if not compilation.wanted:
        return before
    before = copy.deepcopy(module.graph) if before is None else before
    gradients.ask(module.graph, compilation.wanted)
    return before


def _transform(module: torch.fx.GraphModule, static: frozenset[int], compilation: Compilation) -> torch.fx.Graph | None:
    """Rewrite a graph that is about to be cut into pieces, and only such a graph. Returns a copy of what it was."""
    may_be_cut = _stock_option(_GRAPHS) and _stock_option("graph_partition")
    if not (compilation.rewrites and may_be_cut and "cuda" in registration.registered()):
        return None
    with declines.harmless("a graph is not rewritten", compilation.settings.strict):
        before = copy.deepcopy(module.graph) if apply.concerns(module.graph) else None
        outcomes = apply.apply(module, compilation.rewrites, compilation.settings.strict, static)
        return before if any(one.applied for one in outcomes) else None
    return None


def _register(compilation: Compilation) -> None:
    """Have our code generated for the devices that this compilation may record, and stock's for all others."""
    from pygraph_inductor.seams import install

    devices = set()
    if install.is_applied() and compilation.borrowed and compilation.asked and compilation.declined is None:
        if declines.of_process() is None:
            devices.add("cuda")
        if compilation.simulate:
            devices.add("cpu")
    for device in registration.match(frozenset(devices)):
        declines.note(f"code generation for {device}: another package has registered itself with Inductor")
