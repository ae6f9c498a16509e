"""Which outputs may serve the next call again: activations that only the backward sees.

Making, wrapping and freeing a tensor takes the host time, and a training step saves hundreds of them. What takes the
device longer than that to fill is not worth the memory, so only small ones are kept, and not too many.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import torch

from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.replay.plan import Again, FromAllocation, Layout, Returned

LARGEST = 4 << 20  # bytes: writing them takes a device about as long as a new tensor takes the host


class Share:
    """What one recording keeps, for as long as it lives or until it is ended."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        with _lock:
            _shares.add(self)

    def end(self) -> None:
        """Nothing is kept any more."""
        self.nbytes = 0


_lock = threading.RLock()  # finalizers and signal handlers come here, too
_shares: weakref.WeakSet[Share] = weakref.WeakSet()


def kept_on(device: torch.device) -> int:
    """Bytes that all recordings of a device keep together."""
    with _lock:
        return sum(share.nbytes for share in _shares if share.device == device)


def to_keep(facts: Facts, returned: Sequence[Returned], layouts: Sequence[Layout]) -> frozenset[int]:
    """The allocations whose tensor is returned for the backward alone, as it is and once.

    Whether it really serves again is seen in each call: nobody else may have it by then (`replay/launcher.c`).
    """
    if facts.kind != "forward" or facts.visible_outputs is None:
        return frozenset()
    again = {entry.position for entry in returned if isinstance(entry, Again)}
    places: dict[int, list[int]] = {}
    for position, entry in enumerate(returned):
        if isinstance(entry, FromAllocation):
            places.setdefault(entry.position, []).append(position)
    kept: set[int] = set()
    left = facts.settings.max_kept_bytes - kept_on(facts.device)
    for allocation, positions in places.items():
        [first, *others] = positions
        entry, span = returned[first], layouts[allocation].span
        hidden = not others and first not in facts.visible_outputs and first not in again
        if hidden and isinstance(entry, FromAllocation) and entry.view is None and 0 < span <= min(LARGEST, left):
            kept.add(allocation)
            left -= span
    return frozenset(kept)
