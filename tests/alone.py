"""A test that compares times has the machine for itself: the other workers of pytest-xdist wait meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def in_turn(folder: Path, alone: bool) -> Iterator[None]:
    """Together with others that share the folder, or with none of them. Whoever wants to be alone is not overtaken."""
    import fcntl

    with (folder / "queue").open("w") as queue, (folder / "machine").open("w") as machine:
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        try:
            yield
        finally:  # closing the file would not do it where a forked child still has it
            fcntl.flock(machine, fcntl.LOCK_UN)
