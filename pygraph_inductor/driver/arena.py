"""Memory of the simulated device: address ranges, and pools that reuse freed blocks as CUDA's caching allocator does.

A capture takes the memory of intermediates from a pool. A block is free again the moment its tensor's storage dies,
so a later allocation of the same capture may get its address: the traps that this sets on a GPU are set here too.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import ctypes
import functools
import mmap
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from pygraph_inductor.driver.protocol import BlockEvent

_ALIGNMENT = 512
_SMALL_REQUEST = 1 << 20
_SMALL_SEGMENT = 2 << 20
_LARGE_SEGMENT = 20 << 20
_LARGE_REQUEST = 10 << 20
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if hasattr(mmap, "MAP_POPULATE") else 0)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def span_of(size: Sequence[int], stride: Sequence[int], itemsize: int) -> int:
    """Bytes from the first to behind the last element; 0 for an empty tensor."""
    if 0 in size:
        return 0
    return (sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1) * itemsize


class AddressRange:
    """A range of addresses whose bytes read as `fill`; pages of zeros cost memory only once they are written."""

    def __init__(self, nbytes: int, fill: int = 0) -> None:
        self.nbytes = round_up(max(nbytes, 1), mmap.PAGESIZE)
        self._memory: mmap.mmap | None = mmap.mmap(
            -1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        )
        # The temporary view is gone when this line ends: a view that lives on would forbid `close`.
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._fill = fill
        if fill:
            self.refill()

    def refill(self) -> None:
        """Let every byte be `fill` again."""
        ctypes.memset(self.address, self._fill, self.nbytes)

    def close(self) -> None:
        """Give the addresses back. Nothing may use them any more."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None


@functools.cache
def _buffer_type(nbytes: int) -> type[ctypes.Array]:
    # Plain ctypes arrays cannot be referenced weakly; their subclasses can.
    return type("Buffer", (ctypes.c_char * nbytes,), {})


@dataclass(eq=False)
class _Segment:
    """Memory got from the system at once; `size_class` keeps small blocks out of large segments."""

    addresses: AddressRange
    size_class: int


@dataclass(eq=False)
class _Block:
    """A piece of a segment, linked to its neighbours."""

    segment: _Segment
    address: int
    size: int
    in_use: bool = False
    before: _Block | None = None
    after: _Block | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Best fit first: the smallest block, among equals the lowest address."""
        return (self.size, self.address)

    def __lt__(self, other: _Block) -> bool:
        return self.rank < other.rank

    @property
    def is_whole_segment(self) -> bool:
        return self.before is None and self.after is None


class ArenaLog:
    """Which blocks were given out and taken back since this object was made."""

    def __init__(self) -> None:
        self._events: list[BlockEvent] = []

    def so_far(self) -> int:
        return len(self._events)

    def events(self) -> list[BlockEvent]:
        return self._events

    def add(self, event: BlockEvent) -> None:
        self._events.append(event)


@dataclass(eq=False)
class Arena:
    """What all pools of one device hold together, and the limit that a test may set."""

    limit: int | None = None
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    _pools: weakref.WeakSet[MemoryPool] = field(default_factory=weakref.WeakSet)
    _logs: list[ArenaLog] = field(default_factory=list)

    @contextlib.contextmanager
    def watched(self) -> Iterator[ArenaLog]:
        """Note what is given out and taken back meanwhile."""
        log = ArenaLog()
        self._logs.append(log)
        try:
            yield log
        finally:
            self._logs.remove(log)

    def note(self, event: BlockEvent) -> None:
        for log in self._logs:
            log.add(event)

    def new_pool(self) -> MemoryPool:
        pool = MemoryPool(self)
        self._pools.add(pool)
        return pool

    def settle(self) -> None:
        """Account for every storage that has died."""
        for pool in list(self._pools):
            pool.settle()

    def check(self, nbytes: int) -> None:
        if self.limit is not None and self.allocated_bytes + nbytes > self.limit:
            raise torch.OutOfMemoryError(
                f"simulated device out of memory: tried to allocate {nbytes} bytes, "
                f"{self.allocated_bytes} of {self.limit} are in use"
            )


class MemoryPool:
    """Private memory shared by the graphs captured into it.

    Memory stays with the pool while a graph uses it, for replays write there; once the last one is closed, segments go
    back to the system as soon as nothing lives in them.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        # Not reentrant on purpose: a storage may die, and its finalizer run, while this very thread holds the lock.
        self._lock = threading.Lock()
        self._dead: collections.deque[_Block] = collections.deque()
        self._free: dict[int, list[_Block]] = collections.defaultdict(list)
        self._segments: list[_Segment] = []
        self._users = 0
        # CUDA's allocator takes no second capture into a pool that a capture broke in, or that all graphs have left.
        self.is_finished = False

    def retain(self) -> None:
        """A graph that uses the pool's addresses exists, or is being captured."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """One such graph is gone."""
        with self._lock:
            self._users -= 1
            self.is_finished = self.is_finished or self._users == 0
            self._settle()

    def settle(self) -> None:
        """Free the blocks of storages that have died."""
        with self._lock:
            self._settle()

    def ranges(self) -> list[tuple[int, int]]:
        """The addresses that belong to the pool now."""
        self.settle()
        return [(s.addresses.address, s.addresses.address + s.addresses.nbytes) for s in self._segments]

    def is_held(self) -> bool:
        """Whether a tensor of it is alive."""
        self.settle()
        free = sum(block.size for blocks in self._free.values() for block in blocks)
        return free < sum(segment.addresses.nbytes for segment in self._segments)

    def empty_strided(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor; its memory may have been another tensor's a moment ago."""
        nbytes = span_of(size, stride, dtype.itemsize)
        if nbytes == 0:
            return torch.empty_strided(size, stride, dtype=dtype)
        flat = self._allocate(nbytes)
        return torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), 0, tuple(size), tuple(stride))

    def _allocate(self, nbytes: int) -> torch.Tensor:
        with self._lock:
            self._settle()
            size = round_up(nbytes, _ALIGNMENT)
            self._arena.check(size)
            block = self._take(size)
            self._arena.allocated_bytes += block.size
            self._arena.note(BlockEvent(block.address, nbytes, given=True))
        buffer = _buffer_type(block.size).from_address(block.address)
        # The storage holds the buffer; when the storage dies, the buffer does.
        weakref.finalize(buffer, self._note_dead, block).atexit = False
        return torch.frombuffer(buffer, dtype=torch.uint8, count=nbytes)

    def _note_dead(self, block: _Block) -> None:
        self._dead.append(block)
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        while self._dead:
            block = self._dead.popleft()
            self._arena.allocated_bytes -= block.size
            self._arena.note(BlockEvent(block.address, block.size, given=False))
            self._give_back(block)
        if self._users == 0 and self._segments:
            self._return_segments()

    def _take(self, size: int) -> _Block:
        size_class = 0 if size <= _SMALL_REQUEST else 1
        free = self._free[size_class]
        place = bisect.bisect_left(free, (size, 0), key=lambda block: block.rank)
        block = free.pop(place) if place < len(free) else self._new_segment(size, size_class)
        self._split(block, size)
        block.in_use = True
        return block

    def _new_segment(self, size: int, size_class: int) -> _Block:
        if size_class == 0:
            nbytes = _SMALL_SEGMENT
        elif size < _LARGE_REQUEST:
            nbytes = _LARGE_SEGMENT
        else:
            nbytes = round_up(size, _SMALL_SEGMENT)
        segment = _Segment(AddressRange(nbytes), size_class)
        self._segments.append(segment)
        self._arena.reserved_bytes += nbytes
        return _Block(segment, segment.addresses.address, nbytes)

    def _split(self, block: _Block, size: int) -> None:
        rest = block.size - size
        smallest = _ALIGNMENT if block.segment.size_class == 0 else _SMALL_REQUEST
        if rest < smallest:
            return
        behind = _Block(block.segment, block.address + size, rest, before=block, after=block.after)
        if block.after is not None:
            block.after.before = behind
        block.after = behind
        block.size = size
        bisect.insort(self._free[block.segment.size_class], behind)

    def _give_back(self, block: _Block) -> None:
        free = self._free[block.segment.size_class]
        block.in_use = False
        if block.after is not None and not block.after.in_use:
            free.remove(block.after)
            self._merge(block, block.after)
        if block.before is not None and not block.before.in_use:
            free.remove(block.before)
            block = self._merge(block.before, block)
        bisect.insort(free, block)

    @staticmethod
    def _merge(first: _Block, second: _Block) -> _Block:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first

    def _return_segments(self) -> None:
        for free in self._free.values():
            for block in [block for block in free if block.is_whole_segment]:
                free.remove(block)
                self._segments.remove(block.segment)
                self._arena.reserved_bytes -= block.segment.addresses.nbytes
                block.segment.addresses.close()

    def __del__(self) -> None:
        # A pool is dropped with its last graph; storages that still live keep the pool alive through their finalizers.
        # In a cycle of garbage its graphs may go after it: they must find nothing to give back.
        segments, self._segments = self._segments, []
        self._arena.reserved_bytes -= sum(segment.addresses.nbytes for segment in segments)
