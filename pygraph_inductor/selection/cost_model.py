"""What it costs to tell a graph where its slots are, by engine; and the cheapest engine for each slot of a recording.

Costs are sympy expressions over the sizes of a call, in µs of one call from its submission to its end, so one model
answers for static and dynamic shapes. The coefficients are measured on the machine (`calibration.py`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

PATCH, INDIRECT, COPY, STATIC = "patch", "indirect", "copy", "static"
_SWEEPS = 4  # over all slots, changing one at a time


@dataclass(frozen=True)
class Coefficients:
    """What things cost on one machine, in µs. The defaults were measured on an H200 (torch 2.11, CUDA 13.0)."""

    node_update: float = 0.18  # rewriting one node, on the host
    table_update: float = 0.3  # rewriting the node that writes a table, on the host
    table_node: float = 1.6  # running that node, on the device
    indirect_load: float = 0.13  # what a kernel takes longer if it is given addresses of addresses
    copy_launch: float = 9.1  # copying one small tensor before the launch: 7 on the host, 2.1 on the device
    bytes_per_us: float = 2.0e6  # of such a copy: each byte is read and written
    python_replay: float = 20.0  # staged slots are served by Python instead of C

    def to_dict(self) -> dict[str, float]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class SlotUse:
    """How a graph uses one slot. Numbers, or sympy expressions where they depend on sizes."""

    nodes: Any  # that hold its address
    kernels: Any  # those of them that have a twin
    nbytes: Any
    written: bool = False
    moves: bool = True  # False: not expected to move between calls


@dataclass(frozen=True)
class CostModel:
    """Costs by one machine's coefficients."""

    coefficients: Coefficients = Coefficients()

    def patch(self, use: SlotUse) -> Any:
        """Every node that holds the address is rewritten when it moved."""
        return sympy.Float(self.coefficients.node_update) * use.nodes if use.moves else sympy.Float(0)

    def indirect(self, use: SlotUse, sharing: Any = 1) -> Any:
        """Twins read the address from a table that is written in each replay, for `sharing` slots at once."""
        c = self.coefficients
        refresh = (c.table_node + (c.table_update if use.moves else 0.0)) / sympy.sympify(sharing)
        rest = c.node_update * (use.nodes - use.kernels) if use.moves else sympy.Float(0)
        return sympy.Float(c.indirect_load) * use.kernels + rest + refresh

    def copy(self, use: SlotUse) -> Any:
        """The tensor is copied to where the graph expects it; copied back as well, where it is written."""
        c = self.coefficients
        times = 2 if use.written else 1
        return times * (sympy.Float(c.copy_launch) + use.nbytes / sympy.Float(c.bytes_per_us)) + c.python_replay

    def of(self, use: SlotUse, sharing: Any = 1) -> dict[str, Any]:
        """What each engine costs for a slot on its own. `static` is `patch` for a slot that stays where it is."""
        stays = dataclasses.replace(use, moves=False)
        costs = {PATCH: self.patch(use), COPY: self.copy(use), STATIC: self.patch(stays)}
        if sympy.sympify(use.kernels) != 0:
            costs[INDIRECT] = self.indirect(use, sharing)
        return costs


def all_copied(uses: Sequence[SlotUse], model: CostModel) -> Any:
    """What a call costs in which all these slots are staged; Python serves them together."""
    python = model.coefficients.python_replay
    return sum((model.copy(use) - python for use in uses), start=sympy.Float(python))


def value(cost: Any, sizes: Mapping[Any, int] | None = None) -> float:
    """A cost in µs, with numbers for the sizes it depends on."""
    return float(sympy.sympify(cost).subs(sizes or {}))


@dataclass(frozen=True)
class Consumers:
    """The nodes that hold a slot's address, and those of them that are launches of a kernel with a twin."""

    nodes: frozenset[int]
    kernels: frozenset[int]


@dataclass(frozen=True)
class Choice:
    """The slots that are indirect, and what a call costs so, and otherwise, in µs."""

    indirect: frozenset[int]
    cost: float
    patched: float  # if every slot were patched
    indirected: float  # if every slot that can be were indirect


def choose(slots: Mapping[int, Consumers], coefficients: Coefficients) -> Choice:
    """The cheapest set of indirect slots among those that move. `slots`: their consumers, by number.

    Slots share: one update serves every slot of a node, one table every twin. So sets are compared, not slots: none,
    all, and from the better one on changing one slot at a time.
    """
    candidates = frozenset(number for number, consumers in slots.items() if consumers.kernels)
    none, everything = _Set(slots, coefficients), _Set(slots, coefficients)
    for number in candidates:
        everything.flip(number)
    patched, indirected = none.cost, everything.cost
    best = everything if indirected < patched else none
    for _ in range(_SWEEPS):
        if not _improve(best, sorted(candidates)):
            break
    if best.cost >= patched:  # from all of them down to none, a step at a time
        return Choice(frozenset(), patched, patched, indirected)
    return Choice(frozenset(best.members), best.cost, patched, indirected)


def _improve(chosen: _Set, candidates: Sequence[int]) -> bool:
    improved = False
    for number in candidates:
        before = chosen.cost
        chosen.flip(number)
        if chosen.cost < before - 1e-9:
            improved = True
        else:
            chosen.flip(number)
    return improved


def cost_of(indirect: Collection[int], slots: Mapping[int, Consumers], coefficients: Coefficients) -> float:
    """What a call costs in which all slots moved and those are indirect, in µs."""
    chosen = _Set(slots, coefficients)
    for number in indirect:
        chosen.flip(number)
    return chosen.cost


class _Set:
    """A set of indirect slots, and its cost, kept up to date."""

    def __init__(self, slots: Mapping[int, Consumers], coefficients: Coefficients) -> None:
        self._slots = slots
        self._c = coefficients
        self.members: set[int] = set()
        self._updated = Counter(node for consumers in slots.values() for node in consumers.nodes)
        self._twins: Counter[int] = Counter()
        self._nodes_to_update = len(self._updated)
        self._kernels = 0

    def flip(self, number: int) -> None:
        """Make a slot indirect, or patched again."""
        step = -1 if number in self.members else 1
        self.members ^= {number}
        for node in self._slots[number].kernels:
            updated_before, twins_before = self._updated[node] > 0, self._twins[node] > 0
            self._updated[node] -= step
            self._twins[node] += step
            self._nodes_to_update += (self._updated[node] > 0) - updated_before
            self._kernels += (self._twins[node] > 0) - twins_before

    @property
    def cost(self) -> float:
        c = self._c
        tables = -(-len(self.members) // PER_TABLE_NODE)
        return (
            c.node_update * self._nodes_to_update
            + c.indirect_load * self._kernels
            + (c.table_node + c.table_update) * tables
        )


PER_TABLE_NODE = 500  # slots that one node of a table serves (driver/table.py)
