"""A device without a GPU behind the driver protocol: CPU tensors, real numerics, the rules of CUDA graphs.

A capture executes nothing and freezes parameters as bytes; a replay works from the bytes that the last update gave it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch._C._dynamo.guards import _empty_strided_cpu  # type: ignore[attr-defined]

from pygraph_inductor.driver.arena import AddressRange, Arena, MemoryPool
from pygraph_inductor.driver.capturing import Faults, HostReadMode, NotPermitted, OperatorMode, Recorder
from pygraph_inductor.driver.frozen_launch import Indirect, Launch, tensor_at, undisturbed
from pygraph_inductor.driver.protocol import (
    TABLE_WRITER,
    Area,
    BlockLog,
    CaptureFailed,
    ChooseEntries,
    NativeGraph,
    Node,
    NodeKind,
    RandomState,
    Reservation,
    Stopwatch,
    T,
    UpdateRefused,
)
from pygraph_inductor.driver.thread_globals import meaning, original_of


class _ThreadState(threading.local):
    """What the current thread does with the device."""

    recorder: Recorder | None = None
    replaying: bool = False
    stream: Hashable = "default stream"


_thread = _ThreadState()


class SimulatedGraph:
    """A captured list of launches with its nodes."""

    def __init__(self, recorder: Recorder, pool: Any, faults: Faults) -> None:
        self._launches: Sequence[Launch] = tuple(recorder.launches)
        self._constants = recorder.constants
        self._pool: Any | None = pool
        self._faults = faults
        self._instantiated = False
        self._in_body = [faults.conditional(launch.name) for launch in self._launches]
        self.nodes: tuple[Node, ...] = tuple(
            Node(
                index,
                launch.kind,
                launch.name,
                tuple(map(Area, launch.areas)),
                launch.identity,
                not (in_body or faults.inside(launch.name)),
                in_body and launch.kind is not NodeKind.OTHER,
            )
            for index, (launch, in_body) in enumerate(zip(self._launches, self._in_body, strict=True))
        )
        self._contents = [launch.areas for launch in self._launches]
        # What a replay runs, per node; made from the contents by the first replay after they changed.
        self._work: list[Callable[[], None] | None] = [None] * len(self._launches)
        self._disabled: set[int] = set()

    def instantiate(self) -> None:
        self._instantiated = True

    def update(self, node: Node) -> None:
        if not node.areas or not node.updatable:
            raise UpdateRefused(f"a {node.name} node has no parameters that we can rewrite")
        if self._faults.refuses(node):
            raise UpdateRefused(f"{node.name}: the device does not accept these parameters")
        self._contents[node.index] = tuple(area.content() for area in node.areas)
        self._work[node.index] = None

    def disable(self, node: Node) -> None:
        self._disabled.add(node.index)

    def replay(self) -> None:
        if not self._instantiated or self._pool is None:
            raise RuntimeError("the graph is not instantiated, or closed")
        outer, _thread.replaying = _thread.replaying, True
        try:
            with undisturbed():
                for index, work in enumerate(self._work):
                    if index in self._disabled or (self._in_body[index] and not self._faults.taken):
                        continue
                    if work is None:
                        work = self._work[index] = self._launches[index].bind(self._contents[index])
                    work()
        finally:
            _thread.replaying = outer

    @property
    def closed(self) -> bool:
        return self._pool is None

    def native(self) -> NativeGraph:
        return NativeGraph(self.replay, 0, 0, (None,) * len(self.nodes))

    def close(self) -> None:
        if self._pool is not None:
            self._launches, self._contents, self._work, self._constants = (), [], [], []
            self._pool.release()
            self._pool = None

    def __del__(self) -> None:
        self.close()


def _is_kernel(name: str, value: Any) -> bool:
    """Whether a global of a generated module is a compiled kernel (async_compile.cpp_pybinding, torch 2.11-2.15)."""
    if isinstance(value, types.BuiltinFunctionType):
        return value.__name__ == "kernel" and isinstance(value.__self__, types.ModuleType)
    return name.startswith("cpp_") and callable(value)


def _is_allocator(name: str, value: Any) -> bool:
    return name == "empty_strided_cpu" or value is _empty_strided_cpu


@contextlib.contextmanager
def _doors(recorder: Recorder, namespace: dict[str, Any]) -> Iterator[None]:
    """Let everything that the current thread launches through `namespace` or the dispatcher reach the recorder."""
    makers: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {}
    for name, value in list(namespace.items()):
        if _is_allocator(name, original_of(value)):
            makers[name] = lambda original: recorder.allocate
        elif _is_kernel(name, original_of(value)):
            makers[name] = functools.partial(_recording, recorder, name)
    _thread.recorder = recorder
    try:
        with meaning(namespace, makers), HostReadMode(recorder), OperatorMode(recorder):
            yield
    finally:
        _thread.recorder = None


def _recording(recorder: Recorder, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: recorder.kernel(name, kernel, args)


class SimulatedTwins:
    """Every kernel has twins: the launch itself reads the addresses (`frozen_launch.IndirectParameter`)."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace

    def refusal(self, kernel: str, argument: int) -> str | None:
        return None

    def prepare(self, kernel: str, arguments: tuple[int, ...]) -> str | None:
        return None

    def meanings(self, choose: ChooseEntries) -> dict[str, Callable[[Any], Any]]:
        names = [name for name, value in self._namespace.items() if _is_kernel(name, original_of(value))]
        return {name: functools.partial(_choosing, name, choose) for name in names}


def _choosing(name: str, choose: ChooseEntries, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def launch(*args: Any) -> Any:
        entries = choose(name, args)
        return kernel(*(Indirect(entries[n], value) if n in entries else value for n, value in enumerate(args)))

    return launch


class SimulatedTable:
    """Addresses in ordinary memory."""

    def __init__(self, length: int) -> None:
        self.entries = torch.zeros(length, dtype=torch.int64)

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        assert _thread.recorder is not None
        _thread.recorder.kernel(TABLE_WRITER, write_table, (self.entries, *tensors))


def write_table(entries: torch.Tensor, *tensors: torch.Tensor) -> None:
    for number, tensor in enumerate(tensors):
        entries[number] = tensor.data_ptr()


class SimulatedDriver:
    """The CPU as a device that captures."""

    name = "simulated"
    alignment = 64  # c10/core/alignment.h: what torch's CPU allocator gives
    empty_strided = staticmethod(_empty_strided_cpu)

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.arena = Arena()
        self.faults = Faults()
        # Makes stopwatches, for tests that say how long things take.
        self.clock: Callable[[], Stopwatch] | None = None
        # (the stream that waits, the stream it waits for), in order: what `follow` was asked.
        self.waits: list[tuple[Hashable, Hashable]] = []
        # (the stream, the address of the tensor), in order: what `share` was told.
        self.shared: list[tuple[Hashable, int]] = []

    def guard(self) -> Any:
        return contextlib.nullcontext()

    def stopwatch(self) -> Stopwatch | None:
        # Real times would say nothing: a simulated replay costs what launching its kernels costs.
        return self.clock() if self.clock is not None else None

    def identity(self) -> dict[str, str]:
        return {"device": self.name, "clocks": "", "driver": ""}

    def capture(
        self,
        body: Callable[[], T],
        pool: Any,
        namespace: dict[str, Any],
        generators: Sequence[torch.Generator] = (),
    ) -> tuple[SimulatedGraph, T]:
        if self.is_capturing():
            raise CaptureFailed("the current stream is capturing already")
        if pool.is_finished:
            raise CaptureFailed("the pool is left by all its graphs, or a capture broke in it")
        recorder = Recorder(pool, generators, self.faults)
        pool.retain()
        try:
            with _doors(recorder, namespace):
                result = body()
            if recorder.broken is not None:
                raise recorder.broken
        except BaseException as error:
            pool.is_finished = True
            pool.release()
            if isinstance(error, NotPermitted):
                raise CaptureFailed(f"the device refused the capture: {error}") from error
            raise
        return SimulatedGraph(recorder, pool, self.faults), result

    def nodes_so_far(self) -> int:
        return len(_thread.recorder.launches) if _thread.recorder is not None else 0

    def twins(self, namespace: dict[str, Any]) -> SimulatedTwins:
        return SimulatedTwins(namespace)

    def new_table(self, length: int) -> SimulatedTable:
        return SimulatedTable(length)

    def new_pool(self) -> MemoryPool:
        return self.arena.new_pool()

    def is_held(self, pool: Any) -> bool:
        return bool(pool.is_held())

    def pool_bytes(self, pool: Any) -> int:
        return sum(end - start for start, end in pool.ranges())

    def pool_ranges(self, pool: Any) -> list[tuple[int, int]]:
        return pool.ranges()

    def watched_blocks(self) -> contextlib.AbstractContextManager[BlockLog]:
        return self.arena.watched()

    def reserve(self, nbytes: int, fill: int = 0) -> Reservation:
        return AddressRange(nbytes, fill)

    def tensor_at(
        self, address: int, nbytes: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        return tensor_at(address, nbytes, size, stride, dtype)

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return _empty_strided_cpu(tuple(size), tuple(stride), dtype)

    def owns(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and tensor.layout is torch.strided

    def is_capturing(self) -> bool:
        # A node that is being replayed stands for launches inside the graph: nothing may be captured from within.
        return _thread.recorder is not None or _thread.replaying

    def stream_id(self, stream: Hashable) -> int:
        return hash(stream) & (1 << 63) - 1

    def current_stream(self) -> Hashable:
        return _thread.stream

    @contextlib.contextmanager
    def stream(self, stream: Hashable) -> Iterator[None]:
        """Make `stream` the current thread's current stream."""
        outer, _thread.stream = _thread.stream, stream
        try:
            yield
        finally:
            _thread.stream = outer

    def follow(self, stream: Hashable) -> None:
        self.waits.append((_thread.stream, stream))

    def share(self, tensor: torch.Tensor) -> None:
        self.shared.append((_thread.stream, tensor.data_ptr()))

    def random_state(self, generators: Sequence[torch.Generator] = ()) -> RandomState:
        return [(generator, generator.get_state()) for generator in (torch.default_generator, *generators)]

    def set_random_state(self, state: RandomState) -> None:
        for generator, saved in state:
            generator.set_state(saved)

    def free_bytes(self) -> int:
        self.arena.settle()
        if self.arena.limit is not None:
            return max(0, self.arena.limit - self.arena.allocated_bytes)
        pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")

    def soil_free_memory(self, byte: int, small_only: bool = False) -> None:
        """Nothing is cached here: plain calls have their memory from the process's own allocator."""

    def release_cached(self) -> None:
        self.arena.settle()

    def release_workspaces(self) -> None:
        """Libraries keep nothing here."""
