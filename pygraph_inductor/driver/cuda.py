"""A CUDA device behind the driver protocol: capture through torch.cuda.CUDAGraph, node updates through the driver.

Launches are torch's own `CUDAGraph.replay`: it advances the philox offset, which a bare cuGraphLaunch does not.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from pygraph_inductor.driver.block_log import BlockLog, watched_blocks
from pygraph_inductor.driver.captured_nodes import nodes_of
from pygraph_inductor.driver.libcuda import DriverError, bindings, checked
from pygraph_inductor.driver.protocol import (
    SMALL,
    CaptureFailed,
    NativeGraph,
    Node,
    NodeKind,
    RandomState,
    Reservation,
    Stopwatch,
    T,
    Twins,
    UpdateRefused,
    no_collection,
)
from pygraph_inductor.driver.stand_ins import AllocatedRange, MappedRange, supports_mapping
from pygraph_inductor.driver.stopwatch import EventStopwatch, identity_of
from pygraph_inductor.driver.table import CudaTable

# torch's stubs do not know it; generated code allocates with it.
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]

_NATIVE_KINDS = {NodeKind.KERNEL: 0, NodeKind.MEMCPY: 1, NodeKind.MEMSET: 2}  # launcher.c: enum NodeKind


class CudaGraph:
    """A captured CUDA graph with its nodes."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self.closed = False
        self._graph = graph
        self._executable = 0
        self._context = int(checked(bindings().cuCtxGetCurrent()))
        read = nodes_of(graph.raw_cuda_graph())
        self._handles = [one.handle for one in read]
        self._parameters = [one.parameters for one in read]
        self.nodes: tuple[Node, ...] = tuple(one.node for one in read)

    def instantiate(self) -> None:
        """Make it executable and put it on the device.

        At once, for the sake of speed: a node that is told new parameters between the two is slower in every replay to
        come (docs/design.md, "Bindings"). Raises `torch.OutOfMemoryError` where the device has no room for it.
        """
        cu = bindings()
        try:
            self._graph.instantiate()
            self._executable = int(self._graph.raw_cuda_graph_exec())
            checked(cu.cuGraphUpload(self._executable, torch.cuda.current_stream().cuda_stream))
        except RuntimeError as error:
            if "out of memory" in str(error).lower().replace("_", " "):
                raise torch.OutOfMemoryError(str(error)) from error
            raise

    def update(self, node: Node) -> None:
        handle, parameters = self._handles[node.index], self._parameters[node.index]
        if parameters is None:
            raise UpdateRefused(f"a {node.name} node has no parameters that we can rewrite")
        try:
            if self._executable:
                parameters.set_in_exec(self._executable, handle, self._context)
            else:
                parameters.set_in_graph(handle)
        except DriverError as error:
            raise UpdateRefused(f"{node.name}: {error}") from error

    def disable(self, node: Node) -> None:
        checked(bindings().cuGraphNodeSetEnabled(self._executable, self._handles[node.index], 0))

    def replay(self) -> None:
        self._graph.replay()

    def native(self) -> NativeGraph:
        return NativeGraph(
            replay=functools.partial(torch._C._CUDAGraph.replay, self._graph),
            executable=self._executable,
            context=self._context,
            nodes=tuple(
                (_NATIVE_KINDS[node.kind], handle, parameters.params) if parameters is not None else None
                for node, handle, parameters in zip(self.nodes, self._handles, self._parameters, strict=True)
            ),
        )

    def close(self) -> None:
        self.closed = True
        self._executable = 0
        self._graph.reset()


@contextlib.contextmanager
def _library_state() -> Iterator[None]:
    """cuBLAS workspaces are made anew for (and after) a capture, and cuDNN's benchmark does not empty caches in it.

    A workspace kept from outside would be shared between the graph and eager calls; one kept from inside would hand
    memory of the graph's pool to eager calls.
    """
    empties_cache = torch._C._cuda_get_conv_benchmark_empty_cache()
    torch._C._cudnn_set_conv_benchmark_empty_cache(False)
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
        torch._C._cudnn_set_conv_benchmark_empty_cache(empties_cache)


def _stream_of_our_own(device: torch.device) -> torch.cuda.ExternalStream:
    """A stream that nobody else can be given: torch has a few dozen, which it hands out in turn, so that what another
    thread launches on one of its own could end up in a capture. It lives as long as the process.
    """
    cu = bindings()
    handle = checked(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    return torch.cuda.ExternalStream(int(handle), device=device)


class CudaDriver:
    """One CUDA device."""

    name = "cuda"
    alignment = 256
    empty_strided = staticmethod(empty_strided_cuda)

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._index = device.index
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # from here on the device has a context
            self._capture_stream = _stream_of_our_own(device)
            self._maps = supports_mapping(self._index)
        # Threads with streams of their own share the stream of captures, the default generator (which can be captured
        # once at a time) and the state of libraries.
        self._capture_lock = threading.RLock()

    def guard(self) -> Any:
        return torch.cuda.device(self.device)

    def stopwatch(self) -> Stopwatch | None:
        return EventStopwatch()

    def identity(self) -> dict[str, str]:
        return identity_of(self.device)

    def pool_bytes(self, pool: Any) -> int:
        segments = torch.cuda.memory_snapshot(pool, include_traces=False)
        return sum(segment["total_size"] for segment in segments)

    def capture(
        self,
        body: Callable[[], T],
        pool: Any,
        namespace: dict[str, Any],
        generators: Sequence[torch.Generator] = (),
    ) -> tuple[CudaGraph, T]:
        with self._capture_lock:
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            with no_collection(), _library_state(), torch.cuda.stream(self._capture_stream):
                result = self._capture_into(graph, body, pool, generators)
            return CudaGraph(graph), result

    def _capture_into(
        self, graph: torch.cuda.CUDAGraph, body: Callable[[], T], pool: Any, generators: Sequence[torch.Generator]
    ) -> T:
        for generator in generators:
            graph.register_generator_state(generator)
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            result = body()
        except BaseException:
            self._abandon(graph, pool, generators)
            raise
        try:
            graph.capture_end()
        except RuntimeError as error:
            self._abandon(graph, pool, generators)
            raise CaptureFailed(f"the device refused the capture: {error}") from error
        return result

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Any, generators: Sequence[torch.Generator]) -> None:
        """End a broken capture so that allocator and generators forget it.

        When ending fails, torch neither stops routing allocations to the pool nor tells the generators
        (CUDAGraph::capture_end checks the driver's answer first). A second, empty capture does both.
        """
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
            graph.reset()
            return
        healing = torch.cuda.CUDAGraph(keep_graph=True)
        for generator in generators:
            healing.register_generator_state(generator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that the graph is empty
            # Into a pool of its own: the allocator takes the broken one to be recording for ever.
            healing.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode="thread_local")
            healing.capture_end()
        with contextlib.suppress(RuntimeError):  # "not currently recording": it was told after all
            torch._C._cuda_endAllocateToPool(self._index, pool)
        for broken in (healing, graph):
            with contextlib.suppress(RuntimeError):
                broken.reset()

    def nodes_so_far(self) -> int:
        cu = bindings()
        stream = torch.cuda.current_stream(self.device).cuda_stream
        under_way = checked(cu.cuStreamGetCaptureInfo(stream))
        graph = next(value for value in under_way if isinstance(value, cu.CUgraph))
        return int(checked(cu.cuGraphGetNodes(graph, 0))[1])

    def twins(self, namespace: dict[str, Any]) -> Twins | None:
        return None

    def new_table(self, length: int) -> CudaTable:
        return CudaTable(length, self.device)

    def new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def is_held(self, pool: Any) -> bool:
        segments = torch.cuda.memory_snapshot(pool, include_traces=False)
        return any(segment["allocated_size"] for segment in segments)

    def watched_blocks(self) -> AbstractContextManager[BlockLog]:
        return watched_blocks(self._index)

    def reserve(self, nbytes: int, fill: int) -> Reservation:
        if self._maps:
            return MappedRange(nbytes, self._index, fill)
        return AllocatedRange(nbytes, self._index, fill)

    def tensor_at(
        self, address: int, nbytes: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        storage = torch._C._construct_storage_from_data_pointer(address, self.device, nbytes)
        return torch.empty(0, dtype=dtype, device=self.device).set_(storage, 0, size, stride)

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return empty_strided_cuda(size, stride, dtype)

    def owns(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda and tensor.get_device() == self._index and tensor.layout is torch.strided

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def stream_id(self, stream: torch.cuda.Stream) -> int:
        return int(stream.cuda_stream)

    def follow(self, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            if torch.cuda.is_current_stream_capturing():
                # Waiting for it would draw the current stream into that capture.
                raise RuntimeError("the stream of the last replay is being captured")
        self.current_stream().wait_stream(stream)

    def share(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self.current_stream())

    def random_state(self, generators: Sequence[torch.Generator] = ()) -> RandomState:
        watched = (torch.cuda.default_generators[self._index], *generators)
        return [(generator, generator.get_state()) for generator in watched]

    def set_random_state(self, state: RandomState) -> None:
        for generator, saved in state:
            generator.set_state(saved)

    def free_bytes(self) -> int:
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + cached

    def soil_free_memory(self, byte: int, small_only: bool = False) -> None:
        # The allocator gives out the block that fits best: asking for the sizes of all that is free gets just that, and
        # nobody else can be in it meanwhile.
        with contextlib.suppress(RuntimeError):  # out of memory, or an allocator that tells nothing of itself
            held: list[torch.Tensor] = []
            with contextlib.suppress(torch.OutOfMemoryError):
                self._take(self._free_blocks(small_only), held)
            for block in held:
                block.fill_(byte)

    def _take(self, sizes: list[int], held: list[torch.Tensor]) -> None:
        """Allocate blocks of these sizes, until that takes new memory from the device: then they are not to be had,
        because a thread allocates to a pool of the user's, sizes are rounded up, or another thread was faster.
        """
        # Parts of small blocks from the largest on, so that they fit; large ones, each a whole, from the smallest on,
        # so that what is new is little.
        sizes.sort(key=lambda size: (size > SMALL, size if size > SMALL else -size))
        reserved = torch.cuda.memory_reserved(self.device)
        for size in sizes:
            held.append(torch.empty(size, dtype=torch.uint8, device=self.device))
            if (size > SMALL or len(held) == 1) and torch.cuda.memory_reserved(self.device) > reserved:
                held.pop()
                return

    def _free_blocks(self, small_only: bool) -> list[int]:
        """The sizes to ask the allocator for to get all that is free for the current stream."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        sizes: list[int] = []
        for segment in torch.cuda.memory_snapshot(include_traces=False):
            ours = segment["device"] == self._index and segment["stream"] == stream
            small = segment["segment_type"] == "small"
            # A large segment that can grow would rather do so than give out what it has.
            grows = segment.get("is_expandable") and not small
            if not ours or grows or (small_only and not small) or tuple(segment["segment_pool_id"]) != (0, 0):
                continue
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    sizes += _requests(block["size"], small)
        return sizes

    def release_cached(self) -> None:
        # The allocator refuses while anybody captures. None of ours is under way then; others are not waited for.
        with self._capture_lock, contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()

    def release_workspaces(self) -> None:
        with self._capture_lock:
            torch._C._cuda_clearCublasWorkspaces()


def _requests(size: int, small: bool) -> list[int]:
    """What to ask the allocator for to get a free block of a small or large segment, and nothing new.

    A remainder of a large segment that is small is out of reach; nobody else gets it either.
    """
    if not small:
        return [size] if size > SMALL else []
    whole, rest = divmod(size, SMALL)
    return [SMALL] * whole + [rest] * (rest > 0)
