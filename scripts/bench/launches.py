"""Which kernels an iteration launches on the simulated driver, in graphs and outside, seen from outside the package.

Outside is what a plain call launches, and eager code around compiled functions: compiled C++ kernels, and operators
that do more than hand out memory or another view of it. On a GPU the profiler tells (`profile.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, FrameType, ModuleType
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function

from pygraph_inductor.driver.capturing import described
from pygraph_inductor.driver.protocol import NodeKind
from pygraph_inductor.driver.simulated import SimulatedGraph

_REPLAY = "bench: a replay"
_MADE_OF_OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd
# They write, or return a tensor of its own, as their schemas have it, but launch nothing.
_NO_KERNELS = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_", "resize_", "_unsafe_view",
}  # fmt: skip


@dataclass
class Launches:
    """Kernels, by where they were launched."""

    in_graphs: int = 0
    outside: int = 0


def launches(work: Callable[[], Any]) -> Launches:
    """What `work` launches on this thread. Every replay is marked for the profiler, which sees operators only."""
    found = Launches()
    replays: list[record_function] = []  # that are running

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code is SimulatedGraph.replay.__code__ and event == "call":
            nodes = frame.f_locals["self"].nodes
            found.in_graphs += sum(node.kind is NodeKind.KERNEL for node in nodes)
            replays.append(record_function(_REPLAY))
            replays[-1].__enter__()
        elif frame.f_code is SimulatedGraph.replay.__code__ and event == "return":
            replays.pop().__exit__(None, None, None)
        elif event == "c_call" and not replays:
            found.outside += _is_compiled_kernel(argument)

    with profile() as profiled:
        sys.setprofile(watch)
        try:
            work()
        finally:
            sys.setprofile(None)
    found.outside += sum(_operators(event) for event in profiled.function_events or () if event.cpu_parent is None)
    return found


def _is_compiled_kernel(function: Any) -> bool:
    """Whether Inductor's C++ backend made it (async_compile.cpp_pybinding, torch 2.11-2.15)."""
    kind = isinstance(function, BuiltinFunctionType)
    return kind and function.__name__ == "kernel" and isinstance(function.__self__, ModuleType)


def _operators(event: Any) -> int:
    """The outermost operators with kernels of their own in an event of the profiler."""
    if event.name == _REPLAY:
        return 0
    return 1 if _has_kernel(event.name) else sum(map(_operators, event.cpu_children))


def _has_kernel(name: str) -> bool:
    """By its schemas: it computes a tensor, and is not made of other operators."""
    namespace, _, operator = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), operator, None) if operator else None
    if not isinstance(packet, torch._ops.OpOverloadPacket) or operator in _NO_KERNELS:
        return False
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    overloads = [one for one in overloads if torch._C._dispatch_has_kernel(one.name())]  # not TorchScript's own
    schemas = [described(one) for one in overloads]
    return (
        any(one.writes or one.has_tensor_results for one in schemas)
        and not any(one.is_view for one in schemas)
        and not all(one.has_kernel_for_dispatch_key(_MADE_OF_OTHERS) for one in overloads)
    )
