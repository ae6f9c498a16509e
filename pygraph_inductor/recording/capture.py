"""Captures the function with stand-ins for its inputs and outputs, so that nothing of the caller is in the graph.

Done twice with the stand-ins elsewhere, the difference shows where the graph holds addresses (`bindings.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pygraph_inductor.driver.protocol import BlockEvent, Driver, Graph, Reservation, no_collection
from pygraph_inductor.recording.allocations import AllocationsChanged, answered
from pygraph_inductor.recording.bindings import NEARBY
from pygraph_inductor.recording.copying import Inside, copy_in, copy_out
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.in_place import Block, is_alone
from pygraph_inductor.recording.indirection import Indirection
from pygraph_inductor.recording.operators import Began, Operators
from pygraph_inductor.recording.pools import Pool, ScratchPool
from pygraph_inductor.recording.trial import Foreign, Trial, listed
from pygraph_inductor.replay.plan import Layout
from pygraph_inductor.replay.views import bytes_of

_GAP = 512  # bytes; a multiple of every driver's alignment


@dataclass(frozen=True)
class Place:
    """A slot before it has a stand-in. `source`: the input's position, or the output buffer's."""

    source: int
    is_output: bool
    layout: Layout
    residue: int


@dataclass(frozen=True)
class Buffer:
    """Memory behind outputs: an allocation of the generated code, or a storage that an operator allocated itself."""

    layout: Layout
    allocation: int | None = None
    foreign: Foreign | None = None


def buffers_of(trial: Trial) -> list[Buffer]:
    """The output buffers that a call makes anew."""
    made = [Buffer(trial.allocated[number], allocation=number) for number in trial.returned_allocations]
    return made + [Buffer(foreign.layout, foreign=foreign) for foreign in trial.foreign]


@dataclass
class Captured:
    """A graph, what the function returned while it was captured, and what each place and empty buffer was meanwhile.

    `addresses`: where the graph was told that each place is. `arguments` are what the function was given.
    `version_bumps`: by how much it raised the version of which of them; they share no version counter, so this tells
    apart what two inputs that are views of one tensor would mix up.
    """

    graph: Graph
    result: Any
    arguments: list[Any]
    version_bumps: tuple[tuple[int, int], ...]
    addresses: list[int]
    tensors: list[torch.Tensor]  # by place: what the function worked on
    empties: dict[int, torch.Tensor]  # by buffer
    blocks: dict[int, Block]  # by buffer: where operators put the outputs that they allocated
    stand_ins: StandInSpace | None = None  # None: every place was given a tensor


# What a kernel that still reads a stand-in finds: valid values that are not the caller's. Any pattern would do for
# floats (this one is finite and not zero in every float type); zero is the only index that is always in range.
_FILL_FLOATS, _FILL_OTHERS = 0x3F, 0x00


class StandInSpace:
    """Reserved addresses for one capture's stand-ins. `spread` moves each of them by another amount."""

    def __init__(self, driver: Driver, places: Sequence[Place], spread: int) -> None:
        self._driver = driver
        self._places = places
        self._ranges: list[Reservation] = []
        self._addresses: dict[int, int] = {}
        self._is_new = True
        try:
            for is_float, fill in ((True, _FILL_FLOATS), (False, _FILL_OTHERS)):
                self._reserve_for(is_float, fill, spread)
        except BaseException:
            self.close()
            raise

    def _reserve_for(self, is_float: bool, fill: int, spread: int) -> None:
        starts: dict[int, int] = {}
        end = 0
        for number, place in enumerate(self._places):
            if (place.layout.dtype.is_floating_point or place.layout.dtype.is_complex) == is_float:
                starts[number] = end + spread * (number + 1) * _GAP
                end += -(-place.layout.span // _GAP) * _GAP + 2 * _GAP
        if starts:
            # A word near a stand-in that moved as it did is taken for its address. Nothing else may be that near: a
            # segment of the pool, aligned alike, can follow the range at the same distance in both captures.
            inner = end + (spread * len(self._places) + 2) * _GAP
            reserved = self._driver.reserve(NEARBY + inner + NEARBY, fill)
            self._ranges.append(reserved)
            for number, start in starts.items():
                self._addresses[number] = reserved.address + NEARBY + start + self._places[number].residue

    def tensors(self) -> list[torch.Tensor]:
        """One tensor per place."""
        with torch.inference_mode(False):  # inference tensors have no versions, and the graph serves other calls, too
            return [
                self._driver.tensor_at(
                    self._addresses[number],
                    place.layout.span,
                    place.layout.size,
                    place.layout.stride,
                    place.layout.dtype,
                )
                for number, place in enumerate(self._places)
            ]

    def refill(self) -> None:
        """Before each replay: take back what the one before may have written there."""
        for reserved in () if self._is_new else self._ranges:
            reserved.refill()
        self._is_new = False

    def close(self) -> None:
        """Give the addresses back; nothing that runs may mention them any more."""
        for reserved in self._ranges:
            reserved.close()


@dataclass(frozen=True)
class Placed:
    """A `Block` of which it is not known yet who else was there since its operator began."""

    address: int
    nbytes: int
    began: Began
    copy_node: int


@dataclass(frozen=True)
class Work:
    """What to capture."""

    run: Callable[[list[Any]], Any]
    facts: Facts
    driver: Driver
    pool: Pool | ScratchPool
    inputs: Sequence[Any]
    generators: Sequence[torch.Generator]
    trial: Trial
    places: Sequence[Place]
    buffers: Sequence[Buffer]
    indirection: Indirection | None = None
    copied: Mapping[int, Inside] = field(default_factory=dict)  # by place: the slots that the graph copies
    in_place: bool = True  # what operators allocate may be told where to be, instead of being copied


def capture_with(work: Work, stand_ins: Sequence[torch.Tensor]) -> Captured:
    """Capture with one tensor per place. Raises what `Driver.capture` raises, and `AllocationsChanged`."""
    arguments = [_without_elements(work.driver, value) for value in work.inputs]
    outputs: dict[int, torch.Tensor] = {}
    tensors = list(stand_ins)
    for number, inside in work.copied.items():
        tensors[number] = inside.buffer
    for place, tensor in zip(work.places, tensors, strict=True):
        if place.is_output:
            outputs[place.source] = tensor
        else:
            arguments[place.source] = tensor
    empties = {
        number: work.driver.empty(buffer.layout.size, buffer.layout.stride, buffer.layout.dtype)
        for number, buffer in enumerate(work.buffers)
        if number not in outputs
    }
    outputs.update(empties)
    by_allocation = {
        buffer.allocation: outputs[number]
        for number, buffer in enumerate(work.buffers)
        if buffer.allocation is not None
    }
    versions = _versions(arguments)

    placed: dict[int, Placed] = {}

    def body() -> Any:
        looking = operators.watched() if operators is not None else contextlib.nullcontext()
        namespace = work.facts.namespace
        steered = work.indirection.during(namespace, work.driver, stand_ins) if work.indirection else None
        with (
            answered(namespace, work.facts.allocators, work.trial.allocated, by_allocation),
            steered or contextlib.nullcontext(),
        ):
            copy_in(work.copied, stand_ins)
            with looking:
                result = work.run(list(arguments))
        _copy_foreign(work, listed(result), outputs, operators, placed)
        copy_out(work.copied, stand_ins)
        return result

    # Looking on has its price, and without such outputs there is nothing to see.
    with work.driver.watched_blocks() if work.trial.foreign else contextlib.nullcontext() as log:
        operators = Operators(work.driver.nodes_so_far, log) if log is not None else None
        try:
            with no_collection():  # garbage may hold the last graph of the pool, which then takes no capture any more
                graph, result = work.driver.capture(body, work.pool.handle(), work.facts.namespace, work.generators)
        except BaseException:
            work.pool.renew()
            raise
        blocks = _blocks(placed, log.events() if log is not None else None)
    work.pool.adopt(graph)
    bumps = _version_bumps(arguments, versions)
    addresses = [tensor.data_ptr() for tensor in stand_ins]
    return Captured(graph, result, arguments, bumps, addresses, tensors, empties, blocks)


def _without_elements(driver: Driver, value: Any) -> Any:
    """Even an empty input is replaced: a capture must not raise its version, and who it is must show in outputs."""
    if not isinstance(value, torch.Tensor) or not driver.owns(value) or value.numel():
        return value
    with torch.inference_mode(False):
        return driver.empty(tuple(value.size()), value.stride(), value.dtype)


def _versions(arguments: Sequence[Any]) -> list[int | None]:
    return [
        value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None for value in arguments
    ]


def _version_bumps(arguments: Sequence[Any], before: Sequence[int | None]) -> tuple[tuple[int, int], ...]:
    return tuple(
        (position, now - then)
        for position, (then, now) in enumerate(zip(before, _versions(arguments), strict=True))
        if then is not None and now is not None and now != then
    )


def _copy_foreign(
    work: Work,
    returned: Sequence[Any],
    outputs: Mapping[int, torch.Tensor],
    operators: Operators | None,
    placed: dict[int, Placed],
) -> None:
    """Record a copy of each storage that an operator allocated, and note where it is (see `in_place.py`)."""
    for number, buffer in enumerate(work.buffers):
        if buffer.foreign is None:
            continue
        source = returned[buffer.foreign.positions[0]]
        storage = source.untyped_storage()
        if not work.driver.owns(source):
            raise AllocationsChanged(f"an operator allocated an output on {source.device}")
        if storage.nbytes() != buffer.foreign.nbytes:
            raise AllocationsChanged("an operator allocated an output of another size than in the call before")
        if not storage.nbytes():
            continue
        began = operators.began(source) if operators is not None else None
        if began is not None:
            placed[number] = Placed(storage.data_ptr(), storage.nbytes(), began, work.driver.nodes_so_far())
        flat = torch.empty(0, dtype=torch.uint8, device=source.device)
        bytes_of(outputs[number]).copy_(flat.set_(storage, 0, (storage.nbytes(),), (1,)))


def _blocks(placed: Mapping[int, Placed], events: Sequence[BlockEvent] | None) -> dict[int, Block]:
    """With who else was there, now that the allocator can be asked for all that it did (None: it does not tell)."""
    return {
        number: Block(
            one.address,
            one.nbytes,
            one.began.nodes,
            one.copy_node,
            events is not None and is_alone(events[one.began.events :], one.address, one.nbytes),
        )
        for number, one in placed.items()
    }
