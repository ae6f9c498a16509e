"""What it costs to tell a graph where its slots are, by engine; and the cheapest engine for each slot of a recording.

Costs are sympy expressions over the sizes of a call, in µs of one call from its submission to its end, so one model
answers for static and dynamic shapes. The coefficients are measured on the machine (`calibration.py`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sympy

PATCH, INDIRECT, COPY, STATIC = "patch", "indirect", "copy", "static"
_SWEEPS = 4  # over all slots, changing one at a time


@dataclass(frozen=True)
class Coefficients:
    """What things cost on one machine, in µs. The defaults were measured on an H200 (docs/benchmarks/engines.json)."""

    node_update: float = 0.21  # rewriting one node, on the host
    table_update: float = 0.18  # rewriting the node that writes a table, on the host
    table_node: float = 0.74  # running that node, on the device
    indirect_load: float = 0.135  # what a kernel takes longer if it is given addresses of addresses
    copy_launch: float = 1.49  # copying one small tensor, by a node of the graph
    bytes_per_us: float = 2.0e6  # of such a copy: each byte is read and written
    python_replay: float = 24.0  # what a replay takes longer from Python than from C

    def to_dict(self) -> dict[str, float]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class SlotUse:
    """How a graph uses one slot. Numbers, or sympy expressions where they depend on sizes."""

    nodes: Any  # that hold its address
    kernels: Any  # those of them that have a twin
    nbytes: Any
    written: bool = False  # and read before: it is copied both ways
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
        """The graph copies it to where its kernels expect it, and back where it is written; its copies are told."""
        c = self.coefficients
        one = c.copy_launch + (c.node_update if use.moves else 0.0)
        return (2 if use.written else 1) * (sympy.Float(one) + use.nbytes / sympy.Float(c.bytes_per_us))

    def of(self, use: SlotUse, sharing: Any = 1) -> dict[str, Any]:
        """What each engine costs for a slot on its own. `static` is `patch` for a slot that stays where it is."""
        stays = dataclasses.replace(use, moves=False)
        costs = {PATCH: self.patch(use), COPY: self.copy(use), STATIC: self.patch(stays)}
        if sympy.sympify(use.kernels) != 0:
            costs[INDIRECT] = self.indirect(use, sharing)
        return costs


def value(cost: Any, sizes: Mapping[Any, int] | None = None) -> float:
    """A cost in µs, with numbers for the sizes it depends on."""
    return float(sympy.sympify(cost).subs(sizes or {}))


@dataclass(frozen=True)
class Consumers:
    """The nodes that hold a slot's address, those of them that are launches of a kernel with a twin, and what it costs
    if the graph copies the slot, in µs; None if it must not be copied.
    """

    nodes: frozenset[int]
    kernels: frozenset[int]
    copying: float | None = None


@dataclass(frozen=True)
class Choice:
    """The slots that are indirect or copied, and what a call costs so, and otherwise, in µs."""

    indirect: frozenset[int]
    copied: frozenset[int]
    cost: float
    patched: float  # if every slot were patched
    indirected: float  # if every slot that can be were indirect
    all_copied: float  # if every slot that can be were copied


def choose(slots: Mapping[int, Consumers], coefficients: Coefficients) -> Choice:
    """The cheapest engines for slots that all move. `slots`: their consumers, by number.

    Slots share: one update serves every slot of a node, one table every twin. So whole plans are compared, not slots:
    one engine for all, as far as it can serve them, and from there on changing one slot at a time.
    """
    plans = [_Plan(slots, coefficients, engine) for engine in (PATCH, INDIRECT, COPY)]
    patched, indirected, all_copied = (plan.cost for plan in plans)
    # What a slot's copy saves is at most the update of each of its nodes.
    worth = {
        number
        for number, one in slots.items()
        if one.copying is not None and one.copying < coefficients.node_update * len(one.nodes)
    }
    for plan in plans if worth else plans[:2]:
        for _ in range(_SWEEPS):
            if not _improve(plan, worth):
                break
    best = min(plans, key=lambda plan: plan.cost)
    if best.cost >= patched:  # from another engine down to none, a step at a time
        best = _Plan(slots, coefficients, PATCH)
    return Choice(best.having(INDIRECT), best.having(COPY), best.cost, patched, indirected, all_copied)


def _improve(plan: _Plan, worth_copying: Collection[int]) -> bool:
    improved = False
    for number in plan.slots:
        for engine in plan.able(number):
            before, cost = plan.engines[number], plan.cost
            if engine == before or (engine == COPY and number not in worth_copying):
                continue
            plan.give(number, engine)
            if plan.cost < cost - 1e-9:
                improved = True
            else:
                plan.give(number, before)
    return improved


def cost_of(engines: Mapping[int, str], slots: Mapping[int, Consumers], coefficients: Coefficients) -> float:
    """What a call costs in which all slots moved, in µs. What is not in `engines` is patched."""
    plan = _Plan(slots, coefficients, PATCH)
    for number, engine in engines.items():
        plan.give(number, engine)
    return plan.cost


class _Plan:
    """An engine for each slot, and what they cost together, kept up to date. It begins with one for all that can."""

    def __init__(self, slots: Mapping[int, Consumers], coefficients: Coefficients, engine: str) -> None:
        self.slots = slots
        self.engines: dict[int, str] = {}
        self._c = coefficients
        self._updated: Counter[int] = Counter()
        self._twins: Counter[int] = Counter()
        self._nodes_to_update = self._kernels = self._indirect = 0
        self._copying = 0.0
        for number in slots:
            self._count(number, engine if engine in self.able(number) else PATCH, 1)

    def able(self, number: int) -> list[str]:
        """The engines that can serve a slot."""
        consumers = self.slots[number]
        able = [PATCH]
        if consumers.kernels:
            able.append(INDIRECT)
        if consumers.copying is not None:
            able.append(COPY)
        return able

    def give(self, number: int, engine: str) -> None:
        """Another engine for a slot."""
        self._count(number, self.engines[number], -1)
        self._count(number, engine, 1)

    def having(self, engine: str) -> frozenset[int]:
        """The slots with this engine."""
        return frozenset(number for number, one in self.engines.items() if one == engine)

    def _count(self, number: int, engine: str, step: int) -> None:
        self.engines[number] = engine
        consumers = self.slots[number]
        if engine == COPY:
            self._copying += step * (consumers.copying or 0.0)
            return
        self._indirect += step * (engine == INDIRECT)
        for node in consumers.nodes:
            if engine == INDIRECT and node in consumers.kernels:
                before = self._twins[node] > 0
                self._twins[node] += step
                self._kernels += (self._twins[node] > 0) - before
            else:
                before = self._updated[node] > 0
                self._updated[node] += step
                self._nodes_to_update += (self._updated[node] > 0) - before

    @property
    def cost(self) -> float:
        c = self._c
        tables = -(-self._indirect // PER_TABLE_NODE)
        return (
            c.node_update * self._nodes_to_update
            + c.indirect_load * self._kernels
            + (c.table_node + c.table_update) * tables
            + self._copying
        )


PER_TABLE_NODE = 500  # slots that one node of a table serves (driver/table.py)
