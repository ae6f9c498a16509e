"""Decisions that are kept on disk: list them, forget them, pin them.

A decision says, for one generated function, size class, device and set of versions, whether calls come from a graph.
`pygraph_inductor.report()` and `pygraph explain` name each by its digest. What is changed here is seen by functions
that have not decided yet: those compiled later, and other processes.
"""

from __future__ import annotations

import builtins
import dataclasses
from dataclasses import dataclass
from pathlib import Path

from pygraph_inductor.seams import identity
from pygraph_inductor.selection.selector import CHOICES
from pygraph_inductor.selection.store import Store


@dataclass(frozen=True)
class Entry:
    """A decision on disk."""

    digest: str
    name: str  # of the function
    chosen: str  # "graph", "copy" (a graph with copies of all tensors) or "plain"
    reason: str
    cost_us: float  # of one call, by what was chosen; 0 where nothing was measured
    pinned: bool
    key: dict[str, str]  # what it holds for


def folder() -> Path | None:
    """Where decisions are kept; None where Inductor's caches are switched off."""
    found = identity.decisions_folder()
    return Path(found) if found is not None else None


def list() -> builtins.list[Entry]:
    """All decisions that can be read."""
    store = _store()
    return [
        Entry(
            digest,
            stored.name,
            stored.chosen,
            stored.reason,
            round(stored.cost_ns / 1e3, 2),
            stored.pinned,
            dict(stored.key.fields),
        )
        for digest, stored in (store.all() if store is not None else ())
    ]


def forget(digest: str | None = None) -> int:
    """Delete one decision, or all of them; how many there were. Pinned ones are deleted, too."""
    store = _store()
    if store is None:
        return 0
    digests = [digest] if digest is not None else [entry.digest for entry in list()]
    return sum(store.forget(one) for one in digests)


def pin(digest: str, chosen: str) -> None:
    """Fix a decision to "graph", "copy" or "plain": nothing measured replaces it.

    Raises KeyError if there is no such decision, ValueError for another word, OSError if it cannot be written.
    """
    if chosen not in CHOICES:
        raise ValueError(f"chosen is {chosen!r}, not one of {', '.join(sorted(CHOICES))}")
    store = _store()
    for known, stored in store.all() if store is not None else ():
        if known == digest and store is not None:
            pinned = dataclasses.replace(
                stored, chosen=chosen, reason="pinned by the user", cost_ns=0.0, pinned=True, gain_ns=None
            )
            if not store.write(pinned):
                raise OSError(f"the decision {digest} cannot be written")
            return
    raise KeyError(digest)


def _store() -> Store | None:
    found = folder()
    return Store(found, CHOICES) if found is not None else None
