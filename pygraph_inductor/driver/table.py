"""A table of addresses on a CUDA device, and the kernel that writes it.

The kernel takes the addresses by value. So they are words in a node's parameters like all others: a replay rewrites
them there, and one update serves a whole table. The node is the graph's first, so twins find the addresses of their
own replay, and a replay that still runs finds its own, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections.abc import Sequence

import torch

from pygraph_inductor.driver.libcuda import DriverError, bindings, checked, launch
from pygraph_inductor.driver.protocol import TABLE_WRITER

# Addresses per node. A launch's parameters may take 4 KiB; a smaller kernel is cheaper to update.
_SIZES = (16, 64, 256, 500)
_THREADS = 128


class CudaTable:
    """Addresses in memory of their own.

    Neither of a graph's pool, where an intermediate could be in the same place, nor of the caching allocator, which
    would give the memory away while a replay still reads it: giving it back to the driver waits for the device, as
    giving back a graph's pool does.
    """

    def __init__(self, length: int, device: torch.device) -> None:
        nbytes = 8 * length
        address = int(checked(bindings().cuMemAlloc(nbytes)))
        weakref.finalize(self, _free, address).atexit = False
        storage = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
        self.entries = torch.empty(0, dtype=torch.int64, device=device).set_(storage, 0, (length,), (1,))
        self._kernels = [(part, _kernel(device.index, _size_for(len(part)))) for part in _parts(length)]
        # Once outside of every capture: a function may be loaded as late as by its first launch, which a capture
        # does not permit. Then replays on other streams find the memory at rest.
        self._launch([0] * length)
        torch.cuda.current_stream(device).synchronize()

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        self._launch([tensor.data_ptr() for tensor in tensors])

    def _launch(self, addresses: Sequence[int]) -> None:
        stream = torch.cuda.current_stream(self.entries.device).cuda_stream
        for part, kernel in self._kernels:
            words = (ctypes.c_uint64 * _size_for(len(part)))(*addresses[part.start : part.stop])
            first = ctypes.c_uint64(self.entries.data_ptr() + part.start * self.entries.itemsize)
            blocks = -(-len(part) // _THREADS)
            launch(kernel, blocks, _THREADS, stream, (first, ctypes.c_uint32(len(part)), words))


def _free(address: int) -> None:
    with contextlib.suppress(DriverError):  # the device may be lost
        checked(bindings().cuMemFree(address))


def _parts(length: int) -> list[range]:
    return [range(start, min(start + _SIZES[-1], length)) for start in range(0, length, _SIZES[-1])]


def _size_for(count: int) -> int:
    return next(size for size in _SIZES if count <= size)


@functools.cache
def _kernel(device_index: int, size: int) -> int:
    """The function's handle; it stays loaded, since graphs refer to it. The device must be current."""
    cu = bindings()
    module = checked(cu.cuModuleLoadData(ptx(size).encode() + b"\0"))
    return int(checked(cu.cuModuleGetFunction(module, TABLE_WRITER.encode())))


def ptx(size: int) -> str:
    """A kernel for at most `size` addresses: `table[i] = words[i]` for i < count. The driver compiles it."""
    return f"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry {TABLE_WRITER}(
    .param .u64 table,
    .param .u32 count,
    .param .align 8 .b8 words[{8 * size}]
)
{{
    .reg .pred %outside;
    .reg .b32 %block, %threads, %thread, %i, %n;
    .reg .b64 %to, %from, %offset, %address;

    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %block, %threads, %thread;
    ld.param.u32 %n, [count];
    setp.ge.u32 %outside, %i, %n;
    @%outside ret;
    mul.wide.u32 %offset, %i, 8;
    mov.b64 %from, words;
    add.u64 %from, %from, %offset;
    ld.param.u64 %address, [%from];
    ld.param.u64 %to, [table];
    cvta.to.global.u64 %to, %to;
    add.u64 %to, %to, %offset;
    st.global.u64 [%to], %address;
    ret;
}}
"""
