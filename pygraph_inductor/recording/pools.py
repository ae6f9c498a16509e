"""Private memory for intermediates: one pool per device and stream, shared by the recordings made there.

Recordings of one pool never run at the same time: they share a lock between threads, and a stream that takes over
waits for what the stream before it submitted.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from pygraph_inductor.driver.protocol import Driver, Graph

# Seconds until who waits for the lock looks what it is held for. Most waiting is over before: plain calls that draw
# random numbers had better not come between those that are compared.
_PATIENCE = 0.25


class Pool:
    """The memory behind the intermediates of all recordings of one stream."""

    def __init__(self, driver: Driver, stream: Any) -> None:
        self.lock = threading.RLock()
        self._driver = driver
        # The last stream's number, where launchers can see it.
        self.stream_word = ctypes.c_uint64(driver.stream_id(stream))
        self._running = 0
        # 1 while somebody records or replays, where launchers can see it.
        self.busy_word = ctypes.c_uint64(0)
        self._last_stream = stream
        self._handle: Any = None
        self._graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
        self._kept: list[Any] = []
        # By identity: what the player and the graphs copy to and from.
        self._buffers: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """The lock, and whether it is really our turn.

        It is not where this thread is recording or replaying already: a finalizer, a signal handler or an operator
        called a compiled function. Updating a graph between another call's update and its launch would redirect that.
        Nor where the thread that has the lock runs a function: its operators may wait for this one (autograd's, say).
        """
        while not self.lock.acquire(timeout=_PATIENCE):
            if self._running:
                yield False
                return
        try:
            if self.busy_word.value:
                yield False
                return
            self.busy_word.value = 1
            try:
                yield True
            finally:
                self.busy_word.value = 0
        finally:
            self.lock.release()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Around a function that is run plainly while the lock is held."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def handle(self) -> Any:
        """Where the next capture allocates. Memory that no graph uses any more must not be captured into again."""
        if self._handle is None or all(graph.closed for graph in self._graphs):
            self._handle = self._driver.new_pool()
        return self._handle

    def nbytes(self) -> int:
        """What it has taken from the device."""
        return self._driver.pool_bytes(self._handle) if self._handle is not None else 0

    def adopt(self, graph: Graph) -> None:
        """Note a graph that was captured into the pool."""
        self._graphs.add(graph)

    def keep(self, graphs: Any) -> None:
        """Let these live as long as the pool: its graphs may mention memory that was captured with them."""
        self._kept.append(graphs)

    def note_buffer(self, buffer: torch.Tensor) -> None:
        """Note memory outside of the pool that its graphs mention, allocated on the current stream.

        The allocator would give it out again on that stream while a replay on another one still uses it.
        """
        self._buffers[id(buffer)] = buffer

    def renew(self) -> None:
        """After a broken capture: the next ones go to new memory, the recordings made so far keep theirs."""
        self._handle = None
        self._graphs.clear()

    def enter(self) -> None:
        """Order the current stream after the pool's last use. Needs `lock`."""
        stream = self._driver.current_stream()
        if stream != self._last_stream:
            self._driver.follow(self._last_stream)
            for buffer in list(self._buffers.values()):
                self._driver.share(buffer)
            self._last_stream = stream
            self.stream_word.value = self._driver.stream_id(stream)

    def is_usual(self) -> bool:
        """Whether a replay may start at once: the stream is that of the last one, and nobody captures it."""
        return self._driver.current_stream() == self._last_stream and not self._driver.is_capturing()


class ScratchPool:
    """Memory for one capture that is only looked at: a pool that is left at once."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def handle(self) -> Any:
        return self._handle

    def adopt(self, graph: Graph) -> None:
        """Nobody needs to know."""

    def renew(self) -> None:
        """There is no other capture."""


_lock = threading.RLock()  # finalizers and signal handlers come here, too
_pools: weakref.WeakValueDictionary[tuple[Driver, Any], Pool] = weakref.WeakValueDictionary()


def pool_for(driver: Driver) -> Pool:
    """The pool of the current stream; it lives as long as a recording holds it."""
    stream = driver.current_stream()
    with _lock:
        pool = _pools.get((driver, stream))
        if pool is None:
            pool = _pools[driver, stream] = Pool(driver, stream)
        return pool
