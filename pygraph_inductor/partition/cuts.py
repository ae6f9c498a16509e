"""The rule that says where a graph is cut, asked of Inductor's scheduler, and each cut explained.

A graph is cut at what cannot be captured or must run on the host on every call, and nowhere else: Inductor's own
conditions (`Scheduler.should_partition`) after the rewrites of `transform` took away the causes that can be taken
away. Inductor moves what depends on inputs only to the front, and what only outputs need to the back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from pygraph_inductor.reporting.places import place_of


@dataclass(frozen=True)
class Cut:
    """What runs outside of graphs, why, and the user's line."""

    what: str
    reason: str
    source: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}" + (f" ({self.source})" if self.source else "")


def cuts_of(nodes: Iterable[Any], reason_for: Callable[[Any], str | None]) -> list[Cut]:
    """The cuts among the scheduled nodes, in order. `reason_for` is the rule."""
    found = []
    for node in nodes:
        reason = reason_for(node)
        if reason is not None and _kind(node) not in _PARTS:
            found.append(_cut(node, reason))
    return list(dict.fromkeys(found))


def counts(nodes: Iterable[Any], reason_for: Callable[[Any], str | None]) -> tuple[int, int]:
    """How many of the scheduled nodes can be in graphs, and how many there are on the device."""
    on_device = [node for node in nodes if node.is_gpu() and _kind(node) not in (*_PARTS, *_NO_KERNELS)]
    return sum(1 for node in on_device if reason_for(node) is None), len(on_device)


# Results of an operator with several, which is a node of its own; and what launches no kernel.
_PARTS, _NO_KERNELS, _LOOP = ("MultiOutput",), ("DeviceCopy",), "WhileLoop"


def _kind(node: Any) -> str:
    return type(getattr(node, "node", None)).__name__


def _cut(node: Any, reason: str) -> Cut:
    origins = sorted(_origins(node), key=lambda one: one.name)
    if _kind(node) == _LOOP:
        reason = "it asks the host whether to go on"
        # What the loop starts from may count among its origins.
        origins = [one for one in origins if isinstance(one.target, torch._ops.HigherOrderOperator)] or origins
    targets = list(dict.fromkeys(str(one.target) for one in origins if one.op == "call_function"))
    what = ", ".join(targets[:3]) + (", …" if len(targets) > 3 else "") or node.get_name()
    if targets == [_UPLOAD]:
        reason = "host values are brought to the device before the replay"
    return Cut(what, _readable(reason), place_of(one.meta.get("stack_trace") for one in origins))


def _origins(node: Any) -> set[Any]:
    found: set[Any] = set()
    for one in getattr(node, "snodes", None) or [node]:
        found |= set(getattr(one.node, "origins", ()) or ())
    return found


_UPLOAD = "pygraph_inductor.upload.default"
_READABLE = {
    "cpu ops": "it runs on the CPU",
    "DeviceCopy ops": "it copies between host and device",
    "cross-device ops": "it copies between host and device",
    "Conditional ops": "it asks the host which branch to take",
    "Switch ops": "it asks the host which branch to take",
    "unbacked binding ops": "it asks the device for a number or a size",
    "CUDAGraph-unsafe custom ops": "it must not be captured",
}


def _readable(reason: str) -> str:
    return _READABLE.get(reason, reason)
