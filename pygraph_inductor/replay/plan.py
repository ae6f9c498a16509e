"""The plan of one recording: plain data, built once by `recording`, read on every call by `player`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import torch


class Engine(enum.Enum):
    """How a replay tells the graph where a slot is."""

    PATCH = "patch"  # rewrite the words of the consuming nodes
    INDIRECT = "indirect"  # kernels read it from a table, which the first node writes; other consumers are rewritten
    COPY = "copy"  # stage through a buffer with a fixed address: by nodes of the graph that have bindings, else by us
    STATIC = "static"  # patch, for a slot that is not expected to move


@dataclass(frozen=True)
class Layout:
    """Sizes, strides (elements) and dtype of a tensor, without its memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        return Layout(tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype)

    @property
    def span(self) -> int:
        """Bytes from the first to behind the last element; 0 for an empty tensor."""
        if 0 in self.size:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


@dataclass(frozen=True)
class Binding:
    """A word in a node's parameters that holds a slot's address plus `addend` bytes."""

    node: int
    area: int
    offset: int
    addend: int


@dataclass(frozen=True)
class Slot:
    """A tensor whose address may change between calls.

    `source` is the input's position for an input, the allocation's position for an output. Its address modulo
    `alignment` (bytes, a power of two) must be `residue`. `written`: the graph writes to it.
    """

    source: int
    is_output: bool
    layout: Layout
    engine: Engine
    alignment: int
    residue: int
    written: bool
    bindings: tuple[Binding, ...]


@dataclass(frozen=True)
class Allocation:
    """An output buffer made anew for each call, as the generated code makes it, or as the one view of it is that is
    returned (recording/outputs.py). Its slot has the former layout; both span the same bytes.
    """

    layout: Layout
    slot: int | None  # None: empty, nothing to bind
    keep: bool = False  # the same tensor may serve the next call, if nobody else has it by then


@dataclass(frozen=True)
class FromInput:
    """The returned value is an input itself, or a view of it that starts `offset` bytes after it."""

    position: int
    view: Layout | None
    offset: int
    shares_version: bool = False  # as views of the dispatcher do, and those that generated code makes do not


@dataclass(frozen=True)
class FromAllocation:
    """The returned value is an allocation itself, or a view of it that starts `offset` bytes after it."""

    position: int
    view: Layout | None
    offset: int
    shares_version: bool = False


@dataclass(frozen=True)
class FromConstant:
    """The returned value does not depend on the call: None, a number of the key, a tensor owned by the model."""

    value: Any


@dataclass(frozen=True)
class Again:
    """The returned value is the very object returned at an earlier position."""

    position: int


Returned = FromInput | FromAllocation | FromConstant | Again


@dataclass(frozen=True)
class Plan:
    """Everything a replay needs to know."""

    slots: tuple[Slot, ...]
    allocations: tuple[Allocation, ...]
    returned: tuple[Returned, ...]
    returns: type | None  # tuple or list; None: a bare value
    version_bumps: tuple[tuple[int, int], ...] = ()  # (input, by how much one plain call raises its version)
