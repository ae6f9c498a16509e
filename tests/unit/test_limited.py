"""What fits into a number of bytes."""

from __future__ import annotations

import itertools
import random

from pygraph_inductor.transform.limited import fitting

SIZES = {"a": 1, "b": 10, "c": 100}


def fit(limit: int, **needs: str) -> tuple[set[str], set[str]]:
    return fitting({place: list(things) for place, things in needs.items()}, SIZES.__getitem__, limit)


def test_small_ones_go_first_and_the_rest_does_not_get_in_their_way() -> None:
    assert fit(11, large="c", middle="b", small="a") == ({"middle", "small"}, {"a", "b"})
    assert fit(101, large="c", middle="b", small="a") == ({"middle", "small"}, {"a", "b"})
    assert fit(111, large="c", middle="b", small="a") == ({"large", "middle", "small"}, {"a", "b", "c"})


def test_shared_needs_count_once_and_repeated_ones_too() -> None:
    assert fit(11, one="ab", other="abb") == ({"one", "other"}, {"a", "b"})
    assert fit(10, one="ab", other="b") == ({"other"}, {"b"})


def test_what_needs_nothing_always_fits() -> None:
    assert fit(0, none="", some="a") == ({"none"}, set())


def test_it_is_never_more_than_the_limit_nor_less_than_possible() -> None:
    generator = random.Random(0)
    for _ in range(200):
        sizes = {thing: generator.randrange(20) for thing in range(6)}
        needs = {place: generator.sample(range(6), generator.randrange(4)) for place in range(5)}
        limit = generator.randrange(60)
        places, kept = fitting(needs, sizes.__getitem__, limit)
        assert kept == set(itertools.chain.from_iterable(needs[place] for place in places))
        assert sum(sizes[thing] for thing in kept) <= limit
        if sum(sizes[thing] for thing in set(itertools.chain.from_iterable(needs.values()))) <= limit:
            assert places == set(needs)
