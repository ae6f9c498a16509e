"""A machine whose coefficients are known, in place of a device on which cases take turns.

It is disturbed as real ones are: some milliseconds at a time it is slower, single calls take much longer, all scatter.
"""

from __future__ import annotations

import random
from typing import Any

from pygraph_inductor.selection.cost_model import COPY, INDIRECT, Coefficients
from pygraph_inductor.selection.probing import Case, Turns, _Taking

KERNEL = 1.02  # µs, of each kernel in a chain
LAUNCH = 8.0
ANYTHING_MOVED = 0.4


class Machine(Turns):
    """`truth`: its coefficients. `noise`: 0 for none."""

    def __init__(self, truth: Coefficients, noise: float = 1.0, seed: int = 0) -> None:
        super().__init__(driver=None)  # type: ignore[arg-type]
        self._truth = truth
        self._noise = noise
        self._random = random.Random(seed)
        self._slow = 0.0

    def add(self, case: Case) -> None:
        self._taking.setdefault(case, _Taking(lambda inputs: None, [[self.latency(case)]]))

    def round(self) -> None:
        if self.rounds % 5 == 0:
            self._slow = self._random.choice([0.0, 0.0, 6.0]) * self._noise
        super().round()

    def _timed(self, one: _Taking) -> float:
        disturbed = self._random.gauss(0.0, 0.3) + (self._random.random() < 0.1) * self._random.uniform(5, 50)
        return one.sets[0][0] + self._slow + self._noise * disturbed

    def latency(self, case: Case) -> float:
        """What a call takes, undisturbed."""
        c = self._truth
        nodes = case.kernels * case.slots
        time = LAUNCH + KERNEL * nodes + (ANYTHING_MOVED if case.moving else 0.0)
        if not case.native:
            time += c.python_replay
        if case.engine == COPY:
            told = c.node_update if case.moving else 0.0
            return time + case.slots * (c.copy_launch + told + 4 * case.size / c.bytes_per_us)
        if case.engine == INDIRECT:
            return time + c.table_node + c.indirect_load * nodes + (c.table_update if case.moving else 0.0)
        return time + (c.node_update * nodes if case.moving else 0.0)


def made(truth: Coefficients, noise: float = 1.0, seen: list[Machine] | None = None) -> Any:
    """What to call in place of `Turns`. `seen`: the machines that were made."""

    def make(driver: Any) -> Machine:
        machine = Machine(truth, noise)
        if seen is not None:
            seen.append(machine)
        return machine

    return make
