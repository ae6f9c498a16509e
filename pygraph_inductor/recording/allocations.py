"""The allocations that generated code makes: watched in a plain run, answered with stand-ins in a capture.

Generated code allocates through a name among its module's globals; its n-th allocation is the same tensor in every
call with the same key. That tells outputs from intermediates, which must never share addresses: the caching allocator
reuses freed blocks during a capture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pygraph_inductor.driver.thread_globals import meaning
from pygraph_inductor.replay.plan import Layout


class AllocationsChanged(RuntimeError):
    """The generated code allocated something else than in the plain run."""


def storage_key(tensor: torch.Tensor) -> int:
    """Identifies the storage for as long as it lives."""
    return tensor.untyped_storage()._cdata


class Watched:
    """What a plain run allocated, in order."""

    def __init__(self) -> None:
        self.layouts: list[Layout] = []
        self._by_storage: dict[int, int] = {}
        self._storages: list[StorageWeakRef] = []  # so that no other storage is given the identity of one that died

    def add(self, tensor: torch.Tensor) -> None:
        self._by_storage[storage_key(tensor)] = len(self.layouts)
        self._storages.append(StorageWeakRef(tensor.untyped_storage()))
        self.layouts.append(Layout.of(tensor))

    def position_of(self, tensor: torch.Tensor) -> int | None:
        """Which allocation is behind a tensor, if one of these."""
        return self._by_storage.get(storage_key(tensor))


@contextlib.contextmanager
def watched(namespace: dict[str, Any], names: Sequence[str]) -> Iterator[Watched]:
    """Note every allocation made through `names` while the context is open."""
    seen = Watched()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(*args: Any) -> Any:
            tensor = original(*args)
            seen.add(tensor)
            return tensor

        return allocate

    with meaning(namespace, {name: make for name in names if name in namespace}):
        yield seen


@contextlib.contextmanager
def answered(
    namespace: dict[str, Any], names: Sequence[str], expected: Sequence[Layout], stand_ins: Mapping[int, torch.Tensor]
) -> Iterator[None]:
    """Give stand-ins for some allocations, memory as usual for the rest.

    Raises `AllocationsChanged` where the sequence is not the `expected` one.
    """
    count = 0

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(*args: Any) -> Any:
            nonlocal count
            position, count = count, count + 1
            size, stride, dtype = args[:3]
            asked = Layout(tuple(size), tuple(stride), dtype)
            if position >= len(expected) or expected[position] != asked:
                raise AllocationsChanged(f"allocation {position} of the generated code is not the same in two calls")
            return stand_ins[position] if position in stand_ins else original(*args)

        return allocate

    with meaning(namespace, {name: make for name in names if name in namespace}):
        yield
    if count != len(expected):
        raise AllocationsChanged(f"the generated code made {count} allocations, {len(expected)} in the call before")
