"""The CUDA driver calls we need, checked: a call that fails raises `DriverError` with the driver's own name for it.

cuda-bindings serves everything but kernel parameters, whose two raw forms (an array of pointers, a packed buffer) are
reached through ctypes: the runtime API fails on library kernels, and the bindings' object owns the memory it hands out.
"""

from __future__ import annotations

import ctypes
import functools
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


# cuda.h: keys of the list that `extra` points to.
_END, _BUFFER_POINTER, _BUFFER_SIZE = 0, 1, 2


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    for name, count in (
        ("cuGraphKernelNodeGetParams_v2", 2),
        ("cuGraphKernelNodeSetParams_v2", 2),
        ("cuGraphExecKernelNodeSetParams_v2", 3),
    ):
        getattr(library, name).argtypes = [ctypes.c_void_p] * count
    return library


def _check_raw(status: int, what: str) -> None:
    if status != 0:
        name = bindings().CUresult(status).name
        raise DriverError(f"{what}: {name}")


class KernelParameters:
    """The parameters of one kernel node in memory of our own, in the form the driver returned them."""

    def __init__(self, node: int) -> None:
        self.params = KernelNodeParams()
        _check_raw(_library().cuGraphKernelNodeGetParams_v2(node, ctypes.addressof(self.params)), "get kernel node")
        cu = bindings()
        function = self.params.func or int(checked(cu.cuKernelGetFunction(cu.CUkernel(self.params.kern))))
        self.name: str = checked(cu.cuFuncGetName(cu.CUfunction(function))).decode()
        self.identity = (function, tuple(self.params.grid), tuple(self.params.block), self.params.shared_bytes)
        self._keep: list[Any] = []
        self.areas: tuple[Area, ...] = ()
        if self.params.kernel_params:
            self.areas = self._own_pointer_array(function)
        elif self.params.extra:
            self.areas = self._own_packed_buffer()

    def _own_pointer_array(self, function: int) -> tuple[Area, ...]:
        cu = bindings()
        areas: list[Area] = []
        while True:
            status, _offset, size = cu.cuFuncGetParamInfo(cu.CUfunction(function), len(areas))
            if int(status) != 0:
                break
            areas.append(Area(ctypes.string_at(self.params.kernel_params[len(areas)], size)))
        array = (ctypes.c_void_p * len(areas))(*(area.address for area in areas))
        self._keep.append(array)
        self.params.kernel_params = ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p))
        return tuple(areas)

    def _own_packed_buffer(self) -> tuple[Area, ...]:
        entries: dict[int, int] = {}
        position = 0
        while (key := self.params.extra[position]) not in (None, _END):
            entries[int(key)] = int(self.params.extra[position + 1] or 0)
            position += 2
        size = ctypes.c_size_t(ctypes.c_size_t.from_address(entries[_BUFFER_SIZE]).value)
        area = Area(ctypes.string_at(entries[_BUFFER_POINTER], size.value))
        words = (_BUFFER_POINTER, area.address, _BUFFER_SIZE, ctypes.addressof(size), _END)
        extra = (ctypes.c_void_p * len(words))(*words)
        self._keep += [size, extra]
        self.params.extra = ctypes.cast(extra, ctypes.POINTER(ctypes.c_void_p))
        return (area,)

    def set_in_graph(self, node: int) -> None:
        """Write the parameters into the template graph."""
        status = _library().cuGraphKernelNodeSetParams_v2(node, ctypes.addressof(self.params))
        _check_raw(status, f"update of kernel {self.name}")

    def set_in_exec(self, executable: int, node: int) -> None:
        """Write the parameters into the executable graph: for launches made from now on."""
        status = _library().cuGraphExecKernelNodeSetParams_v2(executable, node, ctypes.addressof(self.params))
        _check_raw(status, f"update of kernel {self.name}")
