"""Addresses for a capture: a reserved range of virtual addresses behind which one small block is mapped many times.

A capture executes nothing, so a stand-in needs an address that every library accepts, not memory of its own. Triton's
launcher and `cudaMemcpyAsync` ask the driver what an address is, therefore the range is mapped and not merely reserved
(CUDA programming guide, virtual memory management, virtual aliasing).
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from pygraph_inductor.driver.libcuda import bindings, checked

_MAX_MAPPINGS = 2048
_MAX_BLOCK = 64 << 20


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class MappedRange:
    """`nbytes` of addresses on `device_index`, all backed by one block filled with the byte `fill`."""

    def __init__(self, nbytes: int, device_index: int, fill: int) -> None:
        cu = bindings()
        self._device = device_index
        self._fill = fill
        self._block: Any = None
        self._mapped = 0
        self.address = 0
        properties = cu.CUmemAllocationProp()
        properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = device_index
        minimum = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        granularity = int(checked(cu.cuMemGetAllocationGranularity(properties, minimum)))
        block = min(_round_up(max(nbytes // _MAX_MAPPINGS, 1), granularity), _round_up(_MAX_BLOCK, granularity))
        self._block_bytes = block
        self.nbytes = _round_up(max(nbytes, 1), block)
        try:
            self.address = int(checked(cu.cuMemAddressReserve(self.nbytes, 0, 0, 0)))
            self._block = checked(cu.cuMemCreate(block, properties, 0))
            while self._mapped < self.nbytes:
                checked(cu.cuMemMap(self.address + self._mapped, block, 0, self._block, 0))
                self._mapped += block
            access = cu.CUmemAccessDesc()
            access.location = properties.location
            access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            checked(cu.cuMemSetAccess(self.address, self.nbytes, [access], 1))
            self.refill()
        except BaseException:
            self.close()
            raise

    def refill(self) -> None:
        """Fill the block (again), in the order of the current stream: that is where replays read it."""
        cu = bindings()
        stream = torch.cuda.current_stream(self._device).cuda_stream
        checked(cu.cuMemsetD8Async(self.address, self._fill, self._block_bytes, stream))

    def close(self) -> None:
        """Give addresses and block back. Waits for the current stream, where a replay may still mention them."""
        cu = bindings()
        if self._mapped:
            with contextlib.suppress(RuntimeError):  # a device that is lost needs no waiting
                torch.cuda.current_stream(self._device).synchronize()
            checked(cu.cuMemUnmap(self.address, self._mapped))
            self._mapped = 0
        if self._block is not None:
            checked(cu.cuMemRelease(self._block))
            self._block = None
        if self.address:
            checked(cu.cuMemAddressFree(self.address, self.nbytes))
            self.address = 0


class AllocatedRange:
    """The same from ordinary memory, for devices without virtual memory management."""

    def __init__(self, nbytes: int, device_index: int, fill: int) -> None:
        self.nbytes = nbytes
        self._fill = fill
        self._memory: torch.Tensor | None = torch.full(
            (nbytes + 256,), fill, dtype=torch.uint8, device=torch.device("cuda", device_index)
        )
        self.address = _round_up(self._memory.data_ptr(), 256)

    def refill(self) -> None:
        """Fill it again."""
        if self._memory is not None:
            self._memory.fill_(self._fill)

    def close(self) -> None:
        """Give the memory back."""
        self._memory = None


def supports_mapping(device_index: int) -> bool:
    """Whether the device can map one block at many addresses."""
    cu = bindings()
    attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    device = checked(cu.cuDeviceGet(device_index))
    return bool(checked(cu.cuDeviceGetAttribute(attribute, device)))
