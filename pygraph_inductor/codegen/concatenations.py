"""Keeps what is put together in place on one side of a cut.

The parts of a concatenation are computed where they belong in the result. Inductor (torch 2.11 to 2.15) cuts between
them all the same, and each piece makes a result of its own, in which the parts of the others are never written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor import ir

LOGGER = logging.getLogger("pygraph_inductor")
_REASON = "a part of what is put together on both sides of a cut"


def not_in_pieces(scheduler: Any) -> None:
    """Once the nodes are in order: leave outside what writes to a result of which not all is written in one piece.

    Outside of pieces there is one function, which makes the result once.
    """
    if not inductor_config.graph_partition:
        return
    rule: Callable[[Any], str | None] = scheduler.should_partition
    nodes = list(scheduler.nodes)
    try:
        groups = _written_together(nodes)
    except Exception as error:
        reason = f"what is put together in place could not be found: {type(error).__name__}: {error}"
        LOGGER.warning("a graph runs without CUDA graphs, since %s", reason)
        scheduler.should_partition = lambda node: rule(node) or reason
        return
    if not groups:
        return
    reasons = {node.get_name(): rule(node) for node in nodes}
    outside = [reasons[node.get_name()] is not None for node in nodes]
    moved = set(to_be_left_outside(outside, groups))
    if not moved:
        return
    left = {nodes[number].get_name() for number in moved}
    scheduler.should_partition = lambda node: rule(node) or (_REASON if node.get_name() in left else None)


def to_be_left_outside(outside: Sequence[bool], groups: Sequence[frozenset[int]]) -> list[int]:
    """The nodes that have to be outside, besides those that are, so that each group is outside or in one piece.

    What is left outside may cut the piece of another group.
    """
    out = list(outside)
    while True:
        piece_of, piece = [], 0
        for number, one in enumerate(out):
            piece += bool(number) and one != out[number - 1]
            piece_of.append(-1 if one else piece)
        torn = [group for group in groups if len({piece_of[number] for number in group}) > 1]
        if not torn:
            return [number for number, one in enumerate(out) if one and not outside[number]]
        for number in frozenset().union(*torn):
            out[number] = True


def _written_together(nodes: Sequence[Any]) -> list[frozenset[int]]:
    """The nodes, by position, that write to one buffer or to parts of it; of buffers that have parts."""
    parts = {
        buffer.get_name(): whole
        for node in nodes
        for buffer in node.get_outputs()
        if (whole := _whole_of(buffer.node)) is not None
    }
    wholes = set(parts.values())
    groups: dict[str, set[int]] = {}
    for number, node in enumerate(nodes):
        for buffer in node.get_outputs():
            name = buffer.get_name()
            if name in parts or name in wholes:
                while name in parts:  # a part may have parts itself
                    name = parts[name]
                groups.setdefault(name, set()).add(number)
    return [frozenset(group) for group in groups.values() if len(group) > 1]


def _whole_of(buffer: Any) -> str | None:
    """The name of the buffer of which this one is a part."""
    layout = getattr(buffer, "layout", None)
    return layout.view.get_name() if isinstance(layout, ir.NonOwningLayout) else None
