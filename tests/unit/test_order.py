"""Orders with the fewest pieces, against all orders there are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from pygraph_inductor.partition.order import fewest, most_numbers, orders, pieces


def respects(order: Sequence[int], before: Sequence[Sequence[int]]) -> bool:
    place = {node: position for position, node in enumerate(order)}
    return all(place[first] < place[node] for node, firsts in enumerate(before) for first in firsts)


def drawn(seed: int, most: int) -> tuple[list[list[int]], list[bool]]:
    chance = random.Random(seed)
    count, density = chance.randint(0, most), chance.random()
    before = [[one for one in range(number) if chance.random() < density] for number in range(count)]
    return before, [chance.random() < 0.5 for _ in range(count)]


@pytest.mark.parametrize("part", range(4))
def test_no_order_has_fewer_pieces(part):
    for seed in range(200 * part, 200 * (part + 1)):
        before, outside = drawn(seed, 6)
        least = min(
            pieces([outside[node] for node in order])
            for order in itertools.permutations(range(len(outside)))
            if respects(order, before)
        )
        assert fewest(before, outside) == least, (before, outside)


def test_every_order_is_one_and_has_that_many():
    for seed in range(500):
        before, outside = drawn(seed, 40)
        found = orders(before, outside)
        assert 1 <= len(found) <= 3 and len({*map(tuple, found)}) == len(found)
        for order in found:
            assert sorted(order) == list(range(len(outside))) and respects(order, before)
            assert pieces([outside[node] for node in order]) == fewest(before, outside)


def test_order_at_hand_is_kept_where_it_is_as_good():
    for seed in range(500):
        before, outside = drawn(seed, 20)
        if pieces(outside) == fewest(before, outside):
            assert orders(before, outside)[0] == list(range(len(outside)))
    kept = [[], [0], [1], [], [2, 3]], [False, True, False, False, False]
    assert orders(*kept)[0] == [0, 1, 2, 3, 4]


def test_what_nobody_waits_for_may_be_early_or_late():
    # A piece, the host, a piece; and a node that could be in either.
    near, early = orders([[], [0], [1], []], [False, True, False, False])
    assert near == [0, 1, 2, 3] and early == [0, 3, 1, 2]


def test_numbers_of_a_piece_are_counted_together():
    outside = [False, True, False, False]
    numbers = [frozenset(), frozenset("a"), frozenset("a"), frozenset("b")]
    assert most_numbers([0, 1, 2, 3], outside, numbers) == 2
    assert most_numbers([0, 3, 1, 2], outside, numbers) == 1
