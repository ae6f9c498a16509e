"""Where a captured graph holds the addresses of slots: found by comparing two captures.

Between the captures every slot moves by an amount of its own. A word of a node's parameters is bound to a slot exactly
if it moved by that slot's amount. Other words may differ, too: addresses of intermediates, and the bytes that a caller
left uninitialised in a parameter struct (ATen's lists of tensors have room for more than they hold). A difference that
is made of a slot's movement in any other way is not explained, and then no word of the graph is rewritten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pygraph_inductor.driver.protocol import Area, Node, NodeKind
from pygraph_inductor.replay.plan import Binding

# A kernel may start this many bytes before a slot or behind it (padding, negative offsets). Farther away, eight bytes
# that moved like a slot are two fields: cuDNN's layout kernels have the low half of an address, left over from an
# earlier call, next to a float, and rewriting both would change the float.
NEARBY = 1 << 20
_SHIFTS = range(1, 13)  # an address may be stored in units of up to 4 KiB
_LOW = (1 << 32) - 1


@dataclass(frozen=True)
class Movement:
    """Where each slot was in two captures, and how many bytes it spans."""

    first: Sequence[int]
    second: Sequence[int]
    spans: Sequence[int]


@dataclass(frozen=True)
class Found:
    """The bindings of each slot, or why no word of this graph may be rewritten."""

    by_slot: tuple[tuple[Binding, ...], ...]
    unexplained: str | None = None


class _Unexplained(Exception):
    pass


def find_bindings(
    first: Sequence[Node], second: Sequence[Node], movement: Movement, open_kernels: Collection[str] = ()
) -> Found:
    """Compare two captures of the same work. Binding positions refer to the nodes of `second`.

    `open_kernels`: the names of kernels that are known to have every address that they use among their parameters.
    """
    try:
        _same_structure(first, second)
        _nothing_hidden(second, open_kernels)
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
        if (before.kind, before.conditional, before.identity) != (after.kind, after.conditional, after.identity):
            raise _Unexplained(f"two captures differ at node {after.index}: {before.name} and {after.name}")
        if [area.size for area in before.areas] != [area.size for area in after.areas]:
            raise _Unexplained(f"{after.name} has parameters of different sizes in two captures")


def _nothing_hidden(nodes: Sequence[Node], open_kernels: Collection[str]) -> None:
    """Verification finds addresses that are kept outside of parameters only where the verified replay comes by.

    With a conditional node that may be anywhere: what a kernel in front of it does with such an address may show in
    nothing but which body is executed, and there it may be right by chance.
    """
    if not any(node.conditional or node.kind is NodeKind.CONDITIONAL for node in nodes):
        return
    for node in nodes:
        if node.kind is NodeKind.KERNEL:
            is_open = node.name in open_kernels
        else:
            is_open = not node.conditional or node.kind in (NodeKind.EMPTY, NodeKind.CONDITIONAL)
        if not is_open:
            where = "the body of" if node.conditional else "a graph with"
            raise _Unexplained(f"a {node.name} node in {where} a conditional node")


class _Search:
    def __init__(self, movement: Movement) -> None:
        moves = [new - old for old, new in zip(movement.first, movement.second, strict=True)]
        self._slots_of: dict[int, list[int]] = {}
        self._scaled: dict[int, list[tuple[int, int]]] = {}
        self._movement = movement
        for slot, move in enumerate(moves):
            if move:
                self._slots_of.setdefault(move, []).append(slot)
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
        slots = self._slots_of.get(new - old, ())
        near = [slot for slot in slots if -NEARBY <= new - self._movement.second[slot] <= self._reach(slot) + NEARBY]
        if len(near) > 1:  # moved alike: the word must be inside one of them
            near = [slot for slot in near if 0 <= new - self._movement.second[slot] < max(self._reach(slot), 1)]
            if len(near) != 1:
                raise _Unexplained(f"{node.name} has an address that could be of two slots")
        if not near:
            return False
        slot = near[0]
        self.by_slot[slot].append(Binding(node.index, number, offset, new - self._movement.second[slot]))
        return True

    def _reach(self, slot: int) -> int:
        return self._movement.spans[slot]

    def _must_not_depend(self, node: Node, old: bytes, new: bytes) -> None:
        value = int.from_bytes(new, "little")
        difference = (value - int.from_bytes(old, "little")) & _LOW
        for slot, shift in self._scaled.get(difference, ()):
            distance = (value - (self._movement.second[slot] >> shift)) & _LOW
            if min(distance, _LOW - distance) <= self._reach(slot) >> shift:
                raise _Unexplained(f"{node.name} has a parameter made of an address in a way that we do not know")
