"""Choosing between graph and plain call: every call is answered once and right whatever is chosen, and each can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pygraph_inductor import report, settings
from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.recording.inputs import Refusal
from pygraph_inductor.reporting.table import variant_rows
from pygraph_inductor.selection import prediction, selector
from pygraph_inductor.selection.measuring import MAX_ROUNDS
from pygraph_inductor.settings import Settings
from tests.launching import needs_launcher
from tests.simulated.deciding import (
    WRITES,
    body,
    called_by_threads,
    calls,
    checked_call,
    front_holds,
    inputs,
    of_size,
    sized_call,
    stored,
    until_decided,
)
from tests.simulated.hand_written import contents
from tests.simulated.timed import US, Clock, Timed


@pytest.mark.parametrize("native_", [True, False])
@pytest.mark.parametrize("slow", ["plain", "graph"])
def test_slower_variant_loses_whichever_it_is(clock: Clock, slow: str, native_: bool) -> None:
    setattr(clock, slow, (300 * US, 300 * US))
    function = Timed(body, clock, native=native_, **WRITES)
    kept: list[Any] = []
    made = [checked_call(function, kept) for _ in range(40)]
    chosen = "plain" if slow == "graph" else "graph"
    assert function.decision.chosen == chosen and function.decision.origin == "measured"
    assert made[:2] == ["plain", "recording"]
    assert {*made[2:10]} == {"plain", "graph"}, "both variants answered calls while it was measured"
    assert {*made[14:]} == {chosen}, "a clear answer takes few calls"
    for tensors, then in kept:
        assert all(torch.equal(contents(now), before) for now, before in zip(tensors, then, strict=True))


def test_each_variant_is_timed_at_least_three_times_and_the_table_shows_it(clock: Clock) -> None:
    clock.plain = (250 * US, 240 * US)
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    table = {one.name: one for one in function.decision.variants}
    assert set(table) == {"plain", "graph"} and all(one.rounds >= 3 for one in table.values())
    assert (table["plain"].host_us, table["plain"].device_us, table["plain"].cost_us) == (250, 240, 250)


def test_what_the_model_expected_is_reported_beside_what_was_measured(clock: Clock) -> None:
    clock.plain = (250 * US, 240 * US)
    function = Timed(body, clock, **WRITES)
    calls(function, 4)
    expected = {one.name: one for one in function.decision.expected}
    assert set(expected) == {"plain", "copy", "graph"}, "it is there before anything is decided"
    assert 0 < expected["graph"].host_us < expected["plain"].host_us < function.decision.plain_host_at_most_us
    until_decided(function)
    row = variant_rows(function.decision)
    assert [cells[0] for cells in row] == ["graph", "plain", "copy"], "the last one was not worth measuring"
    plain = row[1]
    assert (plain[2], plain[3]) == ("250.0", f"{expected['plain'].host_us:.1f}")
    text = str(report())
    assert "expected" in text and "250.0" in text and plain[3] in text


def test_choice_without_a_measurement_shows_what_was_expected(clock: Clock) -> None:
    function = Timed(body, clock, **WRITES)
    function.driver.clock = None
    calls(function, 4)
    rows = variant_rows(function.decision)
    assert [cells[0] for cells in rows] == ["graph", "copy", "plain"] and all(
        cells[2] == "-" != cells[3] for cells in rows
    )


@needs_launcher("it is what stands in front")
def test_while_measuring_the_launcher_is_not_in_front_and_afterwards_it_is(clock: Clock) -> None:
    clock.plain = (300 * US, 300 * US)
    function = Timed(body, clock, **WRITES)
    calls(function, 4)
    assert function.recordings and not front_holds(function)
    until_decided(function)
    assert front_holds(function)
    [recording] = function.recordings
    timed, by_c = clock.started, recording.launcher.counts()[0]
    assert calls(function, 20) == ["graph"] * 20
    assert clock.started == timed, "nothing is timed after the decision"
    assert recording.launcher.counts()[0] == by_c + 20, "all of them by the launcher in C"


@needs_launcher("its replays are counted")
def test_measured_replays_are_those_of_the_launcher(clock: Clock) -> None:
    function = Timed(body, clock, **WRITES)
    made = calls(function, 12)
    [recording] = function.recordings
    assert recording.measurement is not None
    assert recording.launcher.counts()[0] == made.count("graph") > 0


@needs_launcher("it is what would stand in front")
def test_replay_in_python_puts_no_launcher_in_front_while_it_is_measured(clock: Clock) -> None:
    clock.plain = (101 * US, 101 * US)
    function = Timed(body, clock, **WRITES)
    calls(function, 3)
    [recording] = function.recordings
    replays = recording.python_replays
    for _ in range(6):
        less_aligned = torch.randn(7)[1:]
        function(less_aligned, torch.randn(6))
        assert recording.measurement is not None and not front_holds(function)
    assert recording.python_replays > replays, "the launcher took none of them"


def test_plain_choice_frees_the_graph_and_says_why(clock: Clock) -> None:
    clock.graph = (300 * US, 300 * US)
    driver = SimulatedDriver()
    function = Timed(body, clock, driver, **WRITES)
    calls(function, 3)
    [recording] = function.recordings
    until_decided(function)
    assert recording.closed and recording.graph.closed and not function.recordings
    assert recording.pool._handle.ranges() == []
    assert "slower" in function.log.verdict and function.log.verdict.startswith("plain:")
    assert "300.0 µs" in function.decision.reason
    assert function.log.calls == function.log.plain_calls + function.log.replays


def test_no_gain_keeps_no_graph(clock: Clock) -> None:
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    assert function.decision.chosen == "plain" and "min_gain" in function.decision.reason


def test_measuring_may_cost_a_part_of_what_compiling_took(clock: Clock) -> None:
    """Once: the next kind of call has only its recording to go by."""

    def until(function: Timed, size: int) -> int:
        before = len(function.log.decisions)
        made = 0
        while len(function.log.decisions) == before or not function.decision.chosen:
            spent = (60, 100, 140)[clock.executions.count("graph") % 3]
            clock.graph = (spent * 10**8, spent * 10**8)  # seconds, about as often less than the plain call as more
            sized_call(function, size)
            made += 1
            assert made < 100, "no decision"
        return made

    clock.plain = (104 * 10**8, 104 * 10**8)
    compiled, loaded = Timed(of_size, clock, compile_ns=10**18), Timed(of_size, clock)
    first, second = until(compiled, 5), until(compiled, 5000)
    assert first > 2 * MAX_ROUNDS > 20 > second
    assert until(loaded, 5) == second


def test_host_time_alone_does_not_win_while_the_device_is_the_bottleneck(clock: Clock) -> None:
    clock.plain, clock.graph, clock.behind = (90 * US, 1000 * US), (5 * US, 1000 * US), True
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    assert function.decision.chosen == "plain"


def test_host_time_wins_a_tie_where_the_device_waits_for_the_host(clock: Clock) -> None:
    clock.plain, clock.graph = (90 * US, 100 * US), (5 * US, 100 * US)
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    assert function.decision.chosen == "graph" and "host" in function.decision.reason


@pytest.mark.parametrize("objective, chosen", [("latency", "graph"), ("throughput", "plain"), ("auto", "plain")])
def test_objective_decides_what_counts(clock: Clock, objective: str, chosen: str) -> None:
    """In flight the host's time hides behind the device's; one call at a time it does not."""
    clock.plain, clock.graph, clock.behind = (90 * US, 100 * US), (5 * US, 100 * US), True
    function = Timed(body, clock, settings=Settings(objective=objective), **WRITES)
    until_decided(function)
    assert function.decision.chosen == chosen


def test_min_gain_is_what_a_graph_has_to_save(clock: Clock) -> None:
    clock.plain, clock.graph, clock.behind = (100 * US, 100 * US), (80 * US, 80 * US), True
    for min_gain, chosen in ((0.1, "graph"), (0.3, "plain")):
        function = Timed(body, clock, settings=Settings(min_gain=min_gain), **WRITES)
        until_decided(function)
        assert function.decision.chosen == chosen


def test_switched_off_it_times_nothing(clock: Clock) -> None:
    clock.graph = (900 * US, 900 * US)
    function = Timed(body, clock, settings=Settings(selection=False), **WRITES)
    assert calls(function, 20)[2:] == ["graph"] * 18
    assert clock.started == 0 and not function.log.decisions


def test_device_without_a_clock_uses_its_graphs(clock: Clock) -> None:
    function = Timed(body, clock, **WRITES)
    function.driver.clock = None
    assert calls(function, 6)[2:] == ["graph"] * 4
    assert function.decision.chosen == "graph" and function.decision.origin == "not measured"


def test_calls_in_flight_are_answered_and_never_waited_for(clock: Clock) -> None:
    clock.plain, clock.in_flight = (300 * US, 300 * US), True
    function = Timed(body, clock, **WRITES)
    calls(function, 3 * MAX_ROUNDS)
    assert function.decision.chosen == "", "nothing was read, so nothing is decided"
    assert clock.started <= 2 * (MAX_ROUNDS + 1), "no heap of stopwatches grows"
    clock.in_flight = False
    calls(function, 2)
    assert function.decision.chosen == "graph"


def test_exception_of_a_measured_call_passes_and_measuring_goes_on(clock: Clock) -> None:
    class Broken(RuntimeError):
        pass

    fail = [False]

    def fails(namespace: dict[str, Any], a: Any, b: Any) -> Any:
        if fail[0]:
            raise Broken
        return body(namespace, a, b)

    clock.plain = (300 * US, 300 * US)
    function = Timed(fails, clock, **WRITES)
    calls(function, 4)
    fail[0] = True
    raised = 0
    for _ in range(6 * MAX_ROUNDS):
        try:
            function(*inputs())
        except Broken:
            raised += 1
    fail[0] = False
    assert raised, "plain calls were among them"
    until_decided(function)
    assert function.decision.chosen == "graph"


def test_stopwatch_that_fails_costs_no_answer(clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    from tests.simulated import timed

    for name in ("start", "stop", "read"):
        function = Timed(body, clock, name=f"broken {name}", **WRITES)
        calls(function, 3)

        def broken(self: Any) -> None:
            raise RuntimeError("the device has an error")

        with monkeypatch.context() as patch:
            patch.setattr(timed.Watch, name, broken)
            calls(function, 6)


def test_threads_that_call_while_it_is_measured_get_their_own_answers(clock: Clock) -> None:
    clock.plain = (300 * US, 300 * US)

    function = called_by_threads(clock, calls=30)
    assert function.log.replays and function.log.plain_calls


def test_graphs_beyond_the_memory_they_may_take_are_given_up(clock: Clock) -> None:
    def large(namespace: dict[str, Any], a: Any, b: Any) -> Any:
        middle = namespace["empty_strided_cpu"]((1 << 20,), (1,), torch.float32)
        namespace["cpp_fused_0"](middle, a)
        out = namespace["empty_strided_cpu"]((6,), (1,), torch.float32)
        namespace["cpp_fused_0"](out, middle, b)
        return (out,)

    for limit, replays in ((1 << 20, False), (1 << 26, True)):
        clock.plain = (900 * US, 900 * US)
        function = Timed(large, clock, settings=Settings(max_graph_memory=limit))
        for _ in range(20):
            function(*inputs())
        assert bool(function.log.replays) is replays, limit
        assert replays or "max_graph_memory" in function.log.verdict


def test_nothing_is_decided_on_one_rank_alone(clock: Clock, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.graph = (900 * US, 900 * US)
    until_decided(Timed(body, clock, **stored(tmp_path)))  # stored: plain
    timed = clock.started
    monkeypatch.setattr(selector, "_ranks", lambda: 2)
    function = Timed(body, clock, **stored(tmp_path))
    assert calls(function, 8)[2:] == ["graph"] * 6
    assert clock.started == timed and "ranks" in function.decision.reason


def test_refusals_of_recording_are_no_decisions(clock: Clock) -> None:
    function = Timed(body, clock, refusal="it is not to be recorded", **WRITES)
    calls(function, 5)
    assert not function.log.decisions and isinstance(function.function._refusal, Refusal)


def test_plain_call_is_not_tried_where_it_would_not_fit_beside_the_graph(clock: Clock) -> None:
    clock.graph = (900 * US, 900 * US)
    function = Timed(body, clock, **WRITES)
    calls(function, 3)
    function.driver.arena.limit = 0
    assert set(calls(function, 10)) == {"graph"}
    assert function.decision.chosen == "graph" and "memory" in function.decision.reason


def test_measurement_under_way_ends_when_other_ranks_appear(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.graph = (900 * US, 900 * US)
    function = Timed(body, clock, **WRITES)
    calls(function, 4)
    monkeypatch.setattr(selector, "_ranks", lambda: 2)
    timed = clock.started
    assert set(calls(function, 20)) == {"graph"} and clock.started == timed
    assert function.decision.chosen == "graph" and "2 ranks" in function.decision.reason


@needs_launcher("all calls are left to Python")
def test_calls_that_the_launcher_leaves_to_python_for_other_reasons_are_not_timed(clock: Clock) -> None:
    """More recordings than the front tries: each comes by Python, and is put in front again."""
    clock.plain = (900 * US, 900 * US)
    # All of them for nothing: what recording takes is real time, on a machine that may be busy.
    function = Timed(of_size, clock, settings=replace(settings.current(), free_recordings=12))
    sizes = range(70, 82)
    for size in sizes:
        for _ in range(20):
            sized_call(function, size)
    timed = clock.started
    for _ in range(3):
        for size in sizes:
            assert sized_call(function, size) == "graph"
    assert clock.started == timed
    [last] = [one for one in function.recordings if one.player.plan.slots[0].layout.size == (sizes[-1],)]
    before = last.launcher.counts()[0]
    sized_call(function, sizes[-1])
    assert last.launcher.counts()[0] == before + 1, "it stands in front again"


def test_graph_that_stages_more_than_it_can_save_is_not_measured(
    clock: Clock, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "MOST_A_CALL", 20.0)
    monkeypatch.setattr(prediction, "MOST_A_LAUNCH", 60.0)
    size = 1 << 26  # 256 MiB of float32, for one launch

    def large(namespace: dict[str, Any], a: Any, b: Any) -> Any:
        out = namespace["empty_strided_cpu"]((6,), (1,), torch.float32)
        namespace["cpp_fused_0"](out, a[:6], b)
        return (out,)

    settings = Settings(engine="copy")
    few, many = [torch.randn(6), torch.randn(6)], [torch.zeros(size), torch.randn(6)]
    function = Timed(large, clock, settings=settings)
    for _ in range(5):
        function(*few)
    assert clock.started, "small ones are measured"
    function = Timed(large, clock, settings=settings)
    timed = clock.started
    for _ in range(5):
        function(*many)
    assert clock.started == timed and not function.recordings and not function.log.replays
    assert (function.decision.chosen, function.decision.origin) == ("plain", "predicted")
    assert "copying" in function.log.verdict and not caplog.records


def test_function_that_launches_nothing_needs_no_graph(clock: Clock) -> None:
    def nothing(namespace: dict[str, Any], a: Any, b: Any) -> Any:
        return (a, namespace["reinterpret_tensor"](b, (2, 3), (3, 1), 0))

    function = Timed(nothing, clock)
    for _ in range(5):
        a, b = inputs()
        first, second = function(a, b)
        assert first is a and torch.equal(second, b.view(2, 3))
    assert not clock.started and function.decision.origin == "predicted"
