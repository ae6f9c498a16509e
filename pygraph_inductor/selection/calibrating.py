"""Measures the cost model's coefficients: differences between cases that take turns (`probing.py`).

Each is measured where it is large beside what disturbs a measurement (an update over many nodes, a copy over many
copies), at several counts, and apart from the points at which `scripts/bench/engines.py` holds the model against
measurements.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from pygraph_inductor.driver.protocol import Driver
from pygraph_inductor.selection.cost_model import COPY, INDIRECT, PATCH, Coefficients
from pygraph_inductor.selection.probing import SMALL, Case, Turns

COUNTS = (12, 48, 96, 224)  # kernels that use one input
MANY = 48  # of them, and more, show what an update costs
COPIED = (5, 15, 45)  # inputs that are copied,
EACH = 3  # each of which is used by so many kernels
LARGE = (12 << 20, 48 << 20)  # elements of an input that is copied, 4 bytes each
ROUNDS = 50
_LEAST = 0.001  # µs: below it a difference is noise


def measure(driver: Driver, rounds: int = ROUNDS) -> Coefficients:
    """Coefficients of a device; takes seconds. The device should be idle, the process single-threaded."""
    with driver.guard(), Turns(driver) as turns:
        for case in cases():
            turns.add(case)
        for _ in range(rounds):
            turns.round()
        return fitted(turns)


def cases() -> list[Case]:
    """What is measured."""
    few = COUNTS[0]
    found = [Case(engine, n, moving=moving) for n in COUNTS for engine in (PATCH, INDIRECT) for moving in (False, True)]
    found += [case for slots in COPIED for case in _copies(slots)]
    found += [Case(COPY, few, size=size) for size in (SMALL, *LARGE)]
    return [*found, Case(PATCH, few, native=False)]


def _copies(slots: int) -> tuple[Case, Case, Case]:
    """Inputs that stay, inputs that move, and inputs that move and are copied."""
    still = Case(PATCH, EACH, slots)
    return still, Case(PATCH, EACH, slots, moving=True), Case(COPY, EACH, slots, moving=True)


def fitted(turns: Turns) -> Coefficients:
    """The coefficients behind the times of all cases."""

    def longer(case: Case, other: Case) -> float:
        return statistics.median(turns.differences(case, other))

    few = COUNTS[0]
    updates, loads, refreshes, copies = [], [], [], []
    for n in COUNTS:
        direct, table = Case(PATCH, n), Case(INDIRECT, n)
        if n >= MANY:
            updates.append(longer(Case(PATCH, n, moving=True), direct) / n)
        loads.append((float(n), longer(table, direct)))
        refreshes.append(longer(Case(INDIRECT, n, moving=True), table))
    for slots in COPIED:
        still, moved, copied = _copies(slots)
        if slots * EACH >= MANY:
            updates.append(longer(moved, still) / (slots * EACH))
        copies.append((float(slots), longer(copied, still)))
    sizes = [(4.0 * size, longer(Case(COPY, few, size=size), Case(COPY, few))) for size in (SMALL, *LARGE)]
    update = max(statistics.median(updates), _LEAST)
    load, table_node = line(loads)
    a_byte, _ = line(sizes)
    a_copy, _ = line(copies)  # which is told where its input is
    return Coefficients(
        node_update=update,
        table_update=max(statistics.median(refreshes), _LEAST),
        table_node=max(table_node, _LEAST),
        indirect_load=max(load, _LEAST),
        copy_launch=max(a_copy - update - 4 * SMALL * max(a_byte, 0.0), _LEAST),
        bytes_per_us=1 / max(a_byte, 1e-9),
        python_replay=max(longer(Case(PATCH, few, native=False), Case(PATCH, few)), _LEAST),
    )


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and intercept: medians, of the slopes between any two points, and of what is left at each.

    One point that is wrong does not move them far, where it would a fit of least squares.
    """
    slope = statistics.median((d - b) / (c - a) for (a, b), (c, d) in itertools.combinations(points, 2))
    return slope, statistics.median(y - slope * x for x, y in points)
