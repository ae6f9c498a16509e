"""Which blocks CUDA's caching allocator gives out, in order, from the history that it keeps on request.

The history is PyTorch's own (`torch.cuda.memory._record_memory_history`, "Understanding CUDA Memory Usage"). It is one
for the whole process: where the user has it recorded already, it is left alone, and nothing is known of blocks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

_ENTRIES = 1 << 20  # that the history holds; older ones make room
_lock = threading.Lock()
_watching = 0  # how many logs are open: the first one starts the history, the last one ends it


class BlockLog:
    """What a device's allocator gave out since this object was made."""

    def __init__(self, device_index: int, watched: bool) -> None:
        self._device = device_index
        self._watched = watched
        self._before = self._given_in_all()

    def so_far(self) -> int:
        return self._given_in_all() - self._before

    def blocks(self) -> list[tuple[int, int]] | None:
        if not self._watched:
            return None
        count = self.so_far()
        traces = torch.cuda.memory._snapshot()["device_traces"]
        if self.so_far() != count:
            return None  # other threads allocate: which entry is whose cannot be told
        given = [(entry["addr"], entry["size"]) for entry in traces[self._device] if entry["action"] == "alloc"]
        return given[len(given) - count :] if count <= len(given) else None

    def _given_in_all(self) -> int:
        return int(torch.cuda.memory_stats_as_nested_dict(self._device)["allocation"]["all"]["allocated"])


@contextlib.contextmanager
def watched_blocks(device_index: int) -> Iterator[BlockLog]:
    """Let the allocator keep its history meanwhile."""
    global _watching
    with _lock:
        watched = _watching > 0 or not torch._C._cuda_isHistoryEnabled()
        if watched:
            if not _watching:
                torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=_ENTRIES)
            _watching += 1
    try:
        yield BlockLog(device_index, watched)
    finally:
        if watched:
            with _lock:
                _watching -= 1
                if not _watching:
                    torch.cuda.memory._record_memory_history(None)
