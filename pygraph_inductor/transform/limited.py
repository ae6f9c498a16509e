"""What fits into a number of bytes, of tensors that several places need: the smallest first, so that most places do.

Uploads come in front of everything, so a function has all of them on the device at once, where a program may bring one
tensor after the other and drop each (layers that are kept on the CPU). So what one function uploads has a limit, and
what does not fit is left as the program has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TypeVar

Place = TypeVar("Place", bound=Hashable)
Thing = TypeVar("Thing", bound=Hashable)


def fitting(
    needs: Mapping[Place, Collection[Thing]], size_of: Callable[[Thing], int], limit: int
) -> tuple[set[Place], set[Thing]]:
    """The places whose needs fit all together, and those needs. What two places need counts once."""
    sizes = {thing: size_of(thing) for things in needs.values() for thing in things}
    left = limit
    kept: set[Thing] = set()
    places: set[Place] = set()
    for place in sorted(needs, key=lambda one: sum(sizes[thing] for thing in set(needs[one]))):
        more = set(needs[place]) - kept
        cost = sum(sizes[thing] for thing in more)
        if cost <= left:
            left -= cost
            kept |= more
            places.add(place)
    return places, kept
