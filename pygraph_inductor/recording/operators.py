"""Looks on while code calls operators: which one made an output, and where in the graph it began."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pygraph_inductor.recording.allocations import storage_key


class _Calls(TorchDispatchMode):
    supports_higher_order_operators = True  # whether one can be captured is not ours to say

    def __init__(self, before: Callable[[], None], after: Callable[[Any], None]) -> None:
        super().__init__()
        self._before = before
        self._after = after

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._before()
        result = func(*args, **(kwargs or {}))
        self._after(result)
        return result


@contextlib.contextmanager
def before_each_operator(work: Callable[[], None]) -> Iterator[None]:
    """Call `work` before every operator that code calls."""
    with _Calls(work, lambda result: None):
        yield


class Operators:
    """What the operators of one capture returned. `nodes_so_far` counts the nodes that were captured."""

    def __init__(self, nodes_so_far: Callable[[], int]) -> None:
        self._nodes_so_far = nodes_so_far
        self._began = 0
        self._first_node: dict[int, int] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Open around the function, inside the capture."""
        with _Calls(self._begin, self._note):
            yield

    def _begin(self) -> None:
        self._began = self._nodes_so_far()

    def _note(self, result: Any) -> None:
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                # The last call counts: an identity that came again belongs to the storage that is alive.
                self._first_node[storage_key(value)] = self._began

    def first_node(self, tensor: torch.Tensor) -> int | None:
        """The first node of the call that made the tensor's storage; None if no operator did."""
        return self._first_node.get(storage_key(tensor))
