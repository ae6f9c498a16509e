"""What happened to each compiled function and why, as plain data.

Recording and replay write here (a counter or a reason, never more); `report()`, the command line and the demo read.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

LOGGER = logging.getLogger("pygraph_inductor")
LIMIT = 10_000  # functions remembered; a server that compiles for weeks must not grow without bound


@dataclass
class RecordingFacts:
    """One recording of a function: what was captured, and how often it served."""

    key: str
    nodes: dict[str, int]  # node kind -> count
    kernels: int
    slots: dict[str, int]  # engine -> count
    bindings: int
    bytes_borrowed: int  # bytes of input slots that stock CUDA graphs would copy on every replay
    bytes_kept: int = 0  # bytes of activations whose tensors may serve the next call again
    replays: int = 0
    updates: int = 0  # nodes rewritten so far
    staged: int = 0  # slots copied through a staging buffer so far
    verdict: str = "unverified"
    twins: int = 0  # kernels of the graph that find slots through a table
    # Engine -> predicted µs a call if all slots had it that can; "chosen" is the plan's.
    engine_costs: dict[str, float] = field(default_factory=dict)
    why: str = ""  # the plan is what it is
    # Slots with the most consumers -> their engine, and what each would cost on its own.
    slot_costs: dict[str, dict[str, Any]] = field(default_factory=dict)
    without_twins: dict[str, str] = field(default_factory=dict)  # kernel -> why it is given addresses themselves


@dataclass
class VariantFacts:
    """What timing calls said about one way to answer them; medians, and the median distance from them."""

    name: str
    rounds: int
    host_us: float
    device_us: float
    cost_us: float
    spread_us: float  # of the cost


@dataclass
class ExpectedFacts:
    """What the cost model expected of one way to answer calls, before any was timed."""

    name: str
    host_us: float
    added_us: float  # to the device's work, beyond the kernels that all variants run


@dataclass
class DecisionFacts:
    """Whether calls of one size class come from a graph, and why."""

    sizes: str
    chosen: str = ""  # a variant's name; empty while it is measured
    reason: str = "being measured"
    origin: str = ""  # "measured", "stored", "pinned", "predicted", "not measured"
    variants: list[VariantFacts] = field(default_factory=list)
    digest: str = ""  # by which pygraph_inductor.decisions knows it; empty if it is not kept
    examinations: int = 0  # how often it was measured again because calls had come to cost something else
    expected: list[ExpectedFacts] = field(default_factory=list)  # empty if nothing was recorded
    plain_host_at_most_us: float | None = None  # the model's bound, by which graphs are ruled out unmeasured


@dataclass
class FunctionFacts:
    """One callable that was handed to us: a graph, its forward or backward, or a partition of it."""

    name: str
    kind: str
    source: str
    device: str
    calls: int = 0
    plain_calls: int = 0
    replays: int = 0
    recordings: list[RecordingFacts] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)  # why calls were plain, each once
    retired: int = 0  # recordings given up
    decisions: list[DecisionFacts] = field(default_factory=list)  # one per size class
    spent_ms: float = 0.0  # on recordings and on measuring them
    saved_ms: float = 0.0  # by replays, as far as it is known what one saves
    calls_until_recorded: int = 2  # of one shape; more where recordings have not paid so far

    @property
    def verdict(self) -> str:
        """How the function ended up being called, in a few words."""
        if self.decisions and not self.recordings and self.decisions[-1].chosen == "plain":
            return f"plain: {self.decisions[-1].reason}"
        if self.replays:
            return "replayed"
        if self.recordings:
            return "recorded"
        if self.reasons:
            return f"plain: {self.reasons[0]}"
        return "not called twice"

    def add_reason(self, reason: str) -> None:
        """Remember why a call was plain; a reason heard before is not repeated."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def copied(self) -> FunctionFacts:
        """The facts as they are now, untouched by later calls."""
        recordings = [
            dataclasses.replace(one, nodes=dict(one.nodes), slots=dict(one.slots)) for one in list(self.recordings)
        ]
        decisions = [
            dataclasses.replace(
                one, variants=[dataclasses.replace(variant) for variant in one.variants], expected=list(one.expected)
            )
            for one in list(self.decisions)
        ]
        return dataclasses.replace(self, recordings=recordings, reasons=list(self.reasons), decisions=decisions)

    def to_dict(self) -> dict[str, Any]:
        """The facts as JSON-able data, verdict included."""
        return {**dataclasses.asdict(self), "verdict": self.verdict}


@dataclass
class GraphFacts:
    """One compiled graph: in how many pieces, what was rewritten to keep it whole, and where it is cut and why."""

    name: str
    source: str
    pieces: int
    kernels: tuple[int, int] | None  # that can be in graphs, and all; None if it is not known
    rewrites: list[str]  # applied, or "not done" and why
    cuts: list[str]


@dataclass
class Report:
    """The answer of `pygraph_inductor.report()`."""

    functions: list[FunctionFacts]
    installed: dict[str, Any]  # seam or fact -> value
    declined: list[str]  # contexts left to stock PyTorch, one line each
    graphs: list[GraphFacts] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able data."""
        return {
            "functions": [function.to_dict() for function in self.functions],
            "installed": dict(self.installed),
            "declined": list(self.declined),
            "graphs": [dataclasses.asdict(graph) for graph in self.graphs],
        }

    def __str__(self) -> str:
        from pygraph_inductor.reporting import table  # rich is slow to import, and importing us must not be

        return table.report_text(self)


class Named(Protocol):
    """What a warning needs to say which graph it is about."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...


_lock = threading.RLock()  # finalizers and signal handlers come here, too
_functions: deque[tuple[FunctionFacts, weakref.WeakMethod[Any] | None]] = deque(maxlen=LIMIT)
_graphs: deque[GraphFacts] = deque(maxlen=LIMIT)
_warned: dict[tuple[str, str, str], None] = {}  # insertion-ordered, so that the oldest can be forgotten


def register(function: FunctionFacts, refresh: Callable[[], None] | None = None) -> FunctionFacts:
    """Include a function in every later report; returns it.

    `refresh`, a method held weakly, is called before the facts are read: counters kept elsewhere are brought along.
    """
    with _lock:
        _functions.append((function, weakref.WeakMethod(refresh) if refresh is not None else None))
    return function


def register_graph(graph: GraphFacts) -> None:
    """Include a compiled graph in every later report."""
    with _lock:
        _graphs.append(graph)


def graphs() -> list[GraphFacts]:
    """All registered graphs, oldest first."""
    with _lock:
        return list(_graphs)


def forget(function: FunctionFacts) -> None:
    """Leave a function out of later reports: it was none of the user's."""
    with _lock:
        kept = [entry for entry in _functions if entry[0] is not function]
        _functions.clear()
        _functions.extend(kept)


def snapshot() -> list[FunctionFacts]:
    """Copies of the facts of all registered functions, oldest first."""
    with _lock:
        functions = list(_functions)
    for _, method in functions:
        if method is not None and (refresh := method()) is not None:
            refresh()
    return [function.copied() for function, _ in functions]


def clear() -> None:
    """Forget every function, and which warnings were given."""
    with _lock:
        _functions.clear()
        _graphs.clear()
        _warned.clear()


def warn_once(facts: Named, what_happened: str, what_we_did: str, knob: str = "") -> bool:
    """Log one warning per graph and event; says whether it was logged.

    `knob` names what the user can change about it, empty if nothing.
    """
    key = (facts.name, facts.source, what_happened)
    with _lock:
        if key in _warned:
            return False
        _warned[key] = None
        if len(_warned) > LIMIT:
            del _warned[next(iter(_warned))]
    where = f"{facts.name} ({facts.source})" if facts.source else facts.name
    advice = f" To change this: {knob}." if knob else ""
    LOGGER.warning("%s: %s; %s.%s", where, what_happened.rstrip("."), what_we_did.rstrip("."), advice)
    return True


def _fresh_lock() -> None:
    global _lock
    _lock = threading.RLock()


# Another thread may hold the lock at the moment of a fork; in the child nobody would ever release it.
os.register_at_fork(after_in_child=_fresh_lock)
