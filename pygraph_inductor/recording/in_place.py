"""Outputs that an operator allocates itself, without a copy.

Every capture ends with a copy of such an output to its stand-in. Where every word that points into its block is the
output's own, the output itself is told where to be, and the copy is switched off.

The caching allocator reuses freed blocks during a capture, so others may have been in that block. Who was gone when the
operator was called is told from the output by that: what nodes before the call mention is theirs and stays as it is,
what nodes from it on mention is the output's. Or it is of something that was there after the operator was called, and
was dropped. Of what is larger than the output, no word may be rewritten: it would reach beyond the output, into
anybody's memory. Nor of what was there before the call, too: nodes before it would write to one place, and those from
it on read from another. Whether there was such a thing, the allocator's log tells; in one of two captures there may
have been none, and that is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pygraph_inductor.driver.protocol import Area, BlockEvent, Node
from pygraph_inductor.replay.plan import Binding


@dataclass(frozen=True)
class Block:
    """Where an operator put an output in one capture: `nbytes` at `address`, written from node `first_node` on.

    `copy_node` is the node at the end that copies it. `alone`: since the operator was called, nothing has been there
    that does not fit into the output, and nothing that was there before.
    """

    address: int
    nbytes: int
    first_node: int
    copy_node: int
    alone: bool


def is_alone(events: Sequence[BlockEvent], address: int, nbytes: int) -> bool:
    """Whether all blocks that were there meanwhile were given out meanwhile, inside these bytes; one is the output."""
    end = address + nbytes
    given = set()
    for event in events:
        if event.address >= end or event.address + event.nbytes <= address:
            continue
        if event.given and address <= event.address and event.address + event.nbytes <= end:
            given.add(event.address)
        elif event.given or event.address not in given:
            return False
    return bool(given)


def in_place(first: Sequence[Node], second: Sequence[Node], before: Block, after: Block) -> tuple[Binding, ...] | None:
    """Every word that points into the block while the output is there; None if that cannot be told.

    `before` and `after` are its block in the first and in the second capture.
    """
    if (before.first_node, before.copy_node, before.nbytes) != (after.first_node, after.copy_node, after.nbytes):
        return None
    if not (before.alone or after.alone):
        return None
    bindings = []
    for old, new in zip(first, second, strict=True):
        if new.index < after.first_node or new.index == after.copy_node:
            continue
        for number, areas in enumerate(zip(old.areas, new.areas, strict=True)):
            addends = [dict(_words_into(area, block)) for area, block in zip(areas, (before, after), strict=True)]
            # A word in one of them only is somebody else's: a real address is at the same place in both blocks.
            words = [word for word in addends[1].items() if word in addends[0].items()]
            if words and not new.updatable:
                return None
            bindings += [Binding(new.index, number, *word) for word in words]
    return tuple(bindings)


def _words_into(area: Area, block: Block) -> Iterator[tuple[int, int]]:
    """Where in the area they are, and how far into the block they point."""
    content = area.content()
    for offset in range(0, area.size - 7, 4):
        addend = int.from_bytes(content[offset : offset + 8], "little") - block.address
        if 0 <= addend < block.nbytes:
            yield offset, addend
