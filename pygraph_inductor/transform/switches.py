"""Which rewrites are on for the compilation going on, and what they may take on the device: set by `seams`, part of our
cache key (codegen/graph_pass.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bytes on the device for each graph; `config.max_constant_bytes` and so on say what counts."""

    constants: int = 256 << 20
    mirrors: int = 256 << 20
    uploads: int = 256 << 20


_on: ContextVar[frozenset[str]] = ContextVar("pygraph_inductor.rewrites", default=frozenset())
_limits: ContextVar[Limits] = ContextVar("pygraph_inductor.limits")
_NO_OTHER = Limits()


def on() -> frozenset[str]:
    """The names of the rewrites that are on; none outside of a compilation of ours."""
    return _on.get()


def limits() -> Limits:
    """What the rewrites of one graph may take on the device."""
    return _limits.get(_NO_OTHER)


@contextlib.contextmanager
def turned_on(names: frozenset[str], limits: Limits) -> Iterator[None]:
    """Within it exactly these rewrites are on, and these are the limits."""
    before, limits_before = _on.set(names), _limits.set(limits)
    try:
        yield
    finally:
        _on.reset(before)
        _limits.reset(limits_before)
