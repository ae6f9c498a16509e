"""Where each returned value comes from: an input, a new allocation, the model itself, or an earlier position.

Read off what the function returned under capture, where inputs and outputs are stand-ins with storages of their own.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from pygraph_inductor.recording.allocations import storage_key
from pygraph_inductor.recording.capture import Captured, Work
from pygraph_inductor.recording.trial import constants_of, listed
from pygraph_inductor.replay.plan import Again, FromAllocation, FromConstant, FromInput, Layout, Returned

_CONSTANTS = (int, float, bool, str, type(None), torch.dtype, torch.device)


class CannotReturn(RuntimeError):
    """A returned value that a replay could not make again."""


def returned_values(work: Work, captured: Captured) -> tuple[Returned, ...]:
    """One entry per returned value. Raises `CannotReturn`."""
    values = listed(captured.result)
    if len(values) != len(work.trial.returned):
        raise CannotReturn(f"it returned {len(values)} values under capture, {len(work.trial.returned)} before")
    sources = _Sources(work, captured)
    entries: list[Returned] = []
    for position, value in enumerate(values):
        earlier = next((other for other in range(position) if _same_object(values[other], value)), None)
        entries.append(Again(earlier) if earlier is not None else sources.entry(position, value))
    # What is the caller's own (tensors of the host) must not be counted up, not even to see who counts along.
    ours = [None if one is given else one for one, given in zip(captured.arguments, work.inputs, strict=True)]
    return with_versions(entries, values, ours)


def made_as_returned(
    returned: Sequence[Returned], layouts: Sequence[Layout]
) -> tuple[tuple[Returned, ...], tuple[Layout, ...]]:
    """What is returned, and how allocations are laid out, with fewer views.

    An allocation that only one returned value shows, as a view of all its memory, is made as this view is: the same
    tensor over the same bytes for one tensor less, and it may serve again like any other. Generated code flattens most
    of what it saves for a backward, and gives most gradients of a layer the parameter's shape, by such views.
    """
    shown = collections.Counter(entry.position for entry in returned if isinstance(entry, FromAllocation))
    entries, made = list(returned), list(layouts)
    for place, entry in enumerate(returned):
        if not isinstance(entry, FromAllocation) or entry.view is None or entry.offset or shown[entry.position] > 1:
            continue
        base = layouts[entry.position]
        if entry.view.dtype == base.dtype and entry.view.span == base.span:
            entries[place], made[entry.position] = FromAllocation(entry.position, None, 0), entry.view
    return tuple(entries), tuple(made)


def with_versions(entries: Sequence[Returned], values: Sequence[Any], arguments: Sequence[Any]) -> tuple[Returned, ...]:
    """The entries, saying which views share a version counter with what they are views of. Raises `CannotReturn`.

    `arguments` are the inputs under capture; None for the caller's own tensors.
    Views that generated code makes have counters of their own; those that operators make share one (of other dtypes, of
    complex numbers). By it autograd notices that a tensor it has saved was written to through another one.
    """
    result = list(entries)
    shown: dict[tuple[type, int], dict[int, FromInput | FromAllocation]] = {}
    for place, entry in enumerate(entries):
        if isinstance(entry, (FromInput, FromAllocation)):
            shown.setdefault((type(entry), entry.position), {})[place] = entry
    for (kind, source), places in shown.items():
        views = {place: entry for place, entry in places.items() if entry.view is not None}
        if kind is FromInput and arguments[source] is None:
            if views:
                raise CannotReturn(f"output {min(views)} is a view of a tensor on the host")
            continue
        bases = [arguments[source]] if kind is FromInput else [values[place] for place in places if place not in views]
        groups = _by_version([*bases, *(values[place] for place in views)])
        if len(groups) > 1 or (groups and bases and groups[0][0] is not bases[0]):
            raise CannotReturn(f"output {min(places)} shares its version with some views of its memory, not with all")
        for place, view in views.items():
            if any(values[place] is tensor for group in groups for tensor in group):
                result[place] = replace(view, shares_version=True)
    return tuple(result)


def _by_version(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Those that share version counters, in groups of two or more."""
    left = [tensor for tensor in tensors if not tensor.is_inference()]
    groups = []
    while len(left) > 1:
        before = [tensor._version for tensor in left]
        torch.autograd.graph.increment_version(left[0])
        moved = [tensor._version != version for tensor, version in zip(left, before, strict=True)]
        group = [tensor for tensor, one in zip(left, moved, strict=True) if one]
        left = [tensor for tensor, one in zip(left, moved, strict=True) if not one]
        if len(group) > 1:
            groups.append(group)
    return groups


def _same_object(one: Any, other: Any) -> bool:
    return one is other and isinstance(one, torch.Tensor)


class _Sources:
    def __init__(self, work: Work, captured: Captured) -> None:
        self._trial = work.trial
        self._visible = work.facts.visible_outputs
        self._constants = constants_of(work.facts)
        self._namespace = work.facts.namespace
        self._inputs: dict[int, tuple[int, torch.Tensor]] = {}
        self._buffers: dict[int, tuple[int, torch.Tensor]] = {}
        self._foreign = {
            position: number
            for number, buffer in enumerate(work.buffers)
            if buffer.foreign
            for position in buffer.foreign.positions
        }
        self._whole: set[int] = set()  # the foreign buffers that an output is as a whole
        self._buffer_layouts = [buffer.layout for buffer in work.buffers]
        for position, value in enumerate(captured.arguments):
            if isinstance(value, torch.Tensor):
                self._inputs[storage_key(value)] = (position, value)
        for place, tensor in zip(work.places, captured.tensors, strict=True):
            if place.is_output:
                self._buffers[storage_key(tensor)] = (place.source, tensor)
        for number, tensor in captured.empties.items():
            self._buffers[storage_key(tensor)] = (number, tensor)

    def entry(self, position: int, value: Any) -> Returned:
        if not isinstance(value, torch.Tensor):
            return self._constant(position, value)
        if value.is_conj() or value.is_neg():
            raise CannotReturn(f"output {position} is lazily conjugated or negated")
        self._check_device(position, value)
        key = storage_key(value)
        if position in self._foreign:
            number = self._foreign[position]
            # Two positions are two objects (`Again` aside), so only one of them can be the buffer itself.
            whole = self._buffer_layouts[number] == Layout.of(value) and number not in self._whole
            whole = whole and not value._is_view()
            if whole:
                self._whole.add(number)
            return FromAllocation(number, None if whole else Layout.of(value), _start(value))
        if key in self._buffers:
            number, base = self._buffers[key]
            return FromAllocation(number, *_view_of(base, value))
        if key in self._inputs:
            source, base = self._inputs[key]
            return FromInput(source, *_view_of(base, value))
        if key in self._constants:
            if not any(value is constant for constant in self._namespace.values()):
                # Every plain call makes a new object, which autograd may give a history of its own.
                raise CannotReturn(f"output {position} is a view of a tensor that the model owns")
            return FromConstant(value)
        raise CannotReturn(f"output {position} lives in memory of the graph")

    def _check_device(self, position: int, value: torch.Tensor) -> None:
        """Attention has its random seed on the host, but on the device under capture: only its backward may see it."""
        before = self._trial.returned[position]
        visible = self._visible is None or position in self._visible
        if isinstance(before, torch.Tensor) and before.device != value.device and visible:
            raise CannotReturn(f"output {position} is on {before.device}, but on {value.device} under capture")

    def _constant(self, position: int, value: Any) -> Returned:
        if not isinstance(value, _CONSTANTS) or value != self._trial.returned[position]:
            raise CannotReturn(f"output {position} is a {type(value).__name__} that may change from call to call")
        return FromConstant(value)


def _view_of(base: torch.Tensor, value: torch.Tensor) -> tuple[Layout | None, int]:
    if value is base:
        return None, 0
    # Not by data_ptr: that of an empty view is null.
    offset = _start(value) - _start(base)
    return Layout.of(value), offset


def _start(tensor: torch.Tensor) -> int:
    """Bytes from the start of its storage."""
    return int(tensor.storage_offset()) * tensor.itemsize


def returns_kind(result: Any) -> type | None:
    """The type of the sequence that the function returns, None for a bare value."""
    return type(result) if isinstance(result, (tuple, list)) else None


def tensors_of(values: Sequence[Any]) -> list[tuple[int, torch.Tensor]]:
    """The tensors among returned values, with their positions."""
    return [(position, value) for position, value in enumerate(values) if isinstance(value, torch.Tensor)]
