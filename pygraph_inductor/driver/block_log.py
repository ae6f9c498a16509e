"""Which blocks CUDA's caching allocator gives out and takes back, from the history that it keeps on request.

The history is PyTorch's own (`torch.cuda.memory._record_memory_history`, "Understanding CUDA Memory Usage"). It is one
for the whole process: where the user has it recorded already, it is left alone, and nothing is known of blocks. One
that the user starts while ours is kept cannot be told from it, and ends with it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator

import torch

from pygraph_inductor.driver.protocol import BlockEvent

_ENTRIES = 1 << 20  # that the history holds; older ones make room
_GIVEN = {"alloc": True, "free_requested": False}  # by action: both are counted in the statistics, others are not

_lock = threading.RLock()  # finalizers and signal handlers come here, too
_ours = False  # whether the history was started here. An interrupt may leave it on; then the next log ends it
_logs: weakref.WeakSet[BlockLog] = weakref.WeakSet()  # that are open


class BlockLog:
    """What a device's allocator did since the log was begun; nothing is known of one that was not."""

    def __init__(self, device_index: int) -> None:
        self._device = device_index
        self._start: tuple[int, int] | None = None

    def begin(self) -> None:
        self._start = self._counts()

    def so_far(self) -> int:
        return self._counts()[0] - self._start[0] if self._start is not None else 0

    def events(self) -> list[BlockEvent] | None:
        if self._start is None:
            return None
        now = self._counts()
        traces = torch.cuda.memory._snapshot()["device_traces"]
        # Other threads allocate: which entry is whose cannot be told. Or they had the counts start anew meanwhile.
        if self._counts() != now or now[1] != self._start[1]:
            return None
        events = [
            BlockEvent(entry["addr"], entry["size"], _GIVEN[entry["action"]])
            for entry in traces[self._device]
            if entry["action"] in _GIVEN
        ]
        count = now[0] - self._start[0]
        return events[len(events) - count :] if count <= len(events) else None

    def _counts(self) -> tuple[int, int]:
        """How much there has been, and what stays as it is until somebody resets the statistics."""
        counts = torch.cuda.memory_stats_as_nested_dict(self._device)["allocation"]["all"]
        given, taken, held = counts["allocated"], counts["freed"], counts["current"]
        return given + taken, given - taken - held


@contextlib.contextmanager
def watched_blocks(device_index: int) -> Iterator[BlockLog]:
    """Let the allocator keep its history meanwhile."""
    log = BlockLog(device_index)
    try:
        _open(log)
        yield log
    finally:
        _close(log)


def _open(log: BlockLog) -> None:
    global _ours
    with _lock:
        # Other allocators keep no history, and raise when asked.
        if not _ours and (torch.cuda.get_allocator_backend() != "native" or torch._C._cuda_isHistoryEnabled()):
            return
        _logs.add(log)
        _ours = True
        if not torch._C._cuda_isHistoryEnabled():
            torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=_ENTRIES)
        log.begin()


def _close(log: BlockLog) -> None:
    global _ours
    with _lock:
        _logs.discard(log)
        if _ours and not _logs:
            torch.cuda.memory._record_memory_history(None)
            _ours = False
