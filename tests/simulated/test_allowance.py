"""Sizes that keep changing: recording them must not cost more than it saves, and those that stay are recorded.

Times are those of a clock that only moves when told: recording takes 30 ms, a replay saves 100 µs.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from pygraph_inductor import report
from pygraph_inductor.driver.simulated import SimulatedGraph
from pygraph_inductor.recording import allowance, function
from pygraph_inductor.recording.allowance import AT_ONCE, BEHIND, Allowance
from pygraph_inductor.recording.inputs import Refusal
from pygraph_inductor.reporting.table import balance_lines
from pygraph_inductor.selection import drift, selector
from pygraph_inductor.settings import Settings
from tests.simulated.hand_written import same_bits
from tests.simulated.timed import US, Clock, Timed, spending

PRICE = 30_000 * US
FREE = Settings().free_recordings
CALLS = 2000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A replay costs 200 µs, a plain call 300."""
    clock = Clock(plain=(300 * US, 300 * US), graph=(200 * US, 200 * US))
    monkeypatch.setattr(SimulatedGraph, "replay", spending(clock))
    return clock


@pytest.fixture
def timed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Timed]:
    """Makes functions whose recordings have a price."""

    def make(body: Any = None, **facts: Any) -> Timed:
        made = Timed(body or of_size, clock, **facts)
        made.price(monkeypatch, PRICE)
        return made

    return make


def of_size(namespace: dict[str, Any], size: int, a: Any) -> Any:
    out = namespace["empty_strided_cpu"]((size,), (1,), torch.float32)
    namespace["cpp_fused_0"](out, a)
    return (out,)


def recordings(one: Timed) -> int:
    return one.clock.executions.count("recording")


def call(one: Timed, sizes: Iterable[int]) -> list[int]:
    """Calls with these sizes; what each took. Every answer is right."""
    took = []
    for size in sizes:
        a = torch.randn(size)
        before = one.clock.host
        [got] = one(size, a)
        took.append(one.clock.host - before)
        out = torch.empty(size)
        one.namespace["cpp_fused_0"](out, a)
        assert same_bits(got, out)
    return took


def geometric(random_: random.Random, calls: int) -> list[int]:
    sizes = list(range(1, 101))
    random_.shuffle(sizes)
    return random_.choices(sizes, [0.97**rank for rank in range(100)], k=calls)


def moving_window(random_: random.Random, calls: int) -> list[int]:
    return [1 + number // 20 + random_.randrange(10) for number in range(calls)]


def uniform(random_: random.Random, calls: int) -> list[int]:
    return [random_.randrange(1, 150) for _ in range(calls)]


@pytest.mark.parametrize("native_", [True, False])
@pytest.mark.parametrize("sizes", [geometric, moving_window, uniform])
@pytest.mark.parametrize("seed", [1, 2])
def test_sizes_that_keep_changing_cost_no_more_than_the_start(
    timed: Callable[..., Timed], sizes: Callable[..., list[int]], seed: int, native_: bool
) -> None:
    one = timed(native=native_)
    took = call(one, sizes(random.Random(seed), CALLS))
    plainly = one.clock.plain[0] * CALLS
    start = FREE * (PRICE + 10 * one.clock.plain[0])
    assert sum(took) <= 1.03 * plainly + start
    assert sum(took[CALLS // 2 :]) <= 1.02 * plainly / 2, "the start is over"
    assert recordings(one) <= FREE + 1
    assert BEHIND in one.log.reasons
    assert one.log.calls == CALLS


@pytest.mark.parametrize("native_", [True, False])
def test_two_sizes_that_stay_are_recorded_among_others(timed: Callable[..., Timed], native_: bool) -> None:
    chance = random.Random(3)
    one = timed(native=native_)
    call(one, uniform(chance, 300))
    before = recordings(one)
    took = call(one, [chance.choice((200, 300)) if chance.random() < 0.6 else size for size in uniform(chance, 6000)])
    assert recordings(one) <= before + 4
    lately = [entry[0][0][1] for entry in one.function._entries.recordings()]
    assert {200, 300} <= set(lately)
    plainly = one.clock.plain[0]
    assert sum(took[-1000:]) <= 0.85 * 1000 * plainly
    assert one.log.saved_ms > 0


def test_few_sizes_are_recorded_as_soon_as_they_come_again(timed: Callable[..., Timed]) -> None:
    one = timed()
    sizes = range(10, 10 + FREE)
    call(one, sizes)
    assert recordings(one) == 0
    call(one, sizes)
    assert recordings(one) == FREE
    call(one, list(sizes) * 20)
    assert recordings(one) == FREE and one.log.calls_until_recorded == AT_ONCE and BEHIND not in one.log.reasons


def test_one_size_more_has_to_come_so_often_that_its_graph_would_have_paid(timed: Callable[..., Timed]) -> None:
    one = timed()
    for size in range(10, 10 + FREE):
        call(one, [size] * 3)
    made = 0
    before = recordings(one)
    while recordings(one) == before:
        call(one, [100])
        made += 1
        assert made < 2000
    assert made > 50
    replays = one.log.replays
    call(one, [100] * 30)
    assert one.log.replays > replays


def test_what_graphs_have_earned_pays_for_others(timed: Callable[..., Timed]) -> None:
    def calls_needed(one: Timed) -> int:
        for size in range(10, 10 + FREE + 1):
            call(one, [size] * 3)
        made, before = 0, recordings(one)
        while recordings(one) == before:
            call(one, [100])
            made += 1
            assert made < 3000
        return made

    poor, rich = timed(), timed()
    call(rich, [10] * 2000)
    few, many = calls_needed(rich), calls_needed(poor)
    assert AT_ONCE < few < 0.7 * many


def test_each_recording_that_did_not_pay_makes_the_next_one_rarer() -> None:
    account = Allowance(free=0, clock=lambda: 0)
    account.keys = 1
    needed = []
    for number in range(4):
        account.spend(PRICE, (number,))
        account.add_up([(number + 1, 100.0 * US)], applies=True)
        needed.append(account.needed)
    assert needed == sorted(needed) and needed[-1] > 2 * needed[0] > 600
    account.add_up([(10**6, 100.0 * US)], applies=True)
    assert account.needed == 151, "half of what a recording costs, whatever was earned"
    account.add_up([(10**6, 100.0 * US)], applies=False)
    assert account.needed == AT_ONCE


def behind(needed: int) -> Allowance:
    """An account by which a key needs so many calls."""
    account = Allowance(free=0, clock=lambda: 0)
    account.keys, account.needed = 1, needed
    return account


def test_size_that_stays_is_counted_however_many_others_come_and_go() -> None:
    account = behind(1000)
    others = itertools.count(1)
    for _ in range(1100):
        account.skips((0,))
        for _ in range(20):
            account.skips((next(others),))
    assert not account.skips((0,)) and account.counted((0,)) == 1101
    assert len(account._unseen) <= allowance._MOST


@pytest.mark.parametrize("period", [2, 4, 64])
def test_each_size_is_looked_at_whatever_comes_in_between(period: int) -> None:
    """Whether there is a choice for it that was pinned. Functions are called in a rhythm: once by each layer."""
    account = behind(100_000)
    looks = [size for _ in range(70) for size in range(period) if not account.skips((size,))]
    assert set(looks) == set(range(period)) and len(looks) <= 70 * period / 30


def test_calls_that_a_recording_was_made_for_count_for_no_other(timed: Callable[..., Timed]) -> None:
    """Where graphs crowd each other out, each has to earn its price anew."""
    one = timed(settings=Settings(max_recordings=1, free_recordings=0))
    needed = []
    for size in (100, 1000, 100, 1000, 100, 1000):
        made, before = 0, recordings(one)
        while recordings(one) == before:
            call(one, [size])
            made += 1
            assert made < 3000, needed
        call(one, [size] * 2000)
        needed.append(made)
    assert needed[0] == AT_ONCE
    assert all(made >= 0.45 * PRICE / (100 * US) for made in needed[1:]), needed


def test_what_comes_but_once_is_no_part_of_the_price() -> None:
    """The first recording of a function compiles twins of its kernels, for seconds."""
    account = Allowance(free=FREE, clock=lambda: 0)
    for number, price in enumerate([5_000_000 * US, *[PRICE] * (FREE - 1)]):
        account.keys += 1
        account.spend(price, (number,))
    account.keys += 1
    account.add_up([(1, 100.0 * US)], applies=True)
    assert 290 <= account.needed <= 310


def test_recording_with_copies_as_well_uses_up_no_more_of_what_is_free() -> None:
    account = Allowance(free=FREE, clock=lambda: 0)
    for number in range(FREE):
        account.keys += 1
        account.spend(PRICE, (number,))
        account.spend_more(PRICE)
        account.lose(PRICE)
    account.keys += 1
    account.add_up([(1, 100.0 * US)], applies=True)
    assert 590 <= account.needed <= 610, "the price of both"
    assert account.total_ns == 3 * FREE * PRICE


def test_nothing_stays_plain_for_ever_because_others_save_nothing() -> None:
    """The first sizes may be large ones, whose graphs do not pay; then come small ones, thousands of times."""
    account = Allowance(free=FREE, clock=lambda: 0)
    account.expected_ns = 0.0
    for number in range(FREE + 1):
        account.keys += 1
        account.spend(PRICE, (number,))
    for gains in ([], [(10**6, 0.0)], [(10**6, 1.0)]):
        account.add_up(gains, applies=True)
        assert account.needed < 100_000


def test_small_size_gets_its_graph_after_large_ones_whose_graphs_do_not_pay(
    clock: Clock, timed: Callable[..., Timed]
) -> None:
    one = timed()
    clock.graph = (400 * US, 400 * US)
    call(one, [1 << number for number in range(3, 3 + FREE + 1) for _ in range(40)])
    assert {decision.chosen for decision in one.log.decisions[:FREE]} == {"plain"}
    clock.graph = (200 * US, 200 * US)
    for made in range(60):
        call(one, [2] * 100)
        if one.function._entries.recordings():
            break
    assert made < 50
    replays = one.log.replays
    call(one, [2] * 100)
    assert one.log.replays >= replays + 90


def test_graphs_that_save_nothing_are_soon_not_tried_any_more(clock: Clock, timed: Callable[..., Timed]) -> None:
    """All of them turn out slower. Each class of sizes is a new chance, so there is an end only by what it costs."""
    clock.graph = (400 * US, 400 * US)

    def two(namespace: dict[str, Any], rows: int, columns: int, a: Any) -> Any:
        out = namespace["empty_strided_cpu"]((rows, columns), (columns, 1), torch.float32)
        namespace["cpp_fused_0"](out, a)
        return (out,)

    one = timed(two)
    chance = random.Random(1)
    for _ in range(4000):
        rows, columns = 1 << chance.randrange(6), 1 << chance.randrange(6)
        one(rows, columns, torch.ones(rows, columns))
    assert recordings(one) <= FREE + 4
    assert not one.log.recordings or one.log.decisions


def test_sizes_that_the_user_listed_are_all_recorded(timed: Callable[..., Timed]) -> None:
    sizes = tuple(range(10, 10 + 3 * FREE))
    one = timed(capture_sizes=sizes)
    call(one, [*sizes, *sizes])
    assert recordings(one) == 3 * FREE


@pytest.mark.parametrize("settings", [Settings(selection=False), Settings(free_recordings=100)])
def test_knobs_let_everything_be_recorded(timed: Callable[..., Timed], settings: Settings) -> None:
    sizes = range(10, 10 + 3 * FREE)
    one = timed(settings=settings)
    call(one, [*sizes, *sizes])
    assert recordings(one) == 3 * FREE


def test_where_nothing_is_measured_everything_is_recorded(
    timed: Callable[..., Timed], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = range(10, 10 + 3 * FREE)
    without_clock = timed()
    without_clock.driver.clock = None
    call(without_clock, [*sizes, *sizes])
    assert recordings(without_clock) == 3 * FREE
    monkeypatch.setattr(selector, "_ranks", lambda: 2)
    ranks = timed()
    before = recordings(ranks)
    call(ranks, [*sizes, *sizes])
    assert recordings(ranks) - before >= 3 * FREE


def test_pinned_graph_is_recorded_whatever_was_spent(timed: Callable[..., Timed], tmp_path: Any) -> None:
    facts = {"graph_hash": "g", "decisions_folder": str(tmp_path / "decisions")}
    first = timed(**facts)
    call(first, [5000] * 30)
    store = first.function._selector._store()
    [(_, kept)] = store.all()
    assert kept.gain_ns == 100 * US, "what a graph saves is kept"
    store.write(type(kept)(kept.key, kept.name, "graph", "pinned by the user", pinned=True))
    one = timed(**facts)
    call(one, uniform(random.Random(1), 500))
    assert one.function._allowance.is_behind
    before = recordings(one)
    made = 0
    while recordings(one) == before:
        call(one, [5000])
        made += 1
        assert made < 150, "one call in 64 is looked at"


def test_stored_gain_counts_in_a_process_that_measures_nothing(timed: Callable[..., Timed], tmp_path: Any) -> None:
    facts = {"graph_hash": "g", "decisions_folder": str(tmp_path / "decisions")}
    call(timed(**facts), [100] * 30)
    again = timed(**facts)
    call(again, [100] * 102)
    assert again.decision.origin == "stored" and again.log.saved_ms == pytest.approx(10.0)


def test_choice_is_taken_again_whatever_was_spent(
    clock: Clock, timed: Callable[..., Timed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "EVERY", 8)
    monkeypatch.setattr(drift, "_RARER", 1)
    one = timed()
    clock.graph = (500 * US, 500 * US)
    call(one, [1000] * 30)
    assert one.decision.chosen == "plain"
    call(one, uniform(random.Random(1), 500))
    assert one.function._allowance.is_behind
    clock.plain = (3000 * US, 3000 * US)
    call(one, [1000] * 150)
    assert [one.chosen for one in one.log.decisions if one.examinations] == ["graph"]


def test_calls_of_rare_sizes_are_answered_without_being_looked_at(
    timed: Callable[..., Timed], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = timed()
    call(one, uniform(random.Random(1), 500))
    assert one.function._allowance.is_behind
    looks = []
    key_of = function.key_of
    monkeypatch.setattr(function, "key_of", lambda *args: looks.append(1) or key_of(*args))
    call(one, range(1000, 1000 + 640))
    assert len(looks) == 10


def test_without_ints_keys_are_told_apart_all_the_same(timed: Callable[..., Timed]) -> None:
    """Floats are part of keys, and not looked at by what is quick: recorded ones among them go on being replayed."""

    def scaled(namespace: dict[str, Any], factor: float, a: Any) -> Any:
        out = namespace["empty_strided_cpu"]((6,), (1,), torch.float32)
        namespace["cpp_fused_0"](out, a * factor)
        return (out,)

    one = timed(scaled, native=False)
    for _ in range(20):
        one(1.5, torch.ones(6))
    chance = random.Random(1)
    for _ in range(600):
        one(float(chance.randrange(100)), torch.ones(6))
    assert one.function._allowance.is_behind and recordings(one) <= FREE + 1
    replays = one.log.replays
    for _ in range(10):
        one(1.5, torch.ones(6))
    assert one.log.replays == replays + 10


def test_report_says_what_was_spent_and_saved(timed: Callable[..., Timed]) -> None:
    one = timed()
    call(one, uniform(random.Random(1), 500))
    log = one.log
    assert log.spent_ms >= 30 * recordings(one) > 0
    [line] = balance_lines(log)
    assert f"{log.calls_until_recorded} times" in line and line in str(report()).replace("\n", " ")
    assert BEHIND in log.reasons


def test_account_that_fails_costs_no_answer(
    timed: Callable[..., Timed], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no sum today")

    one = timed(name="broken account", settings=Settings(strict=False))
    monkeypatch.setattr(allowance, "saved", broken)
    call(one, uniform(random.Random(1), 200))
    assert len([one for one in caplog.records if "no sum today" in one.getMessage()]) == 1


def test_what_timing_a_slow_graph_cost_is_spent_as_well(
    clock: Clock, timed: Callable[..., Timed], monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[int] = []
    spend = Allowance.spend
    monkeypatch.setattr(Allowance, "spend", lambda self, ns, of: spent.append(ns) or spend(self, ns, of))
    clock.graph = (500 * US, 500 * US)
    one = timed()
    call(one, [1000] * 30)
    assert one.decision.chosen == "plain" and len(spent) == 1
    rounds = next(variant.rounds for variant in one.decision.variants if variant.name == "graph")
    assert one.function._allowance.total_ns == spent[0] + rounds * 200 * US
    assert one.log.saved_ms == 0, "the graph that was given up has saved nothing"


def test_what_an_evicted_graph_has_saved_still_counts(timed: Callable[..., Timed]) -> None:
    one = timed(settings=Settings(max_recordings=1))
    call(one, [100] * 30)
    saved_ms = one.log.saved_ms
    assert saved_ms >= 2
    call(one, [1000] * 3)
    assert [entry[0][0][1] for entry in one.function._entries.recordings()] == [1000]
    assert one.log.saved_ms >= saved_ms


def test_memory_of_kinds_has_an_end() -> None:
    account = Allowance(free=0, clock=lambda: 0)
    account.keys = 1
    for number in range(10_000):
        account.spend(PRICE, (number,))
    account.add_up([], applies=True)
    for number in range(10_000):
        account.skips((-number,))
    assert max(len(account._with_attempts), len(account._unseen)) <= allowance._MOST


def test_recordings_that_fail_are_paid_for_as_well(clock: Clock, timed: Callable[..., Timed]) -> None:
    one = timed()
    real = function.record

    def refused(request: Any) -> Any:
        attempt = real(request)
        if attempt.recording is not None:
            attempt.recording.close()
        return type(attempt)(attempt.result, None, Refusal("no such luck"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, "record", refused)
        took = call(one, moving_window(random.Random(1), CALLS))
    assert recordings(one) <= FREE + 1
    assert sum(took[CALLS // 2 :]) == clock.plain[0] * CALLS // 2


def test_threads_get_their_own_answers_while_sizes_change(timed: Callable[..., Timed]) -> None:
    one = timed()
    wrong: list[int] = []

    def work(seed: int) -> None:
        for size in geometric(random.Random(seed), 300):
            a = torch.full((size,), float(seed))
            [got] = one(size, a)
            want = torch.empty(size)
            one.namespace["cpp_fused_0"](want, a)
            if not same_bits(got, want):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and one.function._allowance.is_behind
