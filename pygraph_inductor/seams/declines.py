"""The contexts that are left to stock PyTorch: what they are, how they are recognised, and one clear line for each.

Asked by the seams at compile time; the report lists what was met.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
from collections.abc import Iterator
from typing import Any

import torch

logger = logging.getLogger("pygraph_inductor")

CUSTOMIZED_WRAPPERS = (
    "partitions are wrapped by somebody else (torch._inductor.utils.set_customized_partition_wrappers): left alone"
)
CPP_WRAPPER = "cpp_wrapper: its generated code is C++, CUDA graphs are left to stock PyTorch"
FX_WRAPPER = "fx_wrapper: its generated code is an FX graph, CUDA graphs are left to stock PyTorch"
AOT_INDUCTOR = "AOTInductor: its result is a library without Python, CUDA graphs are left to stock PyTorch"
NO_CACHING_ALLOCATOR = "the caching allocator is off: memory of a graph cannot be pooled, stock PyTorch decides"
ROCM = "torch is built for ROCm: only CUDA devices are served, CUDA graphs are left to stock PyTorch"
XPU = "torch is built for XPU: only CUDA devices are served, graphs are left to stock PyTorch"
NO_TRITON = "Triton is not installed: Inductor cannot compile for CUDA, so there is nothing to record there"
NO_BINDINGS = "cuda-bindings is missing or too old: addresses in graphs cannot be rewritten, stock PyTorch is used"
OLD_DRIVER = "the CUDA driver is older than 12.4: addresses in graphs cannot be rewritten, stock PyTorch is used"
NO_DRIVER = "the CUDA driver cannot be loaded: addresses in graphs cannot be rewritten, stock PyTorch is used"
NO_CUDA = "no CUDA device: graphs on the CPU are left alone (pygraph_inductor.config.simulate = True simulates one)"

# cuFuncGetParamInfo, which tells the sizes of a kernel's parameters, is the newest call we need: CUDA 12.4.
_OLDEST_DRIVER = 12040
_NEWEST_CALLS = ("cuFuncGetParamInfo", "cuGraphExecKernelNodeSetParams", "cuKernelGetFunction")

_lines: dict[str, object] = {}


def note(line: str) -> None:
    """Put a line into the report; the first time it is also logged as a warning."""
    mine = object()
    if _lines.setdefault(line, mine) is mine:  # one step, so that of two threads one is first
        logger.warning("%s.", line.rstrip("."))


def lines() -> list[str]:
    """Every line noted so far."""
    return list(_lines)


def clear() -> None:
    """Forget what was noted."""
    _lines.clear()
    _graphs_can_be_rewritten.cache_clear()


def of_wrapper(options: dict[str, Any]) -> str | None:
    """Why a compilation with these options keeps stock behaviour: its wrapper is not Python."""
    from torch._inductor import config as inductor_config
    from torch._inductor.virtualized import V

    if V.aot_compilation:
        return AOT_INDUCTOR
    if options.get("fx_wrapper", inductor_config.fx_wrapper):
        return FX_WRAPPER
    if options.get("cpp_wrapper", inductor_config.cpp_wrapper):
        return CPP_WRAPPER
    return None


def of_build() -> str | None:
    """Why this torch cannot be served at all. Needs no device and no driver."""
    if torch.version.hip:
        return ROCM
    if getattr(torch.version, "xpu", None):
        return XPU
    return None if _is_importable("triton") else NO_TRITON


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # refused by a finder; half imported
        return False


def of_process() -> str | None:
    """Why CUDA graphs of this process keep stock behaviour; asked when there is a CUDA graph to record."""
    return of_build() or _of_allocator() or _graphs_can_be_rewritten()


def _of_allocator() -> str | None:
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:  # set to anything
        return NO_CACHING_ALLOCATOR
    # `torch.cuda.caching_allocator_enable(False)` turns it off later; the question exists from torch 2.13 on.
    is_enabled = getattr(torch._C, "_cuda_cudaCachingAllocator_is_enabled", None)
    if is_enabled is not None and not is_enabled():
        return NO_CACHING_ALLOCATOR
    return None


@functools.cache
def _graphs_can_be_rewritten() -> str | None:
    # A broken installation raises more than ImportError.
    try:
        from cuda.bindings import driver
    except Exception:
        return NO_BINDINGS
    if not all(hasattr(driver, name) for name in _NEWEST_CALLS):
        return NO_BINDINGS
    try:
        status, version = driver.cuDriverGetVersion()  # needs no context
    except Exception:
        return NO_DRIVER
    return OLD_DRIVER if int(status) != 0 or version < _OLDEST_DRIVER else None


@contextlib.contextmanager
def harmless(what: str, strict: bool) -> Iterator[None]:
    """Within it an error of ours becomes a line of the report and stock behaviour, unless `config.strict`."""
    try:
        yield
    except Exception as error:
        if strict:
            raise
        note(f"{what}: {type(error).__name__}: {error} (pygraph_inductor.config.strict = True raises instead)")


def note_cpu_graph() -> None:
    """Graphs were asked for a function on the CPU: worth a line where there is no CUDA device at all."""
    if not torch.cuda.is_available():
        note(NO_CUDA)
