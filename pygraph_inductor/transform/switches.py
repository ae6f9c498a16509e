"""Which rewrites are on for the compilation going on: set by `seams`, part of our cache key (codegen/graph_pass.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_on: ContextVar[frozenset[str]] = ContextVar("pygraph_inductor.rewrites", default=frozenset())


def on() -> frozenset[str]:
    """The names of the rewrites that are on; none outside of a compilation of ours."""
    return _on.get()


@contextlib.contextmanager
def turned_on(names: frozenset[str]) -> Iterator[None]:
    """Within it exactly these rewrites are on."""
    token = _on.set(names)
    try:
        yield
    finally:
        _on.reset(token)
