"""Which threads are amidst a call: a finalizer or a signal handler may call the same function from there.

It may come at any line, also where a lock is held or a table is half changed. So whoever finds that this thread is
amidst a call already must touch neither.
"""

from __future__ import annotations

import threading


class Amidst:
    """Entered around a call, and around what else takes the function's locks."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def is_here(self) -> bool:
        """Whether the current thread has entered it."""
        return threading.get_ident() in self._threads

    def __enter__(self) -> None:
        self._threads.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self._threads.discard(threading.get_ident())
