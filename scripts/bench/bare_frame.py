"""A compiled function whose generated code is missing: everything around it is real, and nothing is launched.

What a training step costs the host whoever runs its kernels. Inductor compiles the function up to where it would
generate code, so that Dynamo's guards look at the same modules and parameters, AOTAutograd's wrappers pass on as many
tensors, autograd saves as many, and its engine visits and fills the same gradients. In place of the generated code,
visible outputs and gradients are made (allocated one by one as generated code does, in loops of C), activations that
only the backward sees are the same tensors in every call, and inputs that are saved are handed on. No element is ever
written: results mean nothing.

With `guards_only` AOTAutograd is missing, too, and what is left is Dynamo's.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch._inductor.compile_fx import compile_fx

Function = Callable[..., Any]
_each = itertools.starmap  # how outputs are made; another one while they are timed


def allocator(device: str) -> Callable[..., torch.Tensor]:
    """What generated code calls for memory on this kind of device, with size, stride and dtype."""
    found: Callable[..., torch.Tensor] = getattr(torch._C._dynamo.guards, f"_empty_strided_{device}")
    return found


def bare_frame(function: Function) -> Function:
    """`function` compiled without generated code."""
    compiled: Function = torch.compile(function, backend=_backend)
    return compiled


def guards_only(function: Function) -> Function:
    """`function` compiled so that a call is Dynamo's guards and bytecode, and returns the same tensors every time.

    They are laid out as the function's results are, and leaves where those require gradients, so that a backward goes
    no further. Nothing is written, neither results nor inputs.
    """

    # One function each: Dynamo tells backends apart, so that no two share an entry in its cache.
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


def _backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    # AOTAutograd's cache would answer with the generated code that it has for the same graph.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        return compile_fx(graph, example_inputs, inner_compile=_without_code)


def _without_code(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **facts: Any) -> Any:
    [output] = graph.graph.find_nodes(op="output")
    numbers = {node: number for number, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    results = list(output.args[0])
    visible = output.meta.get("user_visible_output_idxs")
    every = visible is None or facts.get("is_backward", False)
    made, constants, sources = [], [], []
    for place, result in enumerate(results):
        if result in numbers:
            sources.append(("input", numbers[result]))
        elif isinstance(result, torch.fx.Node) and isinstance(result.meta["val"], torch.Tensor):
            fresh = every or place in visible
            sources.append(("made", len(made)) if fresh else ("constant", len(constants)))
            (made if fresh else constants).append(result.meta["val"])
        else:
            sources.append(("constant", len(constants)))
            constants.append(result)
    return _Maker(len(numbers), made, constants, sources)


class _Maker:
    """Called as generated code is: with a list of inputs, which it empties."""

    def __init__(
        self, inputs: int, made: Sequence[torch.Tensor], constants: Sequence[Any], sources: Sequence[tuple[str, int]]
    ) -> None:
        """`made` and `constants` as Inductor's graph has them, without memory; `sources` of results, in order."""
        self._boxed_call = True  # of the instance: AOTAutograd's wrappers take over what that has
        kinds = {tensor.device.type for tensor in made}
        if len(kinds) > 1:
            raise ValueError(f"results on {', '.join(sorted(kinds))}")
        self._allocate = allocator(kinds.pop()) if kinds else None
        self._layouts = [(*_sizes(tensor), tensor.dtype) for tensor in made]
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
        fresh = _each(self._allocate, self._layouts) if self._allocate is not None else ()
        values = [*inputs, *self._constants, *fresh]
        inputs.clear()
        return list(self._pick(values))


def _sizes(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(int(n) for n in tensor.size()), tuple(int(n) for n in tensor.stride())


def _real(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(*_sizes(value), dtype=value.dtype, device=value.device)


def _leaf(value: Any) -> Any:
    """Real, also where it is a size, which Dynamo's guards then hold to this number."""
    if isinstance(value, torch.SymInt):
        return int(value)
    if not isinstance(value, torch.Tensor):
        return value
    differentiable = value.dtype.is_floating_point or value.dtype.is_complex
    return _real(value).requires_grad_(value.requires_grad and differentiable)
