"""What the cost model expects of each way to answer a call, and what need not be measured because it is certain.

A graph runs the kernels of the plain call, and copies of its staged tensors besides. If these keep the device busy
for longer than a plain call can take the host, then the graph's time is above both of the plain call's.
That is a bound. What is expected is no bound: it decides what is tried before anything was measured, and reports show
it beside what was measured then.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pygraph_inductor.replay.plan import Binding, Engine, Plan, Slot
from pygraph_inductor.selection.cost_model import PER_TABLE_NODE, Coefficients
from pygraph_inductor.selection.judge import Variant

# The most that a plain call costs the host, in µs: by itself, for each launch and for each input. Up to 70, 50 and 1
# were measured on an H200's host while variants took turns, and other hosts are slower.
MOST_A_CALL = 200.0
MOST_A_LAUNCH = 100.0
MOST_AN_INPUT = 3.0
# What is expected of it there, and of a replay by the launcher in C: both fitted to those figures. Calls that take
# turns find cold caches: in a loop of its own, a replay takes a tenth of this.
A_CALL = 45.0
A_LAUNCH = 21.0
AN_INPUT = 0.8
A_REPLAY = 35.0
A_NODE = 0.09
A_SLOT = 0.18
AN_OUTPUT = 4.0
A_COPY = 7.0  # of a small tensor, from Python


@dataclass(frozen=True)
class Expected:
    """What a call is expected to cost by one variant, in µs: the host's time, and what the variant adds to the
    device's work beyond the kernels that all variants run."""

    variant: Variant
    host: float
    added: float


@dataclass(frozen=True)
class Prediction:
    """Bounds in µs a call: on what a graph adds to the device's work, and on what a plain call costs the host; that is
    0 where it launches nothing."""

    added: float
    launching: float
    expected: tuple[Expected, ...] = ()

    @property
    def hopeless(self) -> str | None:
        """Why the graph cannot win; None if it may."""
        if not self.launching:
            return "it launches nothing"
        if self.added > self.launching:
            return f"copying staged tensors takes {self.added:.0f} µs a call, a plain call {self.launching:.0f} at most"
        return None

    @property
    def gain_ns(self) -> float:
        """What a replay is expected to save; at least nothing."""
        costs = {one.variant: one.host + one.added for one in self.expected}
        return max(costs[Variant.PLAIN] - costs[Variant.GRAPH], 0.0) * 1e3 if len(costs) > 1 else 0.0

    @property
    def may_win_by_copies(self) -> bool:
        """Whether the graph with copies of all tensors is worth measuring: it is expected to cost less."""
        costs = {one.variant: one.host + one.added for one in self.expected}
        return Variant.COPY in costs and costs[Variant.COPY] < costs[Variant.GRAPH]


def predict(plan: Plan, kinds: Iterable[str], coefficients: Coefficients, twins: int = 0) -> Prediction:
    """What is known in advance about a recorded graph; `kinds` are those of its nodes, `twins` counts such kernels."""
    added = _copied(slot for slot in plan.slots if slot.engine is Engine.COPY) / coefficients.bytes_per_us
    # The plain call launches neither the copies that the graph makes of slots nor what writes its table.
    ours = sum(_copies(slot) for slot in plan.slots if slot.engine is Engine.COPY and slot.bindings) + _tables(plan)
    nodes = sum(kind != "empty" for kind in kinds)
    launches = nodes - ours
    inputs = sum(not slot.is_output for slot in plan.slots)
    plainly = A_CALL + A_LAUNCH * launches + AN_INPUT * inputs
    expected = [_of_graph(plan, nodes, twins, coefficients), Expected(Variant.PLAIN, plainly, 0.0)]
    if any(slot.engine is not Engine.COPY for slot in plan.slots):
        nodes = launches + sum(map(_copies, plan.slots))
        expected.insert(1, replace(_of_graph(_all_copied(plan), nodes, 0, coefficients), variant=Variant.COPY))
    most = MOST_A_CALL + MOST_A_LAUNCH * launches + MOST_AN_INPUT * inputs
    return Prediction(added, most if launches else 0.0, tuple(expected))


def _all_copied(plan: Plan) -> Plan:
    """The same slots, all of them copied, each by nodes of its own."""
    fresh = itertools.count(1)
    return replace(
        plan,
        slots=tuple(
            replace(slot, engine=Engine.COPY, bindings=_nodes(-next(fresh) for _ in range(_copies(slot))))
            for slot in plan.slots
        ),
    )


def _nodes(numbers: Iterable[int]) -> tuple[Binding, ...]:
    return tuple(Binding(number, 0, 0, 0) for number in numbers)


def _of_graph(plan: Plan, nodes: int, twins: int, c: Coefficients) -> Expected:
    """A replay whose slots have all moved that are expected to."""
    told = [slot for slot in plan.slots if slot.engine is not Engine.STATIC]
    updated = len({binding.node for slot in told for binding in slot.bindings})
    copied = [slot for slot in told if slot.engine is Engine.COPY]
    staged = [slot for slot in copied if not slot.bindings]  # by Python; the others are copied by nodes of the graph
    host = A_REPLAY + A_NODE * nodes + A_SLOT * len(plan.slots) + AN_OUTPUT * len(plan.allocations)
    host += c.node_update * updated
    if staged:
        host += c.python_replay + A_COPY * sum(map(_copies, staged))
    added = c.table_node * _tables(plan) + c.indirect_load * twins
    added += c.copy_launch * sum(map(_copies, copied)) + _copied(copied) / c.bytes_per_us
    return Expected(Variant.GRAPH, host, added)


def _tables(plan: Plan) -> int:
    """The nodes that write addresses for twins."""
    return -(-sum(slot.engine is Engine.INDIRECT for slot in plan.slots) // PER_TABLE_NODE)


def _copies(slot: Slot) -> int:
    return 2 if slot.written and not slot.is_output else 1


def _copied(staged: Iterable[Slot]) -> int:
    """Bytes that are copied for these slots, both ways where they are written."""
    return sum(slot.layout.span * _copies(slot) for slot in staged)
