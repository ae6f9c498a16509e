"""What the cost model says about engines, and which slots it makes indirect."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import sympy

from pygraph_inductor.driver import table
from pygraph_inductor.selection import cost_model
from pygraph_inductor.selection.cost_model import (
    COPY,
    INDIRECT,
    PATCH,
    Coefficients,
    Consumers,
    CostModel,
    SlotUse,
    choose,
    cost_of,
    value,
)

ROUND = Coefficients(
    node_update=1.0,
    table_update=2.0,
    table_node=8.0,
    indirect_load=0.5,
    copy_launch=30.0,
    bytes_per_us=1000.0,
    python_replay=100.0,
)
MODEL = CostModel(ROUND)


def test_costs_of_one_slot() -> None:
    use = SlotUse(nodes=10, kernels=6, nbytes=5000)
    costs = {engine: value(cost) for engine, cost in MODEL.of(use).items()}
    assert costs == {"patch": 10, "indirect": 0.5 * 6 + 4 + 10, "copy": 30 + 1 + 5, "static": 0}


def test_written_slot_is_copied_back_as_well() -> None:
    assert value(MODEL.copy(SlotUse(1, 1, 5000, written=True))) == 2 * 36


def test_copies_of_a_slot_that_stays_are_not_told_again() -> None:
    assert value(MODEL.copy(SlotUse(1, 1, 5000, moves=False))) == 35


def test_slot_without_kernels_that_have_twins_cannot_be_indirect() -> None:
    assert "indirect" not in MODEL.of(SlotUse(10, 0, 5000))


def test_slots_that_share_a_table_share_its_cost() -> None:
    use = SlotUse(nodes=10, kernels=10, nbytes=0)
    assert value(MODEL.indirect(use, sharing=4)) == 5 + 10 / 4


def test_costs_are_expressions_over_the_sizes_of_a_call() -> None:
    batch = sympy.Symbol("s0", positive=True, integer=True)
    cost = MODEL.copy(SlotUse(nodes=3, kernels=3, nbytes=4 * batch * 1024))
    assert cost.free_symbols == {batch}
    assert value(cost, {batch: 1000}) == 31 + 4096
    assert value(cost, {batch: 114}) < value(MODEL.patch(SlotUse(500, 0, 0))) < value(cost, {batch: 115})


def slots(*consumers: tuple[Any, ...]) -> dict[int, Consumers]:
    """Nodes, kernels and, where a slot may be copied, what that costs."""
    return {
        number: Consumers(frozenset(nodes), frozenset(kernels), *copying)
        for number, (nodes, kernels, *copying) in enumerate(consumers)
    }


def test_few_consumers_are_patched_and_many_are_not() -> None:
    few, many = set(range(10)), set(range(100))
    assert choose(slots((few, few)), ROUND).indirect == frozenset()
    assert choose(slots((many, many)), ROUND).indirect == {0}


def test_update_that_another_slot_needs_anyway_saves_nothing() -> None:
    """Every kernel writes an output that only patching serves."""
    kernels = set(range(100))
    outputs = [({kernel}, set[int]()) for kernel in kernels]
    assert choose(slots((kernels, kernels), *outputs), ROUND).indirect == frozenset()


def test_neither_of_two_slots_pays_alone_and_both_do() -> None:
    kernels = set(range(100))
    choice = choose(slots((kernels, kernels), (kernels, kernels)), ROUND)
    assert choice.indirect == {0, 1}
    assert (choice.patched, choice.cost) == (100, 60)
    assert cost_of({0: INDIRECT}, slots((kernels, kernels), (kernels, kernels)), ROUND) == 100 + 50 + 10


def test_slot_is_copied_where_that_is_cheaper_than_both() -> None:
    kernels = set(range(100))
    choice = choose(slots((kernels, kernels, 36.0)), ROUND)
    assert (choice.copied, choice.indirect, choice.cost, choice.all_copied) == ({0}, frozenset(), 36.0, 36.0)
    choice = choose(slots((kernels, kernels, 61.0)), ROUND)
    assert (choice.copied, choice.indirect, choice.cost, choice.all_copied) == (frozenset(), {0}, 60.0, 61.0)
    few = set(range(30))
    assert choose(slots((few, set(), 36.0)), ROUND).copied == frozenset()


def test_every_slot_of_a_node_must_be_copied_to_save_its_update() -> None:
    kernels = set(range(100))
    choice = choose(slots((kernels, set(), 36.0), (kernels, set(), 36.0)), ROUND)
    assert (choice.copied, choice.cost) == ({0, 1}, 72.0)
    assert choose(slots((kernels, set(), 36.0), (kernels, set())), ROUND).copied == frozenset()


def test_slots_of_one_recording_have_the_engines_that_suit_each() -> None:
    few, many, most = set(range(5)), set(range(5, 105)), set(range(105, 405))
    choice = choose(slots((few, few, 36.0), (many, set(), 36.0), (most, most)), ROUND)
    assert (choice.copied, choice.indirect, choice.cost) == ({1}, {0, 2}, 36 + 2.5 + 150 + 10)


def test_choice_is_close_to_the_best_of_all_sets() -> None:
    rng = random.Random(0)
    for _ in range(100):
        made = []
        for _ in range(rng.randint(1, 7)):
            nodes = set(rng.sample(range(60), rng.randint(1, 50)))
            kernels = {node for node in nodes if rng.random() < 0.8}
            made.append((nodes, kernels, rng.choice([None, rng.uniform(5, 40)])))
        given = slots(*made)
        able = [_able(one) for one in given.values()]
        best = min(cost_of(dict(enumerate(plan)), given, ROUND) for plan in itertools.product(*able))
        choice = choose(given, ROUND)
        engines = dict.fromkeys(choice.indirect, INDIRECT) | dict.fromkeys(choice.copied, COPY)
        assert choice.cost == pytest.approx(cost_of(engines, given, ROUND))
        assert choice.cost <= choice.patched
        assert choice.cost <= best * 1.05


def _able(consumers: Consumers) -> list[str]:
    return [PATCH] + [INDIRECT] * bool(consumers.kernels) + [COPY] * (consumers.copying is not None)


def test_table_of_many_slots_has_several_nodes() -> None:
    one = slots(*[({0}, {0})] * 501)
    assert cost_of(dict.fromkeys(range(500), INDIRECT), one, ROUND) == 0.5 + 10 + 1
    assert cost_of(dict.fromkeys(range(501), INDIRECT), one, ROUND) == 0.5 + 20


def test_model_and_driver_agree_on_the_size_of_a_table_node() -> None:
    assert cost_model.PER_TABLE_NODE == table._SIZES[-1]
    assert [len(part) for part in table._parts(1001)] == [500, 500, 1]
    # Parameters of a launch: 4 KiB, of which the table's address and length take 16.
    assert 8 * table._SIZES[-1] + 16 <= 4096
