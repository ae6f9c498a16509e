"""Which rewrites are on for the compilation going on, what they may take on the device, and which layouts are wanted of
gradients: set by `seams`, part of our cache key (codegen/graph_pass.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from pygraph_inductor.transform.gradients import Layout


@dataclass(frozen=True)
class Limits:
    """Bytes on the device for each graph; `config.max_constant_bytes` and so on say what counts."""

    constants: int = 256 << 20
    mirrors: int = 256 << 20
    uploads: int = 256 << 20


_on: ContextVar[frozenset[str]] = ContextVar("pygraph_inductor.rewrites", default=frozenset())
_limits: ContextVar[Limits] = ContextVar("pygraph_inductor.limits")
_NO_OTHER = Limits()
_layouts: ContextVar[tuple[Layout | None, ...]] = ContextVar("pygraph_inductor.layouts", default=())


def on() -> frozenset[str]:
    """The names of the rewrites that are on; none outside of a compilation of ours."""
    return _on.get()


def limits() -> Limits:
    """What the rewrites of one graph may take on the device."""
    return _limits.get(_NO_OTHER)


def layouts() -> tuple[Layout | None, ...]:
    """Layouts wanted of the gradients of a forward's inputs, or, in a backward, of its outputs; empty: none is."""
    return _layouts.get()


@contextlib.contextmanager
def turned_on(names: frozenset[str], limits: Limits, layouts: tuple[Layout | None, ...] = ()) -> Iterator[None]:
    """Within it exactly these rewrites are on, and these are the limits and layouts."""
    before, limits_before, layouts_before = _on.set(names), _limits.set(limits), _layouts.set(layouts)
    try:
        yield
    finally:
        _on.reset(before)
        _limits.reset(limits_before)
        _layouts.reset(layouts_before)
