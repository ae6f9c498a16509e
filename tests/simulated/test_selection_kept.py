"""What is decided once: for a class of sizes, for later processes, by hand, for other knobs; and a store that fails."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest

from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.selection import calibration, selector
from pygraph_inductor.selection.cost_model import Coefficients
from pygraph_inductor.settings import Settings
from tests.simulated.deciding import WRITES, body, calls, of_size, sized_call, stored, until_decided
from tests.simulated.timed import US, Clock, Timed


@pytest.mark.parametrize("slow", ["plain", "graph"])
def test_sizes_of_one_class_share_a_decision(clock: Clock, slow: str) -> None:
    setattr(clock, slow, (300 * US, 300 * US))
    chosen = "plain" if slow == "graph" else "graph"
    function = Timed(of_size, clock)
    for _ in range(20):
        sized_call(function, 100)
    assert function.decision.chosen == chosen
    timed = clock.started
    second = "recording" if chosen == "graph" else "plain"
    assert [sized_call(function, 120) for _ in range(4)] == ["plain", second, chosen, chosen]
    assert clock.started == timed and len(function.log.decisions) == 1
    for _ in range(20):
        sized_call(function, 1000)
    assert clock.started > timed and len(function.log.decisions) == 2


def test_size_that_does_not_pay_leaves_other_sizes_alone(clock: Clock) -> None:
    function = Timed(of_size, clock)
    clock.graph = (300 * US, 300 * US)
    for _ in range(20):
        sized_call(function, 5)
    clock.plain, clock.graph = clock.graph, clock.plain
    for _ in range(20):
        sized_call(function, 5000)
    assert [one.chosen for one in function.log.decisions] == ["plain", "graph"]
    assert [sized_call(function, size) for size in (5, 5000, 5, 5000)] == ["plain", "graph"] * 2


@pytest.mark.parametrize("slow", ["plain", "graph"])
def test_warm_start_measures_nothing(clock: Clock, tmp_path: Any, slow: str) -> None:
    setattr(clock, slow, (300 * US, 300 * US))
    chosen = "plain" if slow == "graph" else "graph"
    until_decided(Timed(body, clock, **stored(tmp_path)))
    timed = clock.started
    again = Timed(body, clock, **stored(tmp_path))
    made = calls(again, 6)
    assert clock.started == timed
    assert again.decision.origin == "stored" and again.decision.chosen == chosen
    assert made[1:] == ["plain"] * 5 if chosen == "plain" else ["recording", *["graph"] * 4]
    another = Timed(body, clock, **stored(tmp_path, "another graph"))
    calls(another, 6)
    assert clock.started > timed


@pytest.mark.parametrize("slow", ["plain", "graph"])
def test_warm_start_decides_in_under_a_millisecond(clock: Clock, tmp_path: Any, slow: str) -> None:
    """The median over many functions that ask for the first time: machines that run tests are busy."""
    setattr(clock, slow, (300 * US, 300 * US))
    facts = stored(tmp_path)
    first = Timed(body, clock, **facts)
    until_decided(first)
    [key] = {entry[0] for entry in first.function._entries}
    took = []
    for _ in range(50):
        fresh = Timed(body, clock, **facts).function._selector
        started = time.perf_counter_ns()
        choice = fresh.known(key)
        took.append(time.perf_counter_ns() - started)
        assert choice is not None and choice.origin == "stored" and choice.is_plain is (slow == "graph")
    assert statistics.median(took) < 1_000_000, f"{statistics.median(took) / 1e3:.0f} µs"


def test_device_and_versions_are_looked_up_while_compiling_and_only_where_decisions_are_kept(
    clock: Clock, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(selector, "_versions", lambda: looked.append("versions") or {"torch": ""})
    monkeypatch.setattr(SimulatedDriver, "identity", lambda driver: looked.append("device") or {"device": ""})
    Timed(body, clock, **WRITES)
    assert not looked
    Timed(body, clock, **stored(tmp_path))
    assert set(looked) == {"versions", "device"}


def test_pinned_choice_is_followed_and_not_replaced(clock: Clock, tmp_path: Any) -> None:
    clock.plain = (300 * US, 300 * US)
    facts = stored(tmp_path)
    first = Timed(body, clock, **facts)
    until_decided(first)
    store = first.function._selector._store()
    [(digest, kept)] = store.all()
    assert digest == first.decision.digest
    assert store.write(type(kept)(kept.key, kept.name, "plain", "pinned by the user", pinned=True))
    second = Timed(body, clock, **facts)
    assert set(calls(second, 6)) == {"plain"} and second.decision.origin == "pinned"
    assert not store.write(kept), "what is measured does not replace it"


@pytest.mark.parametrize(
    "knob", [{"objective": "latency"}, {"min_gain": 0.5}, {"engine": "patch"}, {"max_kept_bytes": 0}]
)
def test_decision_for_other_knobs_does_not_count(clock: Clock, tmp_path: Any, knob: dict[str, Any]) -> None:
    until_decided(Timed(body, clock, **stored(tmp_path)))
    timed = clock.started
    calls(Timed(body, clock, settings=Settings(**knob), **stored(tmp_path)), 6)
    assert clock.started > timed


def test_decision_about_a_plan_by_other_coefficients_does_not_count(clock: Clock, tmp_path: Any) -> None:
    """`pygraph calibrate` may have changed what the graph does; not where every tensor has the same engine anyway."""
    for engine, again in (("patch", False), ("auto", True)):
        facts = stored(tmp_path, graph=engine) | {"settings": Settings(engine=engine)}
        function = Timed(body, clock, **facts)
        until_decided(function)
        timed = clock.started
        calibration.write(function.driver, facts["decisions_folder"], Coefficients(node_update=7.0 + again))
        calls(Timed(body, clock, **facts), 6)
        assert (clock.started > timed) is again


def test_store_that_cannot_be_used_costs_one_warning_and_no_call(clock: Clock, tmp_path: Any, caplog: Any) -> None:
    (tmp_path / "decisions").write_text("a file where the folder should be")
    clock.plain = (300 * US, 300 * US)
    for graph in ("one", "two"):
        function = Timed(body, clock, **stored(tmp_path, graph))
        until_decided(function)
        assert function.decision.chosen == "graph"
    assert len([one for one in caplog.records if "decisions in" in one.getMessage()]) == 1
