"""Which compiled graph is being finished, for the seams that upstream calls without telling them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass
class Visit:
    """One run of `CompiledFxGraph.post_compile`."""

    graph: Any
    functions: int = 0  # how many functions were handed to `cudagraphify` so far


_current: ContextVar[Visit | None] = ContextVar("pygraph_inductor.visit", default=None)


@contextlib.contextmanager
def of(graph: Any) -> Iterator[Visit]:
    """Make `graph` the one being finished."""
    visit = Visit(graph)
    token = _current.set(visit)
    try:
        yield visit
    finally:
        _current.reset(token)


def graph() -> Any:
    """The CompiledFxGraph being finished, or None."""
    visit = _current.get()
    return None if visit is None else visit.graph


def count_function() -> None:
    """Note that a function of the current graph was handed over."""
    visit = _current.get()
    if visit is not None:
        visit.functions += 1


def functions() -> int:
    """How many functions of the current graph were handed over, this one among them."""
    visit = _current.get()
    return 0 if visit is None else visit.functions
