"""Slots that the graph copies itself: its first nodes read them from where they are, its last ones write them back.

The nodes in between are given buffers that never move. So one address is rewritten per copy, whatever the number of
nodes that use the slot, and it is a binding like all others: player and launcher need no other way for such slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pygraph_inductor.replay.plan import Layout
from pygraph_inductor.replay.views import bytes_of, covers_its_span


@dataclass(frozen=True)
class Inside:
    """A slot inside the graph. `read`: it has a content before the function runs; `written`: and afterwards."""

    buffer: torch.Tensor
    read: bool
    written: bool


def can_be_copied(layout: Layout, written: bool) -> bool:
    """Bytes are copied, the gaps between elements as well: those of a `written` input may be somebody else's. Those of
    an output are its own, and views of it may show them.
    """
    return not written or covers_its_span(torch.empty_strided(layout.size, layout.stride, device="meta"))


def copy_in(insides: Mapping[int, Inside], stand_ins: Sequence[torch.Tensor]) -> None:
    """Before the function, under capture. Bytes have no versions, so nobody takes this for a mutation."""
    for number, inside in insides.items():
        if inside.read:
            bytes_of(inside.buffer).copy_(bytes_of(stand_ins[number]))


def copy_out(insides: Mapping[int, Inside], stand_ins: Sequence[torch.Tensor]) -> None:
    """After the function, under capture."""
    for number, inside in insides.items():
        if inside.written:
            bytes_of(stand_ins[number]).copy_(bytes_of(inside.buffer))
