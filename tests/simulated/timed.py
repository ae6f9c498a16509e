"""Recorded functions on a device whose clock tests set: what a plain call and a replay cost is what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pygraph_inductor.driver.protocol import Timing
from pygraph_inductor.driver.simulated import SimulatedDriver, SimulatedGraph
from pygraph_inductor.recording import function
from tests.simulated.hand_written import HandWritten

US = 1000


@dataclass
class Clock:
    """Two clocks that only move when told. `plain`, `graph` and `copy` are what a call costs, (host, device) in ns."""

    plain: tuple[int, int] = (100 * US, 100 * US)
    graph: tuple[int, int] = (100 * US, 100 * US)
    copy: tuple[int, int] = (100 * US, 100 * US)  # a replay of a graph in `copying`
    copying: set[Any] = field(default_factory=set)
    behind: bool = False
    in_flight: bool = False  # the device finishes nothing for now
    host: int = 0
    device: int = 0
    started: int = 0
    executions: list[str] = field(default_factory=list)

    def spend(self, kind: str) -> None:
        host, device = getattr(self, kind)
        self.host += host
        self.device += device
        self.executions.append(kind)

    def stopwatch(self) -> Watch:
        return Watch(self)


def spending(clock: Clock) -> Callable[[SimulatedGraph], None]:
    """`SimulatedGraph.replay`, as it moves a clock."""
    replay = SimulatedGraph.replay

    def replayed(self: SimulatedGraph) -> None:
        clock.spend("copy" if self in clock.copying else "graph")
        replay(self)

    return replayed


class Watch:
    """A stopwatch that reads a `Clock`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.taken: Timing | None = None

    def start(self) -> None:
        self.clock.started += 1
        self.began = (self.clock.host, self.clock.device)

    def stop(self) -> None:
        clock = self.clock
        self.taken = Timing(clock.host - self.began[0], clock.device - self.began[1], clock.behind)

    def read(self) -> Timing | None:
        assert self.taken is not None, "read before it was stopped"
        return None if self.clock.in_flight else self.taken


class Timed(HandWritten):
    """A hand-written function whose calls take time on `clock`."""

    def __init__(self, body: Any, clock: Clock, driver: SimulatedDriver | None = None, **facts: Any) -> None:
        self.clock = clock
        driver = driver or SimulatedDriver()
        driver.clock = clock.stopwatch
        super().__init__(body, driver, **facts)

    def price(self, monkeypatch: pytest.MonkeyPatch, ns: int) -> None:
        """From now on an attempt to record takes so long, for all functions; this one's time is that of `clock`."""
        record = function.record

        def priced(request: Any) -> Any:
            self.clock.host += ns
            self.clock.executions.append("recording")
            return record(request)

        monkeypatch.setattr(function, "record", priced)
        self.function._allowance.clock = lambda: self.clock.host

    def run(self, inputs: list[Any]) -> Any:
        self.clock.spend("plain")
        return super().run(inputs)

    @property
    def decision(self) -> Any:
        return self.log.decisions[-1]
