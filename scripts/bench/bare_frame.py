"""A compiled function whose generated code is missing: everything around it is real, and nothing is launched.

What a training step costs the host whoever runs its kernels. Inductor compiles the function up to where it would
generate code, so that Dynamo's guards look at the same modules and parameters, AOTAutograd's wrappers pass on as many
tensors, autograd saves as many, and its engine visits and fills the same gradients. In place of the generated code,
visible outputs and gradients are made (allocated one by one as generated code does, in loops of C), activations that
only the backward sees are the same tensors in every call, but for those that a rule says are made, too, and inputs that
are saved are handed on. A piece may launch something, as generated code does. No element of a result is ever written:
results mean nothing.

With `guards_only` AOTAutograd is missing, too, and what is left is Dynamo's.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch._inductor.compile_fx import compile_fx

from pygraph_inductor.replay.plan import Layout
from pygraph_inductor.seams.describe import kind_of

Function = Callable[..., Any]
# Of a graph, and the places in its results that the user sees: those places of activations that are made in every call.
Anew = Callable[[torch.fx.GraphModule, Collection[int]], Collection[int]]
_each = itertools.starmap  # how outputs are made; another one while they are timed


def allocator(device: str) -> Callable[..., torch.Tensor]:
    """What generated code calls for memory on this kind of device, with size, stride and dtype."""
    found: Callable[..., torch.Tensor] = getattr(torch._C._dynamo.guards, f"_empty_strided_{device}")
    return found


def bare_frame(
    function: Function, anew: Anew = lambda graph, visible: (), pieces: list[Piece] | None = None
) -> Function:
    """`function` compiled without generated code. `pieces` gets what is in its place, as it comes to be compiled."""
    found = [] if pieces is None else pieces

    def without_code(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **facts: Any) -> Any:
        found.append(piece := _piece(graph, anew, facts))
        return piece

    # One function each: Dynamo tells backends apart, so that no two share an entry in its cache.
    def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        # AOTAutograd's cache would answer with the generated code that it has for the same graph.
        with torch._functorch.config.patch(enable_autograd_cache=False):
            return compile_fx(graph, example_inputs, inner_compile=without_code)

    compiled: Function = torch.compile(function, backend=backend)
    return compiled


def guards_only(function: Function) -> Function:
    """`function` compiled so that a call is Dynamo's guards and bytecode, and returns the same tensors every time.

    They are laid out as the function's results are, and leaves where those require gradients, so that a backward goes
    no further. Nothing is written, neither results nor inputs.
    """

    # One function each, here as well.
    def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Function:
        [output] = graph.graph.find_nodes(op="output")
        results = tuple(_leaf(node.meta["example_value"]) for node in output.args[0])
        return lambda *inputs: results

    compiled: Function = torch.compile(function, backend=backend)
    return compiled


@contextlib.contextmanager
def timed_outputs() -> Iterator[list[int]]:
    """Meanwhile, for every piece of generated code that is missing, the nanoseconds in which its results are made."""
    spent: list[int] = []

    def timed(allocate: Callable[..., torch.Tensor], layouts: Iterable[Any]) -> list[torch.Tensor]:
        start = time.perf_counter_ns()
        made = list(itertools.starmap(allocate, layouts))
        spent.append(time.perf_counter_ns() - start)
        return made

    with mock.patch(f"{__name__}._each", timed):
        yield spent


@contextlib.contextmanager
def timed_launches() -> Iterator[list[int]]:
    """Meanwhile, for every piece that launches something, the nanoseconds in which it does."""
    spent: list[int] = []

    def timed(launch: Callable[[], Any]) -> None:
        start = time.perf_counter_ns()
        launch()
        spent.append(time.perf_counter_ns() - start)

    with mock.patch(f"{__name__}._launch", timed):
        yield spent


def _launch(launch: Callable[[], Any]) -> None:
    launch()


def _piece(graph: torch.fx.GraphModule, anew: Anew, facts: dict[str, Any]) -> Piece:
    [output] = graph.graph.find_nodes(op="output")
    numbers = {node: number for number, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    results = list(output.args[0])
    kind = kind_of(facts.get("is_inference", False), facts.get("is_backward", False))
    visible = output.meta.get("user_visible_output_idxs")
    every = visible is None or kind == "backward"
    fresh = set() if every else {*visible, *(anew(graph, visible) if kind == "forward" else ())}
    made: list[torch.Tensor] = []
    constants: list[Any] = []
    sources: list[tuple[str, int]] = []
    for place, result in enumerate(results):
        if result in numbers:
            sources.append(("input", numbers[result]))
        elif isinstance(result, torch.fx.Node) and isinstance(result.meta["val"], torch.Tensor):
            is_made = every or place in fresh
            sources.append(("made", len(made)) if is_made else ("constant", len(constants)))
            (made if is_made else constants).append(result.meta["val"])
        else:
            sources.append(("constant", len(constants)))
            constants.append(result)
    return Piece(kind, len(numbers), made, constants, sources)


class Piece:
    """In place of generated code, and called as that is: with a list of inputs, which it empties.

    `kind` is "forward", "backward" or "inference"; `launch` is called when results are made, once there is one.
    """

    def __init__(
        self,
        kind: str,
        inputs: int,
        made: Sequence[torch.Tensor],
        constants: Sequence[Any],
        sources: Sequence[tuple[str, int]],
    ) -> None:
        """`made` and `constants` as Inductor's graph has them, without memory; `sources` of results, in order."""
        self._boxed_call = True  # of the instance: AOTAutograd's wrappers take over what that has
        self.kind = kind
        self.launch: Callable[[], Any] | None = None
        kinds = {tensor.device.type for tensor in made}
        if len(kinds) > 1:
            raise ValueError(f"results on {', '.join(sorted(kinds))}")
        self._allocate = allocator(kinds.pop()) if kinds else None
        self.layouts = [layout_of(tensor) for tensor in made]
        self._arguments = [(layout.size, layout.stride, layout.dtype) for layout in self.layouts]
        self._constants = list(constants)
        self._are_real = False
        starts = {"input": 0, "constant": inputs, "made": inputs + len(constants)}
        self._order = [starts[kind] + number for kind, number in sources]
        # With one index it would return no tuple.
        self._pick = operator.itemgetter(*self._order) if len(self._order) > 1 else self._pick_few

    def _pick_few(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[number] for number in self._order)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if not self._are_real:
            self._constants = [_real(value) for value in self._constants]
            self._are_real = True
        fresh = _each(self._allocate, self._arguments) if self._allocate is not None else ()
        values = [*inputs, *self._constants, *fresh]
        if self.launch is not None:
            _launch(self.launch)
        inputs.clear()
        return list(self._pick(values))


def layout_of(tensor: torch.Tensor) -> Layout:
    """In numbers, also where the graph has symbols."""
    return Layout(tuple(int(n) for n in tensor.size()), tuple(int(n) for n in tensor.stride()), tensor.dtype)


def _real(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    layout = layout_of(value)
    return torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype, device=value.device)


def _leaf(value: Any) -> Any:
    """Real, also where it is a size, which Dynamo's guards then hold to this number."""
    if isinstance(value, torch.SymInt):
        return int(value)
    if not isinstance(value, torch.Tensor):
        return value
    differentiable = value.dtype.is_floating_point or value.dtype.is_complex
    return _real(value).requires_grad_(value.requires_grad and differentiable)
