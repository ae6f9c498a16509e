"""Looks on while code calls operators: which one made an output, and what there was when it began."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pygraph_inductor.driver.protocol import BlockLog, T
from pygraph_inductor.recording.allocations import storage_key


class _Calls(TorchDispatchMode):
    supports_higher_order_operators = True  # whether one can be captured is not ours to say

    def __init__(self, before: Callable[[Any], T], after: Callable[[T, Any], None]) -> None:
        super().__init__()
        self._before = before
        self._after = after

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen = self._before(func)
        result = func(*args, **(kwargs or {}))
        self._after(seen, result)
        return result


@contextlib.contextmanager
def before_operators_allocate(work: Callable[[], None]) -> Iterator[None]:
    """Call `work` before every operator that may return memory of its own."""
    with _Calls(lambda operator: work() if _may_allocate(operator) else None, lambda seen, result: None):
        yield


def _may_allocate(operator: Any) -> bool:
    """Not what it returns is given to it: most operators in generated code write to `out`."""
    schema = getattr(operator, "_schema", None)
    return schema is None or any(returned.alias_info is None for returned in schema.returns)


@dataclass(frozen=True)
class Began:
    """How much there was when an operator was called: nodes of the graph, and events in the allocator's log."""

    nodes: int
    events: int


class Operators:
    """What the operators of one capture returned. `nodes_so_far` counts the nodes that were captured."""

    def __init__(self, nodes_so_far: Callable[[], int], log: BlockLog) -> None:
        self._nodes_so_far = nodes_so_far
        self._log = log
        self._made: dict[int, Began | None] = {}
        self._storages: list[StorageWeakRef] = []  # so that no other storage is given the identity of one that died

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Open around the function, inside the capture."""
        with _Calls(self._begin, self._note):
            yield

    def _begin(self, operator: Any) -> Began | None:
        return Began(self._nodes_so_far(), self._log.so_far()) if _may_allocate(operator) else None

    def _note(self, began: Began | None, result: Any) -> None:
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and storage_key(value) not in self._made:
                self._storages.append(StorageWeakRef(value.untyped_storage()))
                self._made[storage_key(value)] = began

    def began(self, tensor: torch.Tensor) -> Began | None:
        """When the call began that made the tensor's storage, not one that wrote to it; None if none did."""
        return self._made.get(storage_key(tensor))
