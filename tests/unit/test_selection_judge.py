"""Judging timings: right where the difference is real, whatever noise and outliers say, and never before its time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pygraph_inductor.driver.protocol import Timing
from pygraph_inductor.selection.classes import numbers_of, size_class
from pygraph_inductor.selection.drift import is_far
from pygraph_inductor.selection.judge import MIN_ROUNDS, Rules, Variant, cost, judge, lost_ns, saved_ns, table_of
from pygraph_inductor.selection.spread import spread

AUTO = Rules("auto", 0.02)
PLAIN, GRAPH = Variant.PLAIN, Variant.GRAPH


def timings(cost_ns: float, count: int, noise: float, seed: int, outliers: int = 0) -> list[Timing]:
    """`count` timings around a cost, some of them ten times as long, as when another program had the device."""
    draw = random.Random(seed)
    values = [cost_ns * (1 + draw.uniform(-noise, noise)) for _ in range(count)]
    for place in draw.sample(range(count), outliers):
        values[place] *= 10
    return [Timing(round(value), round(value), True) for value in values]


@settings(deadline=None)  # about values, and machines can be busy
@given(
    st.floats(5e3, 1e9),
    st.floats(0.05, 0.95),
    st.floats(0, 0.02),
    st.integers(0, 2**32),
    st.booleans(),
    st.integers(5, 30),
)
def test_real_difference_is_seen_through_noise_and_outliers(plain, saved, noise, seed, graph_wins, count):
    slow, fast = plain, plain * (1 - saved) - 1000
    if fast < slow * 0.05:
        fast = slow * 0.05
    outliers = (count - 1) // 4
    first, second = timings(slow, count, noise, seed, outliers), timings(fast, count, noise, seed + 1, outliers)
    samples = {GRAPH: second, PLAIN: first} if graph_wins else {GRAPH: first, PLAIN: second}
    verdict = judge(samples, AUTO, final=True)
    real = 1 - fast / slow
    if real > 2 * noise + 0.03:  # beyond what the noise can turn round
        assert verdict is not None and verdict.chosen is (GRAPH if graph_wins else PLAIN)


@settings(deadline=None)  # about values, and machines can be busy
@given(
    st.lists(st.integers(0, 10**10), min_size=3, max_size=30),
    st.lists(st.integers(0, 10**10), min_size=3),
    st.booleans(),
)
def test_any_timings_give_a_verdict_when_there_has_to_be_one(one, other, behind):
    samples = {GRAPH: [Timing(v, v, behind) for v in one], PLAIN: [Timing(v, v, behind) for v in other]}
    verdict = judge(samples, AUTO, final=True)
    assert verdict is not None and verdict.reason and verdict.cost.count in (len(one), len(other))


@settings(deadline=None)  # about values, and machines can be busy
@given(st.integers(0, MIN_ROUNDS - 1), st.integers(0, 10), st.booleans())
def test_nothing_is_judged_before_three_rounds_of_each(few, more, final):
    for first, second in ((few, more), (more, few)):
        samples = {GRAPH: timings(1e3, first, 0, 1), PLAIN: timings(9e9, second, 0, 2)}
        assert judge(samples, AUTO, final) is None


@pytest.mark.parametrize("fast, slow", [(4, 3), (5, 4), (9, 7)])
def test_calls_that_take_one_of_two_times_are_not_taken_for_steady(fast, slow):
    """Most take the lesser time, so their median deviation is nothing; one more of the others turns it round."""
    graph = [Timing(60_000, 60_000, True)] * fast + [Timing(140_000, 140_000, True)] * slow
    plain = [Timing(104_000, 104_000, True)] * (fast + slow)
    assert judge({GRAPH: graph, PLAIN: plain}, AUTO, final=False) is None
    assert judge({GRAPH: graph, PLAIN: plain}, AUTO, final=True).chosen is GRAPH


COPY = Variant.COPY


@pytest.mark.parametrize(
    ("graph", "copy", "plain", "chosen"),
    [
        (50, 80, 100, GRAPH),
        (80, 50, 100, COPY),
        (100, 99.5, 150, GRAPH),  # too little for another graph's memory
        (120, 150, 100, PLAIN),
        (99, 120, 100, PLAIN),
        (150, 90, 100, COPY),
    ],
)
@pytest.mark.parametrize("final", [True, False])
def test_best_of_three_is_chosen(graph, copy, plain, chosen, final):
    costs = {GRAPH: graph, COPY: copy, PLAIN: plain}
    samples = {variant: timings(1e3 * value, 20, 0.001, 7) for variant, value in costs.items()}
    verdict = judge(samples, AUTO, final)
    assert verdict is not None and verdict.chosen is chosen
    assert {one.variant for one in verdict.table} == {GRAPH, COPY, PLAIN}
    if chosen is not PLAIN:
        assert verdict.cost.median == pytest.approx(1e3 * costs[chosen], rel=0.01)


def test_graphs_that_cannot_be_told_apart_yet_are_timed_further_unless_both_have_lost():
    noisy = {GRAPH: timings(60e3, 6, 0.5, 1), COPY: timings(50e3, 6, 0.5, 2)}
    assert judge({**noisy, PLAIN: timings(900e3, 6, 0.01, 3)}, AUTO, final=False) is None
    assert judge({**noisy, PLAIN: timings(900e3, 6, 0.01, 3)}, AUTO, final=True).chosen is not PLAIN
    assert judge({**noisy, PLAIN: timings(1e3, 6, 0.01, 3)}, AUTO, final=False).chosen is PLAIN


def test_what_a_call_saves_is_the_hosts_time_where_costs_are_equal():
    samples = {GRAPH: [Timing(5, 100, True)], PLAIN: [Timing(60, 100, True)]}
    assert saved_ns(table_of(samples, "auto"), GRAPH, 0.02) == 55
    assert saved_ns(table_of(samples, "auto"), PLAIN, 0.02) == 0
    samples[GRAPH] = [Timing(5, 70, True)]
    assert saved_ns(table_of(samples, "auto"), GRAPH, 0.02) == 30, "not all of the host's time is won"


def test_what_timing_cost_is_what_was_dearer_than_plain_calls():
    samples = {GRAPH: [Timing(150, 150, True)] * 4, Variant.COPY: [Timing(70, 70, True)] * 4}
    assert lost_ns(table_of(samples, "auto")) == 0, "plain calls have not been timed yet"
    samples[PLAIN] = [Timing(100, 100, True)] * 4
    assert lost_ns(table_of(samples, "auto")) == 4 * 50


def test_reason_names_the_variant():
    samples = {GRAPH: timings(90e3, 20, 0, 1), COPY: timings(50e3, 20, 0, 2), PLAIN: timings(100e3, 20, 0, 3)}
    assert judge(samples, AUTO, True).reason.startswith("the graph with copies of all tensors is 50% cheaper")


def test_false_alarms_are_few():
    wrong = 0
    for seed in range(400):
        plain, graph = timings(1e5, 30, 0.05, 2 * seed), timings(1e5, 30, 0.05, 2 * seed + 1)
        for rounds in range(MIN_ROUNDS, 31):
            verdict = judge({GRAPH: graph[:rounds], PLAIN: plain[:rounds]}, AUTO, final=rounds == 30)
            if verdict is not None:
                wrong += verdict.chosen is GRAPH
                break
    assert wrong < 40, "one in ten at most takes a graph that saves nothing"


@settings(deadline=None)  # about values, and machines can be busy
@given(st.lists(st.integers(1, 10**9), min_size=3, max_size=30), st.integers(1, 10**15))
def test_one_wild_timing_moves_the_middle_no_further_than_its_neighbours(values, wild):
    before, after = spread(values), spread([*values, wild])
    ordered = sorted(values)
    middle = len(ordered) // 2
    assert ordered[middle - 1] <= after.median <= ordered[min(middle + 1, len(ordered) - 1)]
    assert before.error > 0 and after.error > 0


@pytest.mark.parametrize(
    "objective, behind, wanted",
    [
        ("auto", True, 70),
        ("auto", False, 70),
        ("latency", False, 70),
        ("latency", True, 100),
        ("throughput", True, 70),
        ("throughput", False, 30),
    ],
)
def test_cost_by_objective(objective, behind, wanted):
    assert cost(Timing(30, 70, behind), objective) == wanted


def test_earlier_choice_needs_more_to_be_overturned():
    better = {GRAPH: timings(97_000, 30, 0, 1), PLAIN: timings(100_000, 30, 0, 2)}
    assert judge(better, AUTO, True).chosen is GRAPH
    assert judge(better, AUTO, True, incumbent=PLAIN).chosen is PLAIN
    equal = {GRAPH: timings(100_500, 30, 0, 1), PLAIN: timings(100_000, 30, 0, 2)}
    assert judge(equal, AUTO, True).chosen is PLAIN
    a_little = {GRAPH: timings(99_500, 30, 0, 1), PLAIN: timings(100_000, 30, 0, 2)}
    assert judge(a_little, AUTO, True, incumbent=GRAPH).chosen is GRAPH


@pytest.mark.parametrize("now, far", [(100e3, False), (190e3, False), (210e3, True), (51e3, False), (49e3, True)])
def test_far_is_a_factor_of_two(now, far):
    assert is_far(now, 100e3) is far


def test_far_is_more_than_a_user_can_feel():
    assert not is_far(9e3, 1e3)


def test_size_classes():
    import torch

    def of(*sizes, value=1.5):
        key = tuple((torch.float32, (size, 4), (4, 1)) for size in sizes)
        return size_class((*key, (float, value.hex()), (int, sizes[0]), (type(None), None), (torch.int64, b"12345678")))

    assert of(100) == of(128) == of(65) == of(100, value=2.5)
    assert len({of(64), of(65), of(129), of(65, 65), of(0), of(1)}) == 6
    generator = torch.Generator()
    assert size_class(((torch.Generator, id(generator)),)) == "Generator", "alike in every process"


def test_numbers_are_ints_only():
    assert numbers_of([1, True, 2.0, None, "x", 3]) == (1, 3)
