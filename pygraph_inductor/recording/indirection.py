"""Slots that kernels find in a table: who could, seen in a capture, and the capture in which they do.

A capture's stand-ins have addresses of their own, so a launch's arguments say which slots it uses. A recording that
wants twins is captured again: the first node writes the table, chosen launches are the twins', the rest stays as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from pygraph_inductor.driver.protocol import TABLE_WRITER, TWIN, Driver, PointerTable, Twins
from pygraph_inductor.driver.thread_globals import meaning


class Indirection(Protocol):
    """What happens to the launches of a capture."""

    def during(self, namespace: dict[str, Any], driver: Driver, stand_ins: Sequence[torch.Tensor]) -> Any:
        """A context manager around the captured function. `stand_ins`: one tensor per place."""

    def open_kernels(self) -> frozenset[str]:
        """The nodes of the generated kernels that were seen to be given slots, and of what serves them, by name: what
        such a kernel uses is among its parameters, or in the table.
        """


@dataclass(frozen=True)
class Launch:
    """A kernel's launch: the place at each argument that could be indirect, and the number of its node."""

    kernel: str
    places: Mapping[int, int]
    node: int


class Watching:
    """Leaves launches as they are and notes them. Each capture begins anew."""

    def __init__(self, twins: Twins) -> None:
        self.twins = twins
        self.launches: list[Launch] = []
        self.asked: Any = None  # engines.Wanted: what the plan made of it
        self.refusals: dict[str, str] = {}  # by kernel: why an argument that is a slot cannot be indirect

    @contextlib.contextmanager
    def during(self, namespace: dict[str, Any], driver: Driver, stand_ins: Sequence[torch.Tensor]) -> Iterator[None]:
        self.launches.clear()
        places = {tensor.data_ptr(): number for number, tensor in enumerate(stand_ins)}

        def note(kernel: str, args: tuple[Any, ...]) -> Mapping[int, torch.Tensor]:
            found = {}
            for argument, place in _slots_among(args, places).items():
                refusal = self.twins.refusal(kernel, argument)
                if refusal is None:
                    found[argument] = place
                else:
                    self.refusals[kernel] = refusal
            if found:
                self.launches.append(Launch(kernel, found, driver.nodes_so_far()))
            return {}

        with meaning(namespace, self.twins.meanings(note)):
            yield

    def open_kernels(self) -> frozenset[str]:
        return frozenset(launch.kernel for launch in self.launches)


@dataclass(frozen=True)
class Steering:
    """Sends launches to twins. `entries`: the table's entry of each place that is indirect."""

    twins: Twins
    table: PointerTable
    entries: Mapping[int, int]
    arguments: Mapping[str, frozenset[tuple[int, ...]]] = field(default_factory=dict)  # the twins that were prepared
    kernels: frozenset[str] = frozenset()  # that were watched

    @contextlib.contextmanager
    def during(self, namespace: dict[str, Any], driver: Driver, stand_ins: Sequence[torch.Tensor]) -> Iterator[None]:
        self.table.write([stand_ins[place] for place in self.entries])
        places = {stand_ins[place].data_ptr(): entry for place, entry in self.entries.items()}
        views = self.table.entries.split(1)

        def choose(kernel: str, args: tuple[Any, ...]) -> Mapping[int, torch.Tensor]:
            entries = {
                argument: views[entry]
                for argument, entry in _slots_among(args, places).items()
                if self.twins.refusal(kernel, argument) is None
            }
            return entries if tuple(sorted(entries)) in self.arguments.get(kernel, ()) else {}

        with meaning(namespace, self.twins.meanings(choose)):
            yield

    def open_kernels(self) -> frozenset[str]:
        return self.kernels.union((kernel + TWIN for kernel in self.arguments), (TABLE_WRITER,))


def _slots_among(args: Sequence[Any], places: Mapping[int, int]) -> dict[int, int]:
    """The arguments that begin where a slot begins. Others (views that begin inside one) are left to patching."""
    found = {}
    for number, value in enumerate(args):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            place = places.get(value.data_ptr())
            if place is not None:
                found[number] = place
    return found


@dataclass(frozen=True)
class Prepared:
    """How to capture again: with twins, for slots of which at least one launch can be indirect, and with copies."""

    steering: Steering | None
    places: frozenset[int]  # that are indirect
    copied: frozenset[int]
    watched: Watching


def twins_for(watched: Watching, chosen: Collection[int]) -> frozenset[tuple[str, tuple[int, ...]]]:
    """The twins that serve these places: kernels, each with the arguments that are indirect."""
    wanted = ((launch.kernel, _indirect_among(launch, chosen)) for launch in watched.launches)
    return frozenset((kernel, arguments) for kernel, arguments in wanted if arguments)


def _indirect_among(launch: Launch, chosen: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(argument for argument, place in launch.places.items() if place in chosen))


def prepare(watched: Watching, chosen: Collection[int], copied: frozenset[int], driver: Driver) -> Prepared | None:
    """Make the twins that serve the chosen places, and their table; None if all places are as they are already."""
    ready: dict[str, set[tuple[int, ...]]] = {}
    served: set[int] = set()
    for launch in watched.launches:
        arguments = _indirect_among(launch, chosen)
        if not arguments:
            continue
        if arguments not in ready.get(launch.kernel, ()):
            refusal = watched.twins.prepare(launch.kernel, arguments)
            if refusal is not None:
                watched.refusals[launch.kernel] = refusal
                continue
            ready.setdefault(launch.kernel, set()).add(arguments)
        served.update(launch.places[number] for number in arguments)
    if not served:
        return Prepared(None, frozenset(), copied, watched) if copied else None
    entries = {place: entry for entry, place in enumerate(sorted(served))}
    arguments_of = {kernel: frozenset(known) for kernel, known in ready.items()}
    table = driver.new_table(len(entries))
    steering = Steering(watched.twins, table, entries, arguments_of, watched.open_kernels())
    return Prepared(steering, frozenset(served), copied, watched)
