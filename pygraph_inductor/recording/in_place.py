"""Outputs that an operator allocates itself, without a copy.

Every capture ends with a copy of such an output to its stand-in. Where every word that points into its block is the
output's own, the output itself is told where to be, and the copy is switched off.

The caching allocator reuses freed blocks during a capture, so intermediates may have been in that block. They are gone
before the operator allocates: what nodes before it mention is theirs and stays as it is, what nodes from it on mention
is the output's. (An operator that reuses the block within itself is caught by verification: it looks behind outputs.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pygraph_inductor.driver.protocol import Area, Node
from pygraph_inductor.replay.plan import Binding


@dataclass(frozen=True)
class Block:
    """Where an operator put an output in one capture: `nbytes` at `address`, written from node `first_node` on.

    `copy_node` is the node at the end that copies it.
    """

    address: int
    nbytes: int
    first_node: int
    copy_node: int


@dataclass(frozen=True)
class InPlace:
    """The words that the output owns. `shared`: its block is mentioned before the output was there, too."""

    bindings: tuple[Binding, ...]
    shared: bool


def in_place(first: Sequence[Node], second: Sequence[Node], before: Block, after: Block) -> InPlace | None:
    """Every word that points into the block while the output is there; None if the two captures differ.

    `before` and `after` are its block in the first and in the second capture.
    """
    if (before.first_node, before.copy_node, before.nbytes) != (after.first_node, after.copy_node, after.nbytes):
        return None
    bindings = []
    shared = False
    for old, new in zip(first, second, strict=True):
        if new.index == after.copy_node:
            continue
        for number, (old_area, new_area) in enumerate(zip(old.areas, new.areas, strict=True)):
            for offset in _words_into(new_area, after):
                addend = new_area.word(offset) - after.address
                if old_area.word(offset) - before.address != addend:
                    continue  # left over from somebody else: a real address is at the same place in both blocks
                if new.index < after.first_node:
                    shared = True
                else:
                    bindings.append(Binding(new.index, number, offset, addend))
    return InPlace(tuple(bindings), shared)


def _words_into(area: Area, block: Block) -> Iterator[int]:
    content = area.content()
    for offset in range(0, area.size - 7, 4):
        if block.address <= int.from_bytes(content[offset : offset + 8], "little") < block.address + block.nbytes:
            yield offset
