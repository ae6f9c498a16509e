"""The CUDA driver calls we need, checked: a call that fails raises `DriverError` with the driver's own name for it.

cuda-bindings serves everything but node parameters. Those are plain C structs that must stay where they are, are
rewritten word by word, and are handed to the driver by the launcher in C, too; so they are reached through ctypes. (The
runtime API fails on library kernels, and the bindings' objects own the memory they hand out.)
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from pygraph_inductor.driver.protocol import Area


class DriverError(RuntimeError):
    """A CUDA driver call failed."""


@functools.cache
def bindings() -> Any:
    """The module cuda.bindings.driver. Raises ImportError where it is missing."""
    from cuda.bindings import driver

    return driver


def checked(result: tuple[Any, ...]) -> Any:
    """The values of a cuda-bindings call, or `DriverError`."""
    status, *values = result
    if int(status) != 0:
        raise DriverError(getattr(status, "name", str(status)))
    return values[0] if len(values) == 1 else tuple(values)


@functools.cache
def library() -> ctypes.CDLL:
    """The driver's library. Raises OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")


def address_of(function: str) -> int:
    """Where a driver function is."""
    return ctypes.cast(getattr(library(), function), ctypes.c_void_p).value or 0


def _call(function: str, *arguments: int) -> None:
    status = getattr(library(), function)(*(ctypes.c_void_p(argument) for argument in arguments))
    if status != 0:
        raise DriverError(f"{function}: {bindings().CUresult(status).name}")


def launch(function: int, blocks: int, threads: int, stream: int, parameters: Sequence[Any]) -> None:
    """Launch a kernel; `parameters` are ctypes objects, copied before this returns."""
    pointers = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(parameter) for parameter in parameters))
    _call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(pointers), 0)


class KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 (cuda.h, CUDA 12 and 13)."""

    _fields_ = [
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("kernel_params", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.POINTER(ctypes.c_void_p)),
        ("kern", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


class CopyParams(ctypes.Structure):
    """CUDA_MEMCPY3D_v2 (cuda.h)."""

    _fields_ = [
        ("src_start", ctypes.c_size_t * 4),
        ("src_type", ctypes.c_uint),
        ("src_host", ctypes.c_void_p),
        ("src_device", ctypes.c_uint64),
        ("src_array", ctypes.c_void_p),
        ("reserved0", ctypes.c_void_p),
        ("src_pitch", ctypes.c_size_t * 2),
        ("dst_start", ctypes.c_size_t * 4),
        ("dst_type", ctypes.c_uint),
        ("dst_host", ctypes.c_void_p),
        ("dst_device", ctypes.c_uint64),
        ("dst_array", ctypes.c_void_p),
        ("reserved1", ctypes.c_void_p),
        ("dst_pitch", ctypes.c_size_t * 2),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    ]


class FillParams(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS (cuda.h)."""

    _fields_ = [
        ("dst", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element_size", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


# cuda.h: keys of the list that `extra` points to.
_END, _BUFFER_POINTER, _BUFFER_SIZE = 0, 1, 2
_DEVICE_MEMORY = 2  # CU_MEMORYTYPE_DEVICE


class Kernel:
    """The parameters of one kernel node in memory of our own, in the form the driver returned them."""

    setter = "cuGraphExecKernelNodeSetParams_v2"
    takes_context = False

    def __init__(self, node: int) -> None:
        self._params = KernelNodeParams()
        self.params = ctypes.addressof(self._params)
        _call("cuGraphKernelNodeGetParams_v2", node, self.params)
        cu = bindings()
        function = self._params.func or int(checked(cu.cuKernelGetFunction(cu.CUkernel(self._params.kern))))
        self.name: str = checked(cu.cuFuncGetName(cu.CUfunction(function))).decode()
        self.identity = (function, tuple(self._params.grid), tuple(self._params.block), self._params.shared_bytes)
        self._keep: list[Any] = []
        self.areas: tuple[Area, ...] = ()
        if self._params.kernel_params:
            self.areas = self._own_pointer_array(function)
        elif self._params.extra:
            self.areas = self._own_packed_buffer()

    def _own_pointer_array(self, function: int) -> tuple[Area, ...]:
        cu = bindings()
        areas: list[Area] = []
        while True:
            status, _offset, size = cu.cuFuncGetParamInfo(cu.CUfunction(function), len(areas))
            if int(status) != 0:
                break
            areas.append(Area(ctypes.string_at(self._params.kernel_params[len(areas)], size)))
        array = (ctypes.c_void_p * len(areas))(*(area.address for area in areas))
        self._keep.append(array)
        self._params.kernel_params = ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p))
        return tuple(areas)

    def _own_packed_buffer(self) -> tuple[Area, ...]:
        entries: dict[int, int] = {}
        position = 0
        while (key := self._params.extra[position]) not in (None, _END):
            entries[int(key)] = int(self._params.extra[position + 1] or 0)
            position += 2
        size = ctypes.c_size_t(ctypes.c_size_t.from_address(entries[_BUFFER_SIZE]).value)
        area = Area(ctypes.string_at(entries[_BUFFER_POINTER], size.value))
        words = (_BUFFER_POINTER, area.address, _BUFFER_SIZE, ctypes.addressof(size), _END)
        extra = (ctypes.c_void_p * len(words))(*words)
        self._keep += [size, extra]
        self._params.extra = ctypes.cast(extra, ctypes.POINTER(ctypes.c_void_p))
        return (area,)

    def set_in_graph(self, node: int) -> None:
        """Write the parameters into the template graph."""
        _call("cuGraphKernelNodeSetParams_v2", node, self.params)

    def set_in_exec(self, executable: int, node: int, context: int) -> None:
        """Write the parameters into the executable graph: for launches made from now on."""
        _call(self.setter, executable, node, self.params)


class _Struct:
    """A node whose parameters are one struct: the struct is the area."""

    name: str
    setter: str
    takes_context = True
    _getter: str
    _graph_setter: str

    def __init__(self, node: int, struct: type[ctypes.Structure]) -> None:
        area = Area(bytes(ctypes.sizeof(struct)))
        _call(self._getter, node, area.address)
        self.areas = (area,)
        self.params = area.address
        self.content: Any = struct.from_address(area.address)

    def set_in_graph(self, node: int) -> None:
        """Write the parameters into the template graph."""
        _call(self._graph_setter, node, self.params)

    def set_in_exec(self, executable: int, node: int, context: int) -> None:
        """Write the parameters into the executable graph: for launches made from now on."""
        _call(self.setter, executable, node, self.params, context)


class Copy(_Struct):
    """The parameters of one memcpy node."""

    name = "memcpy"
    setter = "cuGraphExecMemcpyNodeSetParams"
    _getter = "cuGraphMemcpyNodeGetParams"
    _graph_setter = "cuGraphMemcpyNodeSetParams"

    def __init__(self, node: int) -> None:
        super().__init__(node, CopyParams)
        self.identity = (self.content.width, self.content.height, self.content.depth)

    @property
    def is_flat_device_copy(self) -> bool:
        """Whether it is what an executable graph can be told to do elsewhere: one row, device to device."""
        copy = self.content
        on_device = copy.src_type == copy.dst_type == _DEVICE_MEMORY
        return on_device and copy.height <= 1 and copy.depth <= 1 and copy.width > 0


class Fill(_Struct):
    """The parameters of one memset node."""

    name = "memset"
    setter = "cuGraphExecMemsetNodeSetParams"
    _getter = "cuGraphMemsetNodeGetParams"
    _graph_setter = "cuGraphMemsetNodeSetParams"

    def __init__(self, node: int) -> None:
        super().__init__(node, FillParams)
        fill = self.content
        self.identity = (fill.width, fill.height, fill.pitch, fill.element_size, fill.value)
