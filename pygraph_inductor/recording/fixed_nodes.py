"""Slots whose addresses are in nodes that cannot be told others: those of child graphs and of conditional bodies.

Such a slot is found in a table, where all these nodes are kernels that have twins. Else the graph copies it, so that
only a copy in front of the inner graph ever hears of an address that moves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pygraph_inductor.driver.protocol import Driver, Node
from pygraph_inductor.recording.bindings import Found
from pygraph_inductor.recording.engines import Wanted
from pygraph_inductor.recording.indirection import Prepared, Watching, prepare


def fixed_slots(found: Found, nodes: Sequence[Node]) -> dict[int, str]:
    """These slots, by number, each with the name of a node."""
    fixed = {}
    for number, bindings in enumerate(found.by_slot):
        for binding in bindings:
            if not nodes[binding.node].updatable:
                fixed[number] = nodes[binding.node].name
    return fixed


def with_fixed(wanted: Wanted, fixed: Collection[int], watched: Watching, copyable: Collection[int]) -> Wanted:
    """What is wanted, with a table for those of the fixed slots that any kernel's twin can read, and copies for others.

    Whether it was enough, the next capture shows.
    """
    known = {place for launch in watched.launches for place in launch.places.values()}
    tabled = frozenset(fixed) & known
    copied = (frozenset(fixed) - tabled) & frozenset(copyable)
    return replace(
        wanted,
        places=(wanted.places | tabled) - copied,
        copied=(wanted.copied - tabled) | copied,
        why=f"{wanted.why}; graphs inside it mention {len(fixed)} of its slots, and nothing there can be patched",
    )


def with_copies(prepared: Prepared, slots: frozenset[int], driver: Driver) -> Prepared | None:
    """The same, but with copies of these slots, which twins did not serve alone; None if it has them already."""
    if slots <= prepared.copied:
        return None
    return prepare(prepared.watched, prepared.places - slots, prepared.copied | slots, driver)
