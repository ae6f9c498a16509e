"""Where a captured graph holds the addresses of slots: found by comparing two captures.

Between the captures every slot moves by an amount of its own. A word of a node's parameters is bound to a slot exactly
if it moved by that slot's amount; whatever else differs must be an intermediate of the pool, or it is not explained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pygraph_inductor.driver.protocol import Area, Node, NodeKind
from pygraph_inductor.replay.plan import Binding

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Found:
    """The bindings of each slot, or why no word of this graph may be rewritten."""

    by_slot: tuple[tuple[Binding, ...], ...]
    unexplained: str | None = None


@dataclass(frozen=True)
class Movement:
    """Where the slots were in two captures; `reserved` holds the address ranges made for each capture."""

    first: Sequence[int]
    second: Sequence[int]
    reserved_first: tuple[int, int]
    reserved_second: tuple[int, int]


class _Unexplained(Exception):
    pass


def find_bindings(first: Sequence[Node], second: Sequence[Node], movement: Movement, pool: Ranges) -> Found:
    """Compare two captures of the same work. Binding positions refer to the nodes of `second`."""
    slot_of = {new - old: slot for slot, (old, new) in enumerate(zip(movement.first, movement.second, strict=True))}
    by_slot: list[list[Binding]] = [[] for _ in movement.first]
    try:
        _same_structure(first, second)
        for before, after in zip(first, second, strict=True):
            for number, (old, new) in enumerate(zip(before.areas, after.areas, strict=True)):
                for offset in _differing_words(old, new, after):
                    slot = _slot_at(old.word(offset), new.word(offset), slot_of, movement)
                    if slot is None:
                        _must_be_intermediate(old.word(offset), new.word(offset), pool, after)
                    else:
                        addend = new.word(offset) - movement.second[slot]
                        by_slot[slot].append(Binding(after.index, number, offset, addend))
    except _Unexplained as reason:
        return Found(tuple(() for _ in by_slot), str(reason))
    return Found(tuple(tuple(bindings) for bindings in by_slot))


def _same_structure(first: Sequence[Node], second: Sequence[Node]) -> None:
    if len(first) != len(second):
        raise _Unexplained(f"two captures have {len(first)} and {len(second)} nodes")
    for before, after in zip(first, second, strict=True):
        if after.kind is NodeKind.OTHER:
            raise _Unexplained(f"a {after.name} node")
        if (before.kind, before.identity) != (after.kind, after.identity):
            raise _Unexplained(f"two captures differ at node {after.index}: {before.name} and {after.name}")
        if [area.size for area in before.areas] != [area.size for area in after.areas]:
            raise _Unexplained(f"{after.name} has parameters of different sizes in two captures")


def _differing_words(old: Area, new: Area, node: Node) -> list[int]:
    before, after = old.content(), new.content()
    if before == after:
        return []
    whole = new.size // 8 * 8
    if before[whole:] != after[whole:]:
        raise _Unexplained(f"{node.name} has a parameter that changes and is no address")
    return [offset for offset in range(0, whole, 8) if before[offset : offset + 8] != after[offset : offset + 8]]


def _slot_at(old: int, new: int, slot_of: dict[int, int], movement: Movement) -> int | None:
    if _inside(old, movement.reserved_first) and _inside(new, movement.reserved_second):
        return slot_of.get(new - old)
    return None


def _inside(address: int, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= address < bounds[1]


def _must_be_intermediate(old: int, new: int, pool: Ranges, node: Node) -> None:
    for address in (old, new):
        if not any(_inside(address, bounds) for bounds in pool):
            raise _Unexplained(f"{node.name} has a parameter that changes and is neither a slot nor an intermediate")
