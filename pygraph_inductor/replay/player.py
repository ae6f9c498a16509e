"""The fast path in Python: gather addresses, rewrite what moved, launch, hand out the outputs.

The last step of a call. It knows the plan, the graph and the driver, nothing of how they came about.
"""

from __future__ import annotations

import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from pygraph_inductor.driver.protocol import Driver, Graph, NodeKind, UpdateRefused
from pygraph_inductor.replay.plan import (
    Again,
    FromAllocation,
    FromConstant,
    FromInput,
    Layout,
    Plan,
    Returned,
    Slot,
)
from pygraph_inductor.replay.views import bytes_of, copy_contents, copy_memory

# torch's stubs do not know it; generated code makes its views with it.
_reinterpret = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]


_GUARD = 1 << 20  # bytes


class ReplayFailed(RuntimeError):
    """Nothing was launched, and the recording must not be used again."""


@dataclass(frozen=True)
class Prepared:
    """A call that only has to be launched: its new outputs, the tensor of each slot, the slots that are staged."""

    fresh: list[torch.Tensor]
    holders: list[torch.Tensor]
    copies: dict[int, torch.Tensor]


class Player:
    """Replays one recording. Not thread-safe: the recording's pool lock is held around a call."""

    def __init__(
        self,
        plan: Plan,
        graph: Graph,
        driver: Driver,
        staging: dict[int, torch.Tensor],
        inside: Mapping[int, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        """`staging`: tensors at the addresses that the graph holds for slots that the player has to copy; `inside`:
        those of slots that the graph copies itself.
        """
        self.plan = plan
        self.updates = 0
        self.staged = 0
        self._graph = graph
        self._driver = driver
        self._staging = staging
        self._inside = inside
        # Positions of inputs, each as often as its version is raised.
        self._raised = [position for position, times in plan.version_bumps for _ in range(times)]
        # Where the graph was told each slot is, shared with the launcher in C; 0: it has to be told (again).
        self.known = array.array(
            "Q", [staging[number].data_ptr() if number in staging else 0 for number in range(len(plan.slots))]
        )

    @property
    def stages(self) -> bool:
        """Whether it copies tensors in every call."""
        return bool(self._staging)

    def rebase(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Before instantiation: tell the nodes where this call's tensors are. Returns its outputs, to be held.

        An executable graph accepts a new address for a copy only if the one it was instantiated with is memory of the
        same kind, and stand-ins are not (cuGraphExecMemcpyNodeSetParams: CUDA_ERROR_INVALID_VALUE). What `known`
        says is left alone: the first replay tells the executable graph everything once more, so that a refusal is
        found before the recording is trusted.
        """
        nodes = self._graph.nodes
        held = [self._allocate(made.layout) for made in self.plan.allocations]
        dirty: dict[int, None] = {}
        for slot in self.plan.slots:
            address = (held[slot.source] if slot.is_output else inputs[slot.source]).data_ptr()
            usable = address % slot.alignment == slot.residue
            for binding in slot.bindings:
                if usable or nodes[binding.node].kind is not NodeKind.KERNEL:
                    nodes[binding.node].areas[binding.area].set_word(binding.offset, address + binding.addend)
                    dirty[binding.node] = None
        for index in dirty:
            self._graph.update(nodes[index])
        return held

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """One call, from inputs to outputs."""
        return self.launch(inputs, self.prepare(inputs))

    def prepare(self, inputs: Sequence[Any], fresh: list[torch.Tensor] | None = None) -> Prepared:
        """Everything before the launch: an exception here leaves the call undone. `fresh` are its outputs, if given.

        Raises `ReplayFailed` if the graph could not be updated: the recording is useless then.
        """
        plan = self.plan
        if fresh is None:
            fresh = [self._allocate(made.layout) for made in plan.allocations]
        holders = [fresh[slot.source] if slot.is_output else inputs[slot.source] for slot in plan.slots]
        addresses, copies = self._placed(holders)
        self._tell(addresses)
        return Prepared(fresh, holders, copies)

    def guarded_outputs(self, pattern: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """New outputs filled with the byte `pattern`, and the memory behind each of them, filled alike.

        Buffers through which outputs are staged are filled, too: what the graph does not write is copied from there.
        """
        for number, buffer in (*self._staging.items(), *self._inside.items()):
            if self.plan.slots[number].is_output:
                bytes_of(buffer).fill_(pattern)
        outputs, guards = [], []
        for made in self.plan.allocations:
            span = made.layout.span
            memory = self._driver.empty((guarded(span),), (1,), torch.uint8)
            memory.fill_(pattern)
            output = torch.empty(0, dtype=made.layout.dtype, device=memory.device)
            outputs.append(output.set_(memory.untyped_storage(), 0, made.layout.size, made.layout.stride))
            guards.append(memory[span:])
        return outputs, guards

    def launch(self, inputs: Sequence[Any], prepared: Prepared) -> Any:
        """Launch, and hand out the outputs."""
        plan = self.plan
        self._graph.replay()
        for number, buffer in prepared.copies.items():
            if plan.slots[number].written:
                _copy_out(prepared.holders[number], buffer, plan.slots[number])
        self.raise_versions(inputs)
        return self._returned(inputs, prepared.fresh)

    def raise_versions(self, inputs: Sequence[Any]) -> None:
        """Let autograd see the mutations that the plain call would have shown it."""
        written = [inputs[position] for position in self._raised]
        torch.autograd.graph.increment_version([tensor for tensor in written if not tensor.is_inference()])

    def _allocate(self, layout: Layout) -> torch.Tensor:
        return self._driver.empty(layout.size, layout.stride, layout.dtype)

    def _placed(self, holders: Sequence[torch.Tensor]) -> tuple[list[int], dict[int, torch.Tensor]]:
        """Where the graph shall find each slot, and the buffers of slots that cannot be used where they are."""
        addresses = []
        copies: dict[int, torch.Tensor] = {}
        for number, (slot, holder) in enumerate(zip(self.plan.slots, holders, strict=True)):
            address = holder.data_ptr()
            if number in self._staging:
                copies[number] = self._staging[number]
            elif address % slot.alignment != slot.residue and slot.bindings:
                copies[number] = aligned_buffer(self._driver, slot.layout, slot.residue)
            if number in copies:
                buffer = copies[number]
                address = buffer.data_ptr()
                self.staged += 1
                if not slot.is_output:
                    copy_memory(buffer, holder)
            addresses.append(address)
        return addresses, copies

    def _tell(self, addresses: Sequence[int]) -> None:
        """Rewrite the words of slots that moved and update their nodes, each once."""
        known = self.known
        moved = [number for number, address in enumerate(addresses) if address != known[number]]
        if not moved:
            return
        nodes = self._graph.nodes
        dirty: dict[int, None] = {}
        for number in moved:
            address = addresses[number]
            known[number] = 0
            for binding in self.plan.slots[number].bindings:
                nodes[binding.node].areas[binding.area].set_word(binding.offset, address + binding.addend)
                dirty[binding.node] = None
        try:
            for index in dirty:
                self._graph.update(nodes[index])
        except UpdateRefused as error:
            # Some nodes have new parameters and some do not: nothing may be launched from here on.
            raise ReplayFailed(str(error)) from error
        for number in moved:
            known[number] = addresses[number]
        self.updates += len(dirty)

    def _returned(self, inputs: Sequence[Any], fresh: Sequence[torch.Tensor]) -> Any:
        values: list[Any] = []
        for entry in self.plan.returned:
            values.append(_build(entry, inputs, fresh, values))
        if self.plan.returns is None:
            return values[0]
        return values if self.plan.returns is list else self.plan.returns(values)


def guarded(span: int) -> int:
    """The bytes of an output and of what is watched behind it: as much again, at most 1 MiB, and 4 KiB.

    Whatever is larger than the output and starts in its place also covers what follows.
    """
    return span + min(span, _GUARD) + 4096


def aligned_buffer(driver: Driver, layout: Layout, residue: int) -> torch.Tensor:
    """A buffer of this layout whose address leaves `residue` when divided by the driver's alignment."""
    alignment = driver.alignment
    memory = driver.empty((layout.span + alignment,), (1,), torch.uint8)
    start = (residue - memory.data_ptr()) % alignment
    if start % layout.dtype.itemsize:
        raise ReplayFailed("a captured address was not aligned to its element size")
    buffer = torch.empty(0, dtype=layout.dtype, device=memory.device)
    return buffer.set_(memory.untyped_storage(), start // layout.dtype.itemsize, layout.size, layout.stride)


def _build(entry: Returned, inputs: Sequence[Any], fresh: Sequence[torch.Tensor], earlier: Sequence[Any]) -> Any:
    match entry:
        case FromAllocation(position, None):
            return fresh[position]
        case FromAllocation(position, Layout() as view, offset, shares):
            return (_view_with_version if shares else _view)(fresh[position], view, offset)
        case FromInput(position, None):
            return inputs[position]
        case FromInput(position, Layout() as view, offset, shares):
            return (_view_with_version if shares else _view)(inputs[position], view, offset)
        case FromConstant(value):
            return value
        case Again(position):
            return earlier[position]


def _copy_out(holder: torch.Tensor, buffer: torch.Tensor, slot: Slot) -> None:
    """What the graph wrote to a slot. All bytes of an output: it may be made as a view of what the graph writes is
    (recording/outputs.py), and other views of it may show the gaps between the elements, which are its own.
    """
    if slot.is_output:
        bytes_of(holder).copy_(bytes_of(buffer))
    else:
        copy_contents(holder, buffer)


def _view(base: torch.Tensor, layout: Layout, offset: int) -> torch.Tensor:
    """What generated code's reinterpret_tensor makes: the base's storage, no view tracking."""
    if layout.dtype == base.dtype:
        return _reinterpret(base, layout.size, layout.stride, offset // base.itemsize)
    start = base.storage_offset() * base.itemsize + offset
    view = torch.empty(0, dtype=layout.dtype, device=base.device)
    return view.set_(base.untyped_storage(), start // layout.dtype.itemsize, layout.size, layout.stride)


def _view_with_version(base: torch.Tensor, layout: Layout, offset: int) -> torch.Tensor:
    """What a view of the dispatcher is: a write to one of them is a write to the other for autograd, too."""
    start = (base.storage_offset() * base.itemsize + offset) // layout.dtype.itemsize
    if layout.dtype != base.dtype:
        whole = base.untyped_storage().nbytes() // layout.dtype.itemsize * layout.dtype.itemsize
        base = base.as_strided((whole // base.itemsize,), (1,), 0).view(layout.dtype)
    return base.as_strided(layout.size, layout.stride, start)
