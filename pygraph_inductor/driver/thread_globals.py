"""Globals of a module that mean something else to one thread for a while: watched, recorded, answered with stand-ins.

Generated code calls its kernels and allocators through such globals, and several threads may run one module.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Function = Callable[..., Any]
_lock = threading.RLock()  # finalizers and signal handlers come here, too


class _Switch:
    """Stands in a namespace as long as any thread has a meaning of its own for the name."""

    def __init__(self, original: Function) -> None:
        self.original = original
        # Per thread what the name means, the innermost meaning last.
        self.meanings: dict[int, list[Function]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.now()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now(), name)  # Triton kernels are launched by their `run`

    def now(self) -> Function:
        meanings = self.meanings.get(threading.get_ident())
        return meanings[-1] if meanings else self.original


def original_of(value: Any) -> Any:
    """What a global is to a thread that has no meaning of its own for it."""
    return value.original if isinstance(value, _Switch) else value


@contextlib.contextmanager
def meaning(namespace: dict[str, Any], makers: Mapping[str, Callable[[Function], Function]]) -> Iterator[None]:
    """To this thread, each name is what its maker makes of what it was.

    The last one out puts the original back, whatever the order in which threads come and go: were it each one's own
    business, the first one out would take the others' meaning away, and the last one leave somebody's behind.
    """
    thread = threading.get_ident()
    switches = {name: _enter(namespace, name, make, thread) for name, make in makers.items()}
    try:
        yield
    finally:
        for name, switch in switches.items():
            _leave(namespace, name, switch, thread)


def _enter(namespace: dict[str, Any], name: str, make: Callable[[Function], Function], thread: int) -> _Switch:
    with _lock:
        switch = namespace[name]
        if not isinstance(switch, _Switch):
            switch = namespace[name] = _Switch(switch)
        ours = make(switch.now())
        switch.meanings.setdefault(thread, []).append(ours)
        return switch


def _leave(namespace: dict[str, Any], name: str, switch: _Switch, thread: int) -> None:
    with _lock:
        meanings = switch.meanings[thread]
        meanings.pop()
        if not meanings:
            del switch.meanings[thread]
        if not switch.meanings and namespace.get(name) is switch:
            namespace[name] = switch.original
