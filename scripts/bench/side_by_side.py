"""Processes that prepare side by side and time one after another, each while all the others stand still."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from scripts.bench.process import Process, all_still

POLL = 0.1
Found = tuple[dict[str, Any], str | None]  # a process's answer, and why there is none


def in_turns(
    names: Sequence[str],
    start: Callable[[str], Process],
    jobs: int,
    seconds: float,
    undisturbed: bool,
    tell: Callable[[str, str], None],
) -> dict[str, Found]:
    """What a process for each of the names found; at most `jobs` prepare at a time, and wait at their gates.

    A gate is opened for `seconds` at most. `undisturbed`: nobody is stopped while preparing, because it matters how
    long that takes; so nobody is timed before all are prepared. `tell(name, state)` is called whenever one gets
    somewhere.
    """
    waiting, preparing, ready = list(names), dict[str, Process](), dict[str, Process]()
    found: dict[str, Found] = {}

    def end(name: str, process: Process) -> None:
        found[name] = process.found()
        tell(name, found[name][1] or "done")

    try:
        while waiting or preparing or ready:
            while waiting and len(preparing) < jobs:
                name = waiting.pop(0)
                tell(name, "preparing")
                preparing[name] = start(name)
            for name, process in list(preparing.items()):
                if process.ready:
                    ready[name] = preparing.pop(name)
                elif not process.running():
                    end(name, preparing.pop(name))
            if ready and not (undisturbed and (waiting or preparing)):
                name = next(iter(ready))
                process = ready.pop(name)
                with all_still([*preparing.values(), *ready.values()]):
                    process.go(seconds, process.limit)
                end(name, process)
            else:
                time.sleep(POLL)
    finally:
        for process in [*preparing.values(), *ready.values()]:
            process.kill("the run ended")
    return found
