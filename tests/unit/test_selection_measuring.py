"""The order of turns, which timings count, and when measuring ends."""

from __future__ import annotations

import pytest

from pygraph_inductor.driver.protocol import Timing
from pygraph_inductor.selection.judge import Rules, Variant, Verdict
from pygraph_inductor.selection.measuring import MAX_ROUNDS, Measurement

PLAIN, GRAPH = Variant.PLAIN, Variant.GRAPH


class Scripted:
    """A device whose stopwatches read what they are told."""

    def stopwatch(self):
        return Scripted()

    def read(self):
        return self.timing


def measurement(budget=1e15):
    return Measurement(Scripted(), (GRAPH, PLAIN), Rules("auto", 0.02), budget)


def answer(one, costs):
    """One call: its variant, or the verdict. `costs`: what calls of each variant cost, in turn."""
    turn = one.next()
    if not isinstance(turn, Verdict):
        if turn.stopwatch is None:
            return turn
        cost = next(costs[turn.variant])
        turn.stopwatch.timing = Timing(cost, cost, True)
        one.done(turn)
    return turn


def repeat(*values):
    while True:
        yield from values


def test_each_variant_follows_itself_as_often_as_the_other():
    one, costs = measurement(), {GRAPH: repeat(60_000, 140_000), PLAIN: repeat(104_000)}
    order = [answer(one, costs).variant for _ in range(8)]
    assert order == [GRAPH, PLAIN, PLAIN, GRAPH, GRAPH, PLAIN, PLAIN, GRAPH]


def test_first_timing_of_each_variant_does_not_count():
    one = measurement()
    costs = {GRAPH: iter([10**9, *[1000] * 30]), PLAIN: iter([10**9, *[900_000] * 30])}
    for _ in range(2):
        answer(one, costs)
    one.next()
    assert one.table() == ()
    while not isinstance(verdict := answer(one, costs), Verdict):
        pass
    assert {entry.variant: entry.cost.median for entry in verdict.table} == {GRAPH: 1000, PLAIN: 900_000}
    assert all(entry.cost.range == 0 for entry in verdict.table)


@pytest.mark.parametrize("budget, ends", [(0.0, True), (1e15, False)])
def test_unclear_answer_is_given_once_the_dearer_variant_has_cost_enough(budget, ends):
    one, costs = measurement(budget), {GRAPH: repeat(60_000, 140_000), PLAIN: repeat(104_000)}
    answers = [answer(one, costs) for _ in range(13)]
    assert any(isinstance(turn, Verdict) for turn in answers) is ends
    assert not any(isinstance(turn, Verdict) for turn in answers[:8]), "three rounds that count, whatever they cost"


def test_no_measurement_takes_for_ever():
    one, costs = measurement(), {GRAPH: repeat(60_000, 140_000), PLAIN: repeat(104_000)}
    answers = [answer(one, costs) for _ in range(2 * (MAX_ROUNDS + 1) + 1)]
    assert isinstance(answers[-1], Verdict)


def test_calls_that_say_nothing_are_made_up_for():
    one, costs = measurement(), {GRAPH: repeat(1000), PLAIN: repeat(900_000)}
    for _ in range(3 * MAX_ROUNDS):
        turn = one.next()
        assert turn.stopwatch is not None, "it would never be timed again"
        one.lost(turn)
    while not isinstance(verdict := answer(one, costs), Verdict):
        pass
    assert verdict.chosen is GRAPH


def test_three_variants_take_turns_and_one_can_be_left_out():
    COPY = Variant.COPY
    costs = {GRAPH: repeat(60_000, 140_000), COPY: repeat(61_000, 139_000), PLAIN: repeat(104_000)}
    one = Measurement(Scripted(), (GRAPH, COPY, PLAIN), Rules("auto", 0.02), 1e15)
    order = [answer(one, costs).variant for _ in range(6)]
    assert order == [GRAPH, COPY, PLAIN, PLAIN, COPY, GRAPH]
    assert one.wants(COPY)
    late = [one.next() for _ in range(2)]
    assert [turn.variant for turn in late] == [GRAPH, COPY]
    one.without(COPY)
    assert not one.wants(COPY)
    one.done(late[1])  # calls that were under way
    one.lost(late[1])
    one.lost(late[0])
    seen = [answer(one, costs) for _ in range(8)]
    assert {turn.variant for turn in seen} == {GRAPH, PLAIN}
    assert {entry.variant for entry in one.table()} == {GRAPH, PLAIN}
