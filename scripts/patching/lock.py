"""One run at a time: a lock file that is gone afterwards, so that a reverted checkout is clean."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from .trouble import Trouble

PATIENCE_SECONDS = 60.0
INTERVAL_SECONDS = 0.02


@contextlib.contextmanager
def alone(path: Path, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Hold the lock at `path`. A process that dies lets go of it by itself."""
    descriptor = _acquired(path, time.monotonic() + patience)
    try:
        yield
    finally:
        # Removed while held: whoever waits on it notices, in `_is_at`, that it waits on a file that is gone.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquired(path: Path, deadline: float) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise Trouble(f"another run is at work: {path} is locked") from None
            time.sleep(INTERVAL_SECONDS)
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
