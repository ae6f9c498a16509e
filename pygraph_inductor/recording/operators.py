"""Looks on while code calls operators: which one made an output, and where in the graph it began."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pygraph_inductor.recording.allocations import storage_key


class _Calls(TorchDispatchMode):
    supports_higher_order_operators = True  # whether one can be captured is not ours to say

    def __init__(self, before: Callable[[Any], None], after: Callable[[Any], None]) -> None:
        super().__init__()
        self._before = before
        self._after = after

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._before(func)
        result = func(*args, **(kwargs or {}))
        self._after(result)
        return result


@contextlib.contextmanager
def before_operators_allocate(work: Callable[[], None]) -> Iterator[None]:
    """Call `work` before every operator that may return memory of its own."""
    with _Calls(lambda operator: work() if _may_allocate(operator) else None, lambda result: None):
        yield


def _may_allocate(operator: Any) -> bool:
    """Not what it returns is given to it: most operators in generated code write to `out`."""
    schema = getattr(operator, "_schema", None)
    return schema is None or any(returned.alias_info is None for returned in schema.returns)


class Operators:
    """What the operators of one capture returned. `nodes_so_far` counts the nodes that were captured."""

    def __init__(self, nodes_so_far: Callable[[], int]) -> None:
        self._nodes_so_far = nodes_so_far
        self._began = 0
        self._first_node: dict[int, int] = {}
        self._storages: list[StorageWeakRef] = []  # so that no other storage is given the identity of one that died

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Open around the function, inside the capture."""
        with _Calls(self._begin, self._note):
            yield

    def _begin(self, operator: Any) -> None:
        self._began = self._nodes_so_far()

    def _note(self, result: Any) -> None:
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and storage_key(value) not in self._first_node:
                self._storages.append(StorageWeakRef(value.untyped_storage()))
                self._first_node[storage_key(value)] = self._began

    def first_node(self, tensor: torch.Tensor) -> int | None:
        """The first node of the call that made the tensor's storage, not of one that wrote to it; None if none did."""
        return self._first_node.get(storage_key(tensor))
