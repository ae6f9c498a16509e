"""Choosing between graph and plain call: every call is answered once and right whatever is chosen, and each can be."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from pygraph_inductor import config, report, settings
from pygraph_inductor.driver.simulated import SimulatedDriver, SimulatedGraph
from pygraph_inductor.recording.function import RecordedFunction
from pygraph_inductor.recording.inputs import Refusal
from pygraph_inductor.replay import native
from pygraph_inductor.reporting.table import variant_rows
from pygraph_inductor.selection import drift, prediction, selector
from pygraph_inductor.selection.judge import Variant
from pygraph_inductor.selection.measuring import MAX_ROUNDS
from pygraph_inductor.selection.prediction import Prediction
from pygraph_inductor.settings import Settings
from tests.simulated.hand_written import cloned, contents, same_bits
from tests.simulated.timed import US, Clock, Timed, spending


def body(namespace: dict[str, Any], a: Any, b: Any) -> Any:
    """Writes to `b`, draws random numbers, returns a fresh tensor and `b` itself."""
    out = namespace["empty_strided_cpu"]((6,), (1,), torch.float32)
    namespace["cpp_fused_0"](out, a, b)
    namespace["cpp_fused_0"](b, out)
    noise = namespace["empty_strided_cpu"]((6,), (1,), torch.float32)
    namespace["cpp_fused_0"](noise, torch.rand(6), out)
    return (out, b, noise)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that replays move, too."""
    clock = Clock()
    monkeypatch.setattr(SimulatedGraph, "replay", spending(clock))
    return clock


WRITES = {"mutated_inputs": frozenset({1})}


def inputs() -> list[Any]:
    return [torch.randn(6), torch.randn(6)]


def checked_call(function: Timed, kept: list[Any] | None = None) -> str:
    """One call with new inputs, compared with the plain call in every visible respect; what answered it."""
    values = inputs()
    copies = cloned(values)
    random = torch.get_rng_state()
    want = super(Timed, function).run(list(copies))
    random_after = torch.get_rng_state()
    torch.set_rng_state(random)
    before = len(function.clock.executions)
    got = function(*values)
    assert torch.equal(torch.get_rng_state(), random_after)
    assert all(map(same_bits, got, want)) and all(map(same_bits, values, copies))
    assert got[1] is values[1]
    if kept is not None:
        kept.append((got, [contents(value) for value in got]))
    executions = function.clock.executions[before:]
    return executions[0] if len(executions) == 1 else "recording"


def calls(function: Timed, count: int) -> list[str]:
    return [checked_call(function) for _ in range(count)]


def until_decided(function: Timed, most: int = 100) -> list[str]:
    made = []
    while not (function.log.decisions and function.decision.chosen):
        made.append(checked_call(function))
        assert len(made) < most, "no decision"
    return made


def front_holds(function: Timed) -> bool:
    return any(function._entry.holds(one.launcher) for one in function.recordings)


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


def test_while_measuring_the_launcher_is_not_in_front_and_afterwards_it_is(clock: Clock) -> None:
    if native.module() is None:
        pytest.skip("no compiler")
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


def test_measured_replays_are_those_of_the_launcher(clock: Clock) -> None:
    if native.module() is None:
        pytest.skip("no compiler")
    function = Timed(body, clock, **WRITES)
    made = calls(function, 12)
    [recording] = function.recordings
    assert recording.measurement is not None
    assert recording.launcher.counts()[0] == made.count("graph") > 0


def test_replay_in_python_puts_no_launcher_in_front_while_it_is_measured(clock: Clock) -> None:
    if native.module() is None:
        pytest.skip("no compiler")
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


def called_by_threads(clock: Clock, calls: int) -> Timed:
    """A function that four threads called so often at once; each call had its own answer."""

    def pure(namespace: dict[str, Any], a: Any, b: Any) -> Any:
        out = namespace["empty_strided_cpu"]((6,), (1,), torch.float32)
        namespace["cpp_fused_0"](out, a, b)
        return (out,)

    function = Timed(pure, clock)
    wrong: list[str] = []
    # Made before: threads that draw random numbers during a verification would look like the function's own.
    prepared = [[inputs() for _ in range(calls)] for _ in range(4)]

    def work(mine: list[Any]) -> None:
        for values in mine:
            [want] = super(Timed, function).run(list(values))
            [got] = function(*values)
            if not same_bits(got, want):
                wrong.append("wrong")

    threads = [threading.Thread(target=work, args=(mine,)) for mine in prepared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    return function


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


# -- the graph with copies of all tensors


@pytest.fixture
def with_copies(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """It is offered, and the model does not rule it out; and the clock knows its replays."""
    monkeypatch.setattr(Prediction, "may_win_by_copies", True)
    keep = RecordedFunction._keep_copying

    def kept(self: RecordedFunction, found: Any, *rest: Any) -> None:
        if found is not None:
            clock.copying.add(found.graph)
        keep(self, found, *rest)

    monkeypatch.setattr(RecordedFunction, "_keep_copying", kept)
    with config.patch(engine="auto"):
        yield clock


@pytest.mark.parametrize("native_", [True, False])
@pytest.mark.parametrize("fast", ["plain", "graph", "copy"])
def test_any_of_three_variants_can_win(with_copies: Clock, fast: str, native_: bool) -> None:
    clock = with_copies
    clock.plain = clock.graph = clock.copy = (300 * US, 300 * US)
    setattr(clock, fast, (100 * US, 100 * US))
    function = Timed(body, clock, native=native_, **WRITES)
    kept: list[Any] = []
    made = [checked_call(function, kept) for _ in range(60)]
    assert made[:3] == ["plain", "recording", "recording"]
    assert {*made[3:15]} == {"plain", "graph", "copy"}, "all of them answered calls while it was measured"
    assert {*made[30:]} == {fast}
    assert function.decision.chosen == fast and function.decision.origin == "measured"
    assert {one.name for one in function.decision.variants} == {"plain", "graph", "copy"}
    assert function.log.replays == sum(kind in ("graph", "copy") for kind in made), "none is counted twice or lost"
    assert function.log.calls == 60
    for tensors, then in kept:
        assert all(torch.equal(contents(now), before) for now, before in zip(tensors, then, strict=True))
    open_graphs = [one.graph for one in function.recordings]
    assert all(graph.closed for graph in clock.copying if graph not in open_graphs), "what lost gave its memory back"
    assert len(open_graphs) == (0 if fast == "plain" else 1)
    if fast == "copy":
        assert set(function.log.recordings[-1].slots) == {"copy"} and len(function.log.recordings) == 1


def test_thread_that_hears_of_a_choice_late_does_not_undo_it(
    with_copies: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads may be told at once that copies won, and only one can put them in the place of the graph."""
    clock = with_copies
    clock.plain, clock.graph, clock.copy = (300 * US, 300 * US), (300 * US, 300 * US), (100 * US, 100 * US)
    function = Timed(body, clock, **WRITES)
    late: list[Any] = []
    chosen = RecordedFunction._chosen

    def heard(self: RecordedFunction, values: list[Any], *rest: Any) -> Any:
        late.append(rest)
        return chosen(self, values, *rest)

    monkeypatch.setattr(RecordedFunction, "_chosen", heard)
    kept: list[Any] = []
    for _ in range(40):
        checked_call(function, kept)
    [rest] = late
    [recording] = function.recordings
    values = list(inputs())
    want = super(Timed, function).run([value.clone() for value in values])
    assert all(map(same_bits, chosen(function.function, list(values), *rest)[:2], want[:2]))
    assert function.recordings == [recording] and not recording.closed
    assert {checked_call(function, kept) for _ in range(3)} == {"copy"}


def test_copies_have_to_save_something_to_be_chosen(with_copies: Clock) -> None:
    clock = with_copies
    clock.plain, clock.graph, clock.copy = (300 * US, 300 * US), (100 * US, 100 * US), (99 * US, 99 * US)
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    assert function.decision.chosen == "graph"


def test_variant_that_cannot_be_recorded_is_left_out(with_copies: Clock) -> None:
    """Two inputs overlap, and one is written: staging would come between them."""
    clock = with_copies
    clock.plain = (300 * US, 300 * US)
    function = Timed(body, clock, **WRITES)
    for _ in range(40):
        both = torch.randn(9)
        values = [both[:6], both[3:]]
        copies = both.clone()
        want = super(Timed, function).run([copies[:6], copies[3:]])
        got = function(*values)
        assert torch.equal(both, copies) and all(map(same_bits, got[:2], want[:2]))
    assert function.decision.chosen == "graph"
    assert {one.name for one in function.decision.variants} == {"plain", "graph"} and not clock.copying


def test_engine_that_the_user_asked_for_has_no_rival(with_copies: Clock) -> None:
    function = Timed(body, with_copies, settings=Settings(engine="patch"), **WRITES)
    until_decided(function)
    assert {one.name for one in function.decision.variants} == {"plain", "graph"}


def test_stored_choice_of_copies_is_recorded_so_at_once(with_copies: Clock, tmp_path: Any) -> None:
    clock = with_copies
    clock.plain = clock.graph = (300 * US, 300 * US)
    until_decided(Timed(body, clock, **stored(tmp_path)))
    timed = clock.started
    again = Timed(body, clock, **stored(tmp_path))
    made = calls(again, 6)
    assert made[:2] == ["plain", "recording"] and clock.started == timed
    [recording] = again.recordings
    assert recording.variant is Variant.COPY and set(recording.log.slots) == {"copy"}
    assert (again.decision.chosen, again.decision.origin) == ("copy", "stored")


def test_key_that_cannot_have_the_copies_chosen_for_its_class_is_told_addresses(
    with_copies: Clock, tmp_path: Any
) -> None:
    """Of the calls of a class, these have inputs that overlap, one of which is written."""
    clock = with_copies
    clock.plain = clock.graph = (300 * US, 300 * US)
    until_decided(Timed(body, clock, **stored(tmp_path)))
    again = Timed(body, clock, **stored(tmp_path) | {"mutated_inputs": frozenset({0, 1})})
    assert calls(again, 4)[:2] == ["plain", "recording"]
    for _ in range(6):
        both = torch.randn(9)
        copies = both.clone()
        random = torch.get_rng_state()
        want = super(Timed, again).run([copies[:6], copies[3:]])
        torch.set_rng_state(random)
        got = again(both[:6], both[3:])
        assert torch.equal(both, copies) and all(map(same_bits, got, want))
    [recording] = [one for one in again.recordings if one.variant is Variant.GRAPH]
    # After a plain call, one that copies were refused for, and its own.
    assert recording.count() == 3, again.log.reasons
    assert {one.variant for one in again.recordings} == {Variant.GRAPH, Variant.COPY}, "the others go on with copies"


def test_other_keys_of_a_class_follow_the_choice_of_copies(with_copies: Clock) -> None:
    clock = with_copies
    clock.plain = clock.graph = (300 * US, 300 * US)
    function = Timed(of_size, clock)
    for _ in range(3):
        sized_call(function, 100), sized_call(function, 120)  # both are being measured
    for _ in range(40):
        sized_call(function, 100)
    assert function.decision.chosen == "copy"
    for _ in range(6):
        sized_call(function, 120)
    assert [one.variant for one in function.recordings] == [Variant.COPY] * 2
    assert len(function.log.decisions) == 1


def test_choice_of_copies_is_taken_again_when_they_come_to_cost_more(with_copies: Clock, often: None) -> None:
    clock = with_copies
    clock.plain = clock.graph = (300 * US, 300 * US)
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    assert function.decision.chosen == "copy"
    clock.copy = clock.graph = (2000 * US, 2000 * US)  # graphs recorded later are in no set
    calls(function, 150)
    assert function.decision.chosen == "plain" and function.decision.examinations == 1


def test_threads_record_the_variant_with_copies_once(with_copies: Clock) -> None:
    clock = with_copies
    clock.plain = clock.graph = (300 * US, 300 * US)

    function = called_by_threads(clock, calls=40)
    open_ = {one.graph for one in function.recordings} | {
        one.copying.graph for one in function.recordings if one.copying is not None
    }
    function(*inputs())
    assert all(graph.closed for graph in clock.copying - open_)


# -- sizes


def of_size(namespace: dict[str, Any], size: int, a: Any) -> Any:
    out = namespace["empty_strided_cpu"]((size,), (1,), torch.float32)
    namespace["cpp_fused_0"](out, a)
    return (out,)


def sized_call(function: Timed, size: int) -> str:
    a = torch.randn(size)
    [want] = super(Timed, function).run([size, a])
    before = len(function.clock.executions)
    [got] = function(size, a)
    assert same_bits(got, want)
    executions = function.clock.executions[before:]
    return executions[0] if len(executions) == 1 else "recording"


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


# -- what is kept


def stored(tmp_path: Any, graph: str = "g") -> dict[str, Any]:
    return {"graph_hash": graph, "decisions_folder": str(tmp_path / "decisions"), **WRITES}


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


def test_store_that_cannot_be_used_costs_one_warning_and_no_call(clock: Clock, tmp_path: Any, caplog: Any) -> None:
    (tmp_path / "decisions").write_text("a file where the folder should be")
    clock.plain = (300 * US, 300 * US)
    for graph in ("one", "two"):
        function = Timed(body, clock, **stored(tmp_path, graph))
        until_decided(function)
        assert function.decision.chosen == "graph"
    assert len([one for one in caplog.records if "decisions in" in one.getMessage()]) == 1


# -- conditions that change


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "EVERY", 8)
    monkeypatch.setattr(drift, "_RARER", 1)


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


# -- more than one process


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


def test_ranks_that_appear_later_leave_decisions_as_they_are(
    clock: Clock, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.graph = (900 * US, 900 * US)
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    monkeypatch.setattr(selector, "_ranks", lambda: 2)
    clock.plain = (5000 * US, 5000 * US)
    assert set(calls(function, 100)) == {"plain"} and function.decision.examinations == 0


def test_measurement_under_way_ends_when_other_ranks_appear(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.graph = (900 * US, 900 * US)
    function = Timed(body, clock, **WRITES)
    calls(function, 4)
    monkeypatch.setattr(selector, "_ranks", lambda: 2)
    timed = clock.started
    assert set(calls(function, 20)) == {"graph"} and clock.started == timed
    assert function.decision.chosen == "graph" and "2 ranks" in function.decision.reason


def test_calls_that_the_launcher_leaves_to_python_for_other_reasons_are_not_timed(clock: Clock) -> None:
    """More recordings than the front tries: each comes by Python, and is put in front again."""
    if native.module() is None:
        pytest.skip("no compiler")
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


def test_one_call_in_many_is_timed_and_no_other(clock: Clock, often: None) -> None:
    clock.plain = (900 * US, 900 * US)
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    timed = clock.started
    calls(function, 80)
    assert clock.started - timed in (9, 10), "one in eight"


# -- what need not be measured


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
