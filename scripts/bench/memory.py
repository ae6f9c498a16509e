"""What a variant takes of the GPU's memory over steady iterations, and what for: pools of graphs, saved activations,
gradients.
"""

from __future__ import annotations

import bisect
import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from scripts.bench.measure import Runner
from scripts.bench.registry import Draw
from scripts.bench.results import Memory, MemoryParts
from scripts.bench.variants import begin_iteration

ITERATIONS = 6
Storages = dict[int, int]  # address -> bytes


def memory_of(runner: Runner, draw: Draw) -> Memory:
    """Bytes over a few steady iterations, each with one new set of inputs. The variant must be active."""
    ever = torch.cuda.max_memory_reserved()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(ITERATIONS):
        runner.iterate(runner.program.fresh(draw))
    torch.cuda.synchronize()
    peak_allocated, peak_reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    gc.collect()
    torch.cuda.empty_cache()
    return Memory(
        steady_allocated=torch.cuda.memory_allocated(),
        steady_reserved=torch.cuda.memory_reserved(),
        peak_allocated=peak_allocated,
        peak_reserved=peak_reserved,
        peak_reserved_with_startup=max(ever, peak_reserved),
    )


def parts_of(runner: Runner, inputs: Sequence[Any]) -> MemoryParts:
    """What one more iteration holds, by what it is for. The variant must be active."""
    held = Held(inputs)
    begin_iteration(runner.variant)
    result = runner.program.drive(held.watching(runner.call), inputs)
    gradients = storages(leaf.grad for leaf in held.leaves if leaf.grad is not None)
    pools = Pools(torch.cuda.memory_snapshot())
    del result
    return MemoryParts(
        pools=pools.size,
        activations=sum(held.activations.values()),
        activations_in_pools=pools.bytes_of(held.activations),
        gradients=sum(gradients.values()),
        gradients_in_pools=pools.bytes_of(gradients),
    )


class Held:
    """What autograd keeps between forward and backward: tensors saved for the backward that are the caller's neither
    before (inputs, parameters) nor after (results)."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.activations: Storages = {}
        self.leaves: list[Tensor] = []
        self._callers = storages(tensors(inputs))

    def watching(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, looked at after each of its calls; the call that leaves most is what counts."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            self.look(result)
            return result

        return watched

    def look(self, result: Any) -> None:
        results = tensors(result)
        saved, leaves = saved_by_autograd(results)
        others = self._callers | storages(results) | storages(leaves)
        found = {address: size for address, size in storages(saved).items() if address not in others}
        if sum(found.values()) > sum(self.activations.values()):
            self.activations = found
        known = {id(leaf) for leaf in self.leaves}
        self.leaves += [leaf for leaf in leaves if id(leaf) not in known]


def saved_by_autograd(results: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that the backward of these results has saved, and the leaves that it gives gradients to."""
    saved: list[Tensor] = []
    leaves: list[Tensor] = []
    todo = [tensor.grad_fn for tensor in results if tensor.grad_fn is not None]
    seen = set(todo)
    while todo:
        node: Any = todo.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        # Functions of Python's have all in one attribute, torch's own each in one of its own.
        names = [name for name in dir(node) if name == "saved_tensors" or name.startswith("_saved")]
        saved += [leaf for name in names for leaf in tensors(attribute(node, name))]
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        todo += following
    return saved, leaves


def attribute(node: Any, name: str) -> Any:
    """What a node has saved; nothing where it is gone already, or was written to since."""
    try:
        return getattr(node, name)
    except RuntimeError:
        return None


def tensors(value: Any) -> list[Tensor]:
    """All tensors within a result."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def storages(values: Iterable[Tensor]) -> Storages:
    """Each storage once, however many tensors lie in it."""
    found = (value.untyped_storage() for value in values)
    return {storage.data_ptr(): storage.nbytes() for storage in found}


class Pools:
    """Memory that belongs to graphs, from a snapshot of the allocator's segments."""

    def __init__(self, segments: Iterable[dict[str, Any]]) -> None:
        own = [segment for segment in segments if tuple(segment["segment_pool_id"]) != (0, 0)]
        self._spans = sorted((segment["address"], segment["total_size"]) for segment in own)
        self.size = sum(size for _, size in self._spans)

    def bytes_of(self, found: Storages) -> int:
        """How much of these storages lies in pools."""
        return sum(size for address, size in found.items() if self._has(address))

    def _has(self, address: int) -> bool:
        place = bisect.bisect_right(self._spans, (address, float("inf"))) - 1
        if place < 0:
            return False
        start, size = self._spans[place]
        return start <= address < start + size
