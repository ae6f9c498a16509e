"""Where a captured graph holds the addresses of slots: found by comparing two captures.

Between the captures every slot moves by an amount of its own. A word of a node's parameters is bound to a slot exactly
if it moved by that slot's amount. Other words may differ, too: addresses of intermediates, and the bytes that a caller
left uninitialised in a parameter struct (ATen's lists of tensors have room for more than they hold). A difference that
is made of a slot's movement in any other way is not explained, and then no word of the graph is rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pygraph_inductor.driver.protocol import Area, Node, NodeKind
from pygraph_inductor.replay.plan import Binding

# A kernel may start this many bytes before a slot or behind it (padding, negative offsets). Farther away, eight bytes
# that moved like a slot are two fields: cuDNN's layout kernels have the low half of an address, left over from an
# earlier call, next to a float, and rewriting both would change the float.
_NEARBY = 1 << 20
_SHIFTS = range(1, 13)  # an address may be stored in units of up to 4 KiB
_LOW = (1 << 32) - 1


@dataclass(frozen=True)
class Movement:
    """Where each slot was in two captures, and the bytes that the longest of them spans."""

    first: Sequence[int]
    second: Sequence[int]
    reach: int


@dataclass(frozen=True)
class Found:
    """The bindings of each slot, or why no word of this graph may be rewritten."""

    by_slot: tuple[tuple[Binding, ...], ...]
    unexplained: str | None = None


class _Unexplained(Exception):
    pass


def find_bindings(first: Sequence[Node], second: Sequence[Node], movement: Movement) -> Found:
    """Compare two captures of the same work. Binding positions refer to the nodes of `second`."""
    try:
        _same_structure(first, second)
        search = _Search(movement)
        for before, after in zip(first, second, strict=True):
            for number, (old, new) in enumerate(zip(before.areas, after.areas, strict=True)):
                search.compare(after, number, old, new)
    except _Unexplained as reason:
        return Found(tuple(() for _ in movement.first), str(reason))
    return Found(tuple(tuple(bindings) for bindings in search.by_slot))


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


class _Search:
    def __init__(self, movement: Movement) -> None:
        moves = [new - old for old, new in zip(movement.first, movement.second, strict=True)]
        self._slot_of = {move: slot for slot, move in enumerate(moves) if move}
        if len(self._slot_of) != sum(1 for move in moves if move):
            raise _Unexplained("two slots moved alike")
        self._movement = movement
        self._scaled: dict[int, list[tuple[int, int]]] = {}
        for move, slot in self._slot_of.items():
            for shift in _SHIFTS:
                self._scaled.setdefault((move >> shift) & _LOW, []).append((slot, shift))
        self.by_slot: list[list[Binding]] = [[] for _ in moves]

    def compare(self, node: Node, number: int, old: Area, new: Area) -> None:
        """Bind the words of one area; raises `_Unexplained`."""
        before, after = old.content(), new.content()
        offset = 0
        while offset < new.size:
            if before[offset : offset + 4] == after[offset : offset + 4]:
                offset += 4
            elif offset + 8 <= new.size and self._bind(node, number, offset, old.word(offset), new.word(offset)):
                offset += 8
            else:
                self._must_not_depend(node, before[offset : offset + 4], after[offset : offset + 4])
                offset += 4

    def _bind(self, node: Node, number: int, offset: int, old: int, new: int) -> bool:
        slot = self._slot_of.get(new - old)
        if slot is None:
            return False
        addend = new - self._movement.second[slot]
        if not -_NEARBY <= addend <= self._movement.reach + _NEARBY:
            return False
        self.by_slot[slot].append(Binding(node.index, number, offset, addend))
        return True

    def _must_not_depend(self, node: Node, old: bytes, new: bytes) -> None:
        value = int.from_bytes(new, "little")
        difference = (value - int.from_bytes(old, "little")) & _LOW
        for slot, shift in self._scaled.get(difference, ()):
            distance = (value - (self._movement.second[slot] >> shift)) & _LOW
            if min(distance, _LOW - distance) <= self._movement.reach >> shift:
                raise _Unexplained(f"{node.name} has a parameter made of an address in a way that we do not know")
