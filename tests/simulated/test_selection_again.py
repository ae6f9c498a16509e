"""Decisions that are looked at again when calls come to cost something else, and only then."""

from __future__ import annotations

import pytest

from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.selection import drift, selector
from pygraph_inductor.settings import Settings
from tests.simulated.deciding import WRITES, body, calls, until_decided
from tests.simulated.timed import US, Clock, Timed


@pytest.mark.parametrize("native_", [True, False])
@pytest.mark.parametrize("first", ["graph", "plain"])
def test_choice_is_taken_again_when_calls_come_to_cost_something_else(
    clock: Clock, often: None, first: str, native_: bool
) -> None:
    other = "plain" if first == "graph" else "graph"
    setattr(clock, first, (100 * US, 100 * US))
    setattr(clock, other, (300 * US, 300 * US))
    function = Timed(body, clock, native=native_, **WRITES)
    until_decided(function)
    assert function.decision.chosen == first
    setattr(clock, first, (2000 * US, 2000 * US))
    calls(function, 150)
    assert function.decision.chosen == other and function.decision.examinations == 1
    assert set(calls(function, 20)) == {other}


def test_choice_stays_while_calls_cost_what_they_did(clock: Clock, often: None) -> None:
    clock.plain = (300 * US, 300 * US)
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    clock.graph = (140 * US, 140 * US)
    assert set(calls(function, 200)) == {"graph"} and function.decision.examinations == 0


def test_small_advantage_does_not_overturn_an_earlier_choice(clock: Clock, often: None) -> None:
    clock.plain, clock.graph, clock.behind = (100 * US, 100 * US), (300 * US, 300 * US), True
    function = Timed(body, clock, settings=Settings(min_gain=0.1), **WRITES)
    until_decided(function)
    assert function.decision.chosen == "plain"
    clock.plain, clock.graph = (1000 * US, 1000 * US), (850 * US, 850 * US)  # enough for a first choice
    calls(function, 150)
    assert function.decision.examinations >= 1 and function.decision.chosen == "plain"


def test_examinations_become_rarer(clock: Clock) -> None:
    watches = [drift.Watch(SimulatedDriver(), "auto", 1.0, number) for number in range(3)]
    assert [one.every for one in watches] == [1024, 4096, 16384]


def test_ranks_that_appear_later_leave_decisions_as_they_are(
    clock: Clock, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.graph = (900 * US, 900 * US)
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    monkeypatch.setattr(selector, "_ranks", lambda: 2)
    clock.plain = (5000 * US, 5000 * US)
    assert set(calls(function, 100)) == {"plain"} and function.decision.examinations == 0


def test_one_call_in_many_is_timed_and_no_other(clock: Clock, often: None) -> None:
    clock.plain = (900 * US, 900 * US)
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    timed = clock.started
    calls(function, 80)
    assert clock.started - timed in (9, 10), "one in eight"
