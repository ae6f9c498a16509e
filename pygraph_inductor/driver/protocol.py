"""What recording and replay need of a device: capture, parameters of nodes, addresses, streams, random state.

Two drivers speak this protocol: `cuda.py` (a CUDA device) and `simulated.py` (CPU tensors, real numerics).
Nothing here knows Inductor.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

T = TypeVar("T")
SMALL = 1 << 20  # bytes; what is larger comes from other segments (PyTorch's CUDA caching allocator)
# The device's default generator first.
RandomState = list[tuple[torch.Generator, torch.Tensor]]


_collection_lock = threading.RLock()  # finalizers and signal handlers come here, too
_collection_holds: list[bool] = []  # one per open context, of all threads; the first knows whether to switch on again


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Garbage may hold graphs, and destroying a graph breaks a capture of the same thread.

    The collector has one switch for all threads: it stays off until the last of them leaves.
    """
    with _collection_lock:
        _collection_holds.append(not _collection_holds and gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _collection_lock:
            if _collection_holds.pop() and not _collection_holds:
                gc.enable()


class CaptureFailed(RuntimeError):
    """The capture was refused or broken by what ran inside it; the device is usable again."""


class UpdateRefused(RuntimeError):
    """The driver does not accept new parameters for a node (another kind of memory, another shape of copy)."""


class NodeKind(enum.Enum):
    """The node types whose addresses we can rewrite, and the two ways not to."""

    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    EMPTY = "empty"
    GRAPH = "child graph"  # its nodes are among the others
    CONDITIONAL = "conditional node"  # so are those of its bodies, all of them
    OTHER = "other"


class Area:
    """A piece of a node's parameters: our own copy, at an address that never moves.

    The memory that a driver returns for a node belongs to the node (CUDA driver API, graph node parameters), so it
    is copied here, rewritten here, and handed back to the driver from here.
    """

    __slots__ = ("_memory", "address", "size")

    def __init__(self, content: bytes, alignment: int = 64) -> None:
        self._memory = ctypes.create_string_buffer(len(content) + alignment)
        self.address = -(-ctypes.addressof(self._memory) // alignment) * alignment
        self.size = len(content)
        ctypes.memmove(self.address, content, len(content))

    def word(self, offset: int) -> int:
        """The 8-byte little-endian word at `offset` bytes."""
        return ctypes.c_uint64.from_address(self.address + offset).value

    def set_word(self, offset: int, value: int) -> None:
        """Write `value` as the 8-byte word at `offset` bytes."""
        ctypes.c_uint64.from_address(self.address + offset).value = value

    def content(self) -> bytes:
        """A copy of the bytes."""
        return ctypes.string_at(self.address, self.size)


@dataclass(frozen=True, eq=False)
class Node:
    """One node of a captured graph with our copy of its parameters.

    Kernel: one area per parameter, or one packed buffer. Memcpy and memset: one area, the driver's struct or words
    that hold the addresses. Other kinds: no areas. `identity` is everything else that two
    captures of the same work must agree on (function, launch shape, bytes).

    A node inside a child graph or the body of a conditional node comes after all that are not. It is not `updatable`:
    CUDA can tell an executable graph new parameters of its own nodes only. `conditional`: it is inside such a body, and
    a replay may come to it though the one that was verified did not.
    """

    index: int
    kind: NodeKind
    name: str
    areas: tuple[Area, ...] = ()
    identity: tuple[Any, ...] = ()
    updatable: bool = True
    conditional: bool = False


# The kernel's name and its launch's arguments -> for the arguments that shall be indirect, by position, the entry of a
# table (an int64 tensor of one element) that will hold the address. None: the kernel is launched as it is.
ChooseEntries = Callable[[str, tuple[Any, ...]], Mapping[int, torch.Tensor]]


# How nodes are told apart by name: a twin's ends in this, and the node that writes a table is called that.
TWIN = "_indirect"
TABLE_WRITER = "pygraph_write_table"


class Twins(Protocol):
    """Kernels of generated code, and their twins: the same kernels, given addresses of addresses."""

    def refusal(self, kernel: str, argument: int) -> str | None:
        """Why an argument of a kernel's launches cannot be indirect; None if it can."""

    def prepare(self, kernel: str, arguments: tuple[int, ...]) -> str | None:
        """Make the twin with these arguments indirect; not during a capture. Returns why there is none, or None."""

    def meanings(self, choose: ChooseEntries) -> Mapping[str, Callable[[Any], Any]]:
        """What each kernel's global shall mean while `choose` decides about launches (`thread_globals.meaning`)."""


class PointerTable(Protocol):
    """Addresses in device memory, outside every pool, where twins find them."""

    entries: torch.Tensor  # int64, one per address

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Under capture: record nodes that hold the tensors' addresses in their parameters and put them here."""


@dataclass(frozen=True)
class BlockEvent:
    """The allocator gave out a block, of which `nbytes` were asked for, or took it back."""

    address: int
    nbytes: int
    given: bool


class BlockLog(Protocol):
    """What the allocator does while it is watched, for all threads."""

    def so_far(self) -> int:
        """How many events there were."""

    def events(self) -> list[BlockEvent] | None:
        """Them, in order; None if that is not known."""


class Reservation(Protocol):
    """A range of addresses for stand-ins. It stays valid until `close`."""

    address: int
    nbytes: int

    def refill(self) -> None:
        """Let it hold what it held at first, for what the current stream does next."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class NativeGraph:
    """What the launcher in C needs to update and launch a graph.

    `nodes` has, per node, its kind in launcher.c, its handle and the address of its parameters; None where only
    `Graph.update` can serve it. `executable` and `context` are handles, 0 where there is no device.
    """

    replay: Callable[[], None]
    executable: int
    context: int
    nodes: tuple[tuple[int, int, int] | None, ...]


class Graph(Protocol):
    """A captured graph. `update` before `instantiate` changes the template, afterwards the executable graph."""

    @property
    def closed(self) -> bool: ...

    @property
    def nodes(self) -> Sequence[Node]: ...

    def instantiate(self) -> None: ...

    def update(self, node: Node) -> None:
        """Hand the node's areas, as they are now, to the driver. Raises `UpdateRefused`."""

    def disable(self, node: Node) -> None:
        """Make a node of the executable graph do nothing from now on. Only after `instantiate`."""

    def replay(self) -> None:
        """Launch on the current stream; advances the registered generators as one plain call would."""

    def native(self) -> NativeGraph:
        """Handles for the launcher in C; only after `instantiate`, and until `close`."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Timing:
    """What one call took, in ns of the host's and of the device's clock.

    `behind`: when the call began, the device had not finished what it was given before.
    """

    host_ns: int
    device_ns: int
    behind: bool


class Stopwatch(Protocol):
    """Times one call on the current stream, without ever waiting for the device."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def read(self) -> Timing | None:
        """What the call took; None as long as the device is not done with it."""


class Driver(Protocol):
    """One device."""

    name: str
    device: torch.device
    # The allocator's addresses are multiples of it, and no kernel is chosen by more than it.
    alignment: int
    # What generated code calls to allocate, with a tuple of size, one of stride and the dtype: on the current device.
    empty_strided: Callable[..., torch.Tensor]

    def capture(
        self,
        body: Callable[[], T],
        pool: Any,
        namespace: dict[str, Any],
        generators: Sequence[torch.Generator] = (),
    ) -> tuple[Graph, T]:
        """Run `body` under capture; memory it allocates comes from `pool`. Nothing executes.

        `namespace` holds the globals of the code behind `body`. Raises `CaptureFailed` if the device refused;
        an exception of `body` passes through after the capture was ended. After either, `pool` is not to be used for
        another capture.
        """

    def nodes_so_far(self) -> int:
        """How many nodes the capture that is under way has, those inside child graphs and bodies not counted.

        Only inside the body of `capture`.
        """

    def twins(self, namespace: dict[str, Any]) -> Twins | None:
        """Twins of the kernels among these globals, where it is the device that makes them and not a compiler."""

    def new_table(self, length: int) -> PointerTable:
        """A table for `length` addresses; not during a capture."""

    def new_pool(self) -> Any:
        """A private memory pool for intermediates, shared by the graphs captured into it."""

    def is_held(self, pool: Any) -> bool:
        """Whether somebody has a tensor of the pool's memory."""

    def watched_blocks(self) -> AbstractContextManager[BlockLog]:
        """Let it be known which blocks the allocator gives out and takes back meanwhile."""

    def reserve(self, nbytes: int, fill: int) -> Reservation:
        """Addresses that a capture may mention: valid, aligned to `alignment`, with little memory behind them.

        Every byte reads as `fill` until somebody writes there.
        """

    def tensor_at(
        self, address: int, nbytes: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor over memory that somebody else owns; `nbytes` is the size of its storage."""

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor, allocated as generated code allocates. Needs `guard`."""

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lives on this device (and is dense enough to have one address)."""

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured, by anybody."""

    def current_stream(self) -> Any:
        """A hashable, comparable handle of the current stream."""

    def stream_id(self, stream: Any) -> int:
        """The number by which the launcher in C knows a stream."""

    def follow(self, stream: Any) -> None:
        """Make the current stream wait for what was submitted to `stream` so far."""

    def share(self, tensor: torch.Tensor) -> None:
        """The current stream uses it, too: once freed, it is not given out again before that stream is done with it."""

    def random_state(self, generators: Sequence[torch.Generator] = ()) -> RandomState:
        """The state of the device's default generator and of `generators`."""

    def set_random_state(self, state: RandomState) -> None:
        """Put back what `random_state` returned."""

    def free_bytes(self) -> int:
        """Memory that could still be allocated."""

    def soil_free_memory(self, byte: int, small_only: bool = False) -> None:
        """Overwrite what the allocator holds free, so that memory that a call does not write differs between calls.

        `small_only`: where tensors of up to `SMALL` bytes are made, which takes little time however much is free. Best
        effort, and only for the current stream's memory. Needs `guard`.
        """

    def release_cached(self) -> None:
        """Give memory that is merely cached back, as far as that can be had now."""

    def release_workspaces(self) -> None:
        """Give back what libraries keep for calls to come; those that do come get new ones."""

    def stopwatch(self) -> Stopwatch | None:
        """A new stopwatch; None where the device has no clock, so that nothing can be measured."""

    def identity(self) -> dict[str, str]:
        """What times measured on this device hold for: its model, its clocks, its driver."""

    def pool_bytes(self, pool: Any) -> int:
        """How much memory a pool has taken from the device."""

    def guard(self) -> Any:
        """A context manager under which this device is current."""
