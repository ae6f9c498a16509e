"""Which rewrites are on for the compilation going on: set by `seams`, part of our cache key (codegen/graph_pass.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_on: ContextVar[frozenset[str]] = ContextVar("pygraph_inductor.rewrites", default=frozenset())
_constant_bytes: ContextVar[int] = ContextVar("pygraph_inductor.constant_bytes", default=256 << 20)


def on() -> frozenset[str]:
    """The names of the rewrites that are on; none outside of a compilation of ours."""
    return _on.get()


def constant_bytes() -> int:
    """What the constants of one graph may take on the device."""
    return _constant_bytes.get()


@contextlib.contextmanager
def turned_on(names: frozenset[str], constant_bytes: int) -> Iterator[None]:
    """Within it exactly these rewrites are on, and that is the limit."""
    token, limit = _on.set(names), _constant_bytes.set(constant_bytes)
    try:
        yield
    finally:
        _on.reset(token)
        _constant_bytes.reset(limit)
