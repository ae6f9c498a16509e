"""The launcher in C: compiled at first use, and given each recording's plan in the form it reads.

Without a compiler everything works through `player.py`, after one warning. Whatever the launcher does not take (staged
slots, values read on the host) goes that way, too.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pygraph_inductor.driver import libcuda
from pygraph_inductor.driver.protocol import Driver, Graph, NodeKind
from pygraph_inductor.replay.plan import (
    Again,
    FromAllocation,
    FromConstant,
    FromInput,
    Layout,
    Plan,
    Returned,
)
from pygraph_inductor.replay.player import Player

LOGGER = logging.getLogger("pygraph_inductor")
_SHIM = (
    "get_data_ptr",
    "get_dim",
    "get_sizes",
    "get_strides",
    "get_dtype",
    "get_device_type",
    "get_device_index",
    "_reinterpret_tensor",
    "delete_tensor_object",
)
_WRAP = ("_Z16THPVariable_WrapRKN2at10TensorBaseE", "_Z16THPVariable_WrapN2at10TensorBaseE")  # one of them
_STREAM = "get_current_cuda_stream"
_DRIVER = (
    "cuStreamIsCapturing",
    "cuCtxGetCurrent",
    libcuda.Kernel.setter,
    libcuda.Copy.setter,
    libcuda.Fill.setter,
)
_NATIVE_KINDS = {"python": 3}  # launcher.c: enum NodeKind; the others come from the driver
_lock = threading.RLock()  # finalizers and signal handlers come here, too
_modules: list[Any] = []  # the compiled module, or None after a failure
_ahead: list[threading.Thread] = []  # that compiles it


def begin() -> None:
    """Let another thread compile the launcher, unless it is there: while Inductor compiles what it will launch."""
    if _modules or _ahead:
        return
    # Imported here and not on that thread: two that import one package may get in each other's way. What goes wrong,
    # goes wrong in `module` again, which says what it means.
    with contextlib.suppress(Exception):
        import triton.runtime.build  # noqa: F401

        # A program that ends waits for it: it would take the folder away in which the compiler still writes.
        thread = threading.Thread(target=_try, name="pygraph launcher", daemon=False)
        thread.start()
        _ahead.append(thread)


def _try() -> None:
    """Compile the launcher. A failure here is not the last word: Ctrl-C ends a compiler, and maybe not the program."""
    with _lock, contextlib.suppress(Exception):
        if not _modules:
            _modules.append(_compiled())


def _in_forked_child() -> None:
    """The thread has not come along, and may have held the lock."""
    global _lock
    _lock = threading.RLock()
    _ahead.clear()


os.register_at_fork(after_in_child=_in_forked_child)


def module() -> Any | None:
    """The compiled launcher, or None where it cannot be had."""
    with _lock:
        if not _modules:
            try:
                _modules.append(_compiled())
            except Exception as error:
                first = str(error).strip().splitlines()[:1]
                LOGGER.warning(
                    "the launcher in C could not be built (%s: %s); replays go through Python, which is slower. "
                    "A C compiler on PATH (or CC) changes this.",
                    type(error).__name__,
                    first[0] if first else "",
                )
                _modules.append(None)
        return _modules[0]


def _compiled() -> Any:
    from triton.runtime.build import compile_module_from_src

    source = (Path(__file__).parent / "launcher.c").read_text()
    compiled = compile_module_from_src(source, "pygraph_launcher")
    offsets = _tensor_offset(), _keys_offset(), *_reference_offsets()
    compiled.configure(_functions(), *offsets, _lazy_keys(), torch.Tensor, torch.nn.Parameter, _hooked)
    return compiled


def shim_address(name: str) -> int:
    """Where a function of torch's C shim is; 0 if this torch has none."""
    return _address(
        f"aoti_torch_{name}", [_torch_library(library) for library in ("libtorch_cpu.so", "libtorch_cuda.so")]
    )


def wrap_address() -> int:
    """Where the function is that makes a Python object for a tensor; 0 if this torch has none."""
    libraries = [_torch_library("libtorch_python.so")]
    return next(filter(None, (_address(name, libraries) for name in _WRAP)), 0)


def _functions() -> tuple[int, ...]:
    """Addresses in the order of launcher.c's `api`."""
    shim = {name: shim_address(name) for name in _SHIM}
    shim["wrap"] = wrap_address()
    if missing := [name for name, address in shim.items() if not address]:
        raise RuntimeError(f"this torch has no C function for {', '.join(missing)}")
    try:
        driver = [libcuda.address_of(name) for name in _DRIVER]
    except (OSError, AttributeError):
        driver = [0] * len(_DRIVER)
    return (*shim.values(), shim_address(_STREAM), *driver)


def _torch_library(name: str) -> ctypes.CDLL | None:
    path = Path(torch.__file__).parent / "lib" / name
    return ctypes.CDLL(str(path)) if path.exists() else None


def _address(function: str, libraries: Sequence[ctypes.CDLL | None]) -> int:
    for library in libraries:
        if library is not None and hasattr(library, function):
            return ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0
    return 0


def _tensor_offset() -> int:
    """How far inside a Python tensor its at::Tensor lies: found by looking for the TensorImpl that `_cdata` names."""
    samples = [torch.empty(1), torch.empty(2, 3)[1:], torch.nn.Parameter(torch.empty(1))]
    offsets = [
        offset
        for offset in range(8, torch.Tensor.__basicsize__, 8)
        if all(ctypes.c_uint64.from_address(id(sample) + offset).value == sample._cdata for sample in samples)
    ]
    if len(offsets) != 1:
        raise RuntimeError("a Python tensor of this torch does not show where its at::Tensor is")
    return offsets[0]


def _keys_offset() -> int:
    """How far inside a TensorImpl its dispatch keys lie: found by looking for those that torch names."""
    samples = [torch.empty(1), torch._neg_view(torch.empty(2)), torch.empty(2, dtype=torch.complex64).conj()]
    keys = [torch._C._dispatch_keys(sample).raw_repr() for sample in samples]
    offsets = [
        offset
        for offset in range(8, 192, 8)  # c10/core/TensorImpl.h, torch 2.11 to 2.15: it is no smaller
        if all(
            ctypes.c_uint64.from_address(sample._cdata + offset).value == expected
            for sample, expected in zip(samples, keys, strict=True)
        )
    ]
    if len(offsets) != 1 or len(set(keys)) != len(keys):
        raise RuntimeError("a tensor of this torch does not show where its dispatch keys are")
    return offsets[0]


def _reference_offsets() -> tuple[int, int, int]:
    """Where a TensorImpl names its StorageImpl and its autograd metadata, and where both count their references; -1 if
    that is not clear.

    The lower half of the count is of strong references, the upper one of weak ones, and the uppermost bit says that
    there is a Python object (c10/util/intrusive_ptr.h).
    """
    alone, shared = torch.empty(1), torch.empty(2)
    others = [shared.view(2), shared.detach()]
    storages = {tensor: tensor.untyped_storage()._cdata for tensor in (alone, shared, *others)}
    with_metadata = torch.empty(1, requires_grad=True)
    weak = StorageWeakRef(shared.untyped_storage())
    at_storage = [
        offset
        for offset in range(8, 64, 8)
        if all(_word(tensor._cdata + offset) == storage for tensor, storage in storages.items())
    ]
    impls = {tensor._cdata: (tensor._use_count(), 1) for tensor in storages}  # type: ignore[attr-defined]
    expected = {
        **impls,
        storages[alone]: (torch._C._storage_Use_Count(storages[alone]), 1),  # type: ignore[attr-defined]
        storages[shared]: (torch._C._storage_Use_Count(storages[shared]), 2),  # type: ignore[attr-defined]
    }
    at_counts = [
        offset
        for offset in range(8, 32, 8)
        if all(
            _word(address + offset) & ~(1 << 63) == strong | expected_weak << 32
            for address, (strong, expected_weak) in expected.items()
        )
    ]
    at_metadata = [
        offset
        for offset in range(8, 64, 8)
        if _word(with_metadata._cdata + offset)
        and not any(_word(tensor._cdata + offset) for tensor in (alone, torch.empty(2, 3), torch.empty(0)))
    ]
    del weak, others
    found = at_storage, at_metadata, at_counts
    return (at_storage[0], at_metadata[0], at_counts[0]) if all(len(one) == 1 for one in found) else (-1, -1, -1)


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _hooked() -> bool:
    """Whether somebody gets to see what autograd saves (torch.autograd.graph.saved_tensors_hooks), or new tensors are
    of another kind than usual.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
    return hooks is not None or torch.is_inference_mode_enabled()


def _lazy_keys() -> int:
    """The dispatch keys of tensors whose memory does not hold what they mean, which only Python tells apart."""
    names = ("Conjugate", "Negative", "ZeroTensor")
    keys = [torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr() for name in names]
    return functools.reduce(int.__or__, keys)


@functools.cache
def _dtype_code(dtype: torch.dtype) -> int:
    """The number of a dtype in PyTorch's C shim."""
    sample = torch.empty(0, dtype=dtype)
    code = ctypes.c_int32()
    library = _torch_library("libtorch_cpu.so")
    assert library is not None
    library.aoti_torch_get_dtype(ctypes.c_void_p(id(sample) + _tensor_offset()), ctypes.byref(code))
    return code.value


@functools.cache
def _device_type_code(kind: str) -> int:
    # c10::DeviceType, which the shim takes as it is (aoti_torch_device_type_cpu and _cuda return these).
    return {"cpu": 0, "cuda": 1}[kind]


class _NotNative(Exception):
    """This recording has something that the launcher does not do."""


class _Writer:
    """The program of a launcher: int64 words, and the objects they refer to by number."""

    def __init__(self) -> None:
        self.words = array.array("q")
        self.objects: list[Any] = []

    def put(self, *values: int) -> None:
        self.words.extend(value if value < 1 << 63 else value - (1 << 64) for value in values)

    def put_object(self, value: Any) -> None:
        self.put(len(self.objects))
        self.objects.append(value)

    def put_layout(self, layout: Layout | None) -> None:
        if layout is None:
            self.put(0, 0)
        else:
            self.put(len(layout.size), _dtype_code(layout.dtype), *layout.size, *layout.stride)


def launcher_for(
    player: Player,
    graph: Graph,
    driver: Driver,
    inputs: Sequence[Any],
    overlaps: Sequence[tuple[int, int, int]],
    pool: Any,
) -> Any | None:
    """A launcher for a recording made from `inputs`, or None if only Python can serve it.

    `pool` has `lock`, `stream_word`, `busy_word`, `is_usual` (recording/pools.py). `overlaps`: how input slots aliased
    each other then, as (slot, slot, bytes from the one to the other).
    """
    compiled = module()
    if compiled is None:
        return None
    try:
        writer = _program(player, graph, driver, inputs, overlaps, pool)
    except _NotNative:
        return None
    return compiled.Launcher(writer.words.tobytes(), tuple(writer.objects), player.known)


def _program(
    player: Player,
    graph: Graph,
    driver: Driver,
    inputs: Sequence[Any],
    overlaps: Sequence[tuple[int, int, int]],
    pool: Any,
) -> _Writer:
    plan, native = player.plan, graph.native()
    on_device = driver.device.type == "cuda"
    if player.stages:
        raise _NotNative
    slots = _inputs_first(plan)
    writer = _Writer()
    writer.put(
        _device_type_code(driver.device.type),
        driver.device.index if driver.device.index is not None else -1,
        on_device,
        driver.alignment,
        _returns_code(plan.returns),
        native.executable,
        native.context,
        ctypes.addressof(pool.stream_word),
        ctypes.addressof(pool.busy_word),
    )
    writer.put_object(native.replay)
    writer.put_object(pool.lock.acquire)
    writer.put_object(pool.lock.release)
    writer.put_object(driver.empty_strided)
    writer.put_object(player.raise_versions if plan.version_bumps else None)
    writer.put_object(None if on_device else pool.is_usual)
    writer.put(
        len(inputs),
        sum(1 for slot in plan.slots if not slot.is_output),
        len(overlaps),
        len(plan.slots),
        sum(len(slot.bindings) for slot in plan.slots),
        len(graph.nodes),
        len(plan.allocations),
        len(plan.returned),
    )
    writer.objects.append(pool)  # keeps the word that launchers read alive
    _put_inputs(writer, plan, inputs, driver)
    first_word = 0
    for slot in slots:
        writer.put(slot.layout.span, slot.alignment - 1, slot.residue, first_word, len(slot.bindings))
        first_word += len(slot.bindings)
    for first, second, distance in overlaps:
        writer.put(first, second, distance)
    for slot in slots:
        for binding in slot.bindings:
            area = graph.nodes[binding.node].areas[binding.area]
            writer.put(area.address + binding.offset, binding.addend, binding.node)
    _put_nodes(writer, graph, native.nodes)
    for made in plan.allocations:
        layout = made.layout
        writer.put(made.slot if made.slot is not None else -1, made.keep)
        writer.put_object((tuple(layout.size), tuple(layout.stride), layout.dtype))
        writer.put_layout(layout)
    for entry in plan.returned:
        _put_returned(writer, entry, plan, inputs)
    return writer


def _returns_code(kind: type | None) -> int:
    if kind is None:
        return 0
    return 1 if issubclass(kind, tuple) else 2


def _inputs_first(plan: Plan) -> Sequence[Any]:
    roles = [slot.is_output for slot in plan.slots]
    if roles != sorted(roles) or any(slot.is_output and slot.residue for slot in plan.slots):
        raise _NotNative
    return plan.slots


def _put_inputs(writer: _Writer, plan: Plan, inputs: Sequence[Any], driver: Driver) -> None:
    slot_of = {slot.source: number for number, slot in enumerate(plan.slots) if not slot.is_output}
    for position, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            writer.put(1)
            writer.put_object(value)
        elif not driver.owns(value) or value.dtype.is_complex:
            # Values that the host reads, and tensors that may be lazily conjugated: Python looks at those.
            raise _NotNative
        else:
            writer.put(0, slot_of.get(position, -1))
            writer.put_layout(Layout.of(value))


def _put_nodes(writer: _Writer, graph: Graph, native: Sequence[tuple[int, int, int] | None]) -> None:
    for node, handles in zip(graph.nodes, native, strict=True):
        if handles is not None:
            writer.put(*handles)
            writer.put_object(None)
        else:
            writer.put(_NATIVE_KINDS["python"], 0, 0)
            writer.put_object(_updater(graph, node) if node.kind is not NodeKind.EMPTY else None)


def _updater(graph: Graph, node: Any) -> Callable[[], None]:
    return functools.partial(graph.update, node)


def _put_returned(writer: _Writer, entry: Returned, plan: Plan, inputs: Sequence[Any]) -> None:
    kind: int
    constant: Any = None
    dtype: torch.dtype | None = None
    shares = False  # its version, which no view made in C does
    match entry:
        case FromAllocation(position, view, offset, shares):
            kind, dtype = (2 if view else 0), plan.allocations[position].layout.dtype
        case FromInput(position, view, offset, shares):
            kind, dtype = (3 if view else 1), getattr(inputs[position], "dtype", None)
        case FromConstant(constant):
            kind, position, view, offset = 4, 0, None, 0
        case Again(position):
            kind, view, offset = 5, None, 0
    if view is not None and (shares or view.dtype != dtype or offset % view.dtype.itemsize):
        raise _NotNative
    writer.put(kind, position, offset // view.dtype.itemsize if view is not None else 0)
    writer.put_object(constant)
    writer.put_layout(view)
