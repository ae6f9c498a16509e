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
    """What a process for each of the names found; there are at most `jobs` at a time, which prepare or wait at their
    gates.

    A gate is opened for `seconds` at most. `undisturbed`: nobody is stopped while preparing, because it matters how
    long that takes; so all that are there are prepared before one is timed, and all timed before others are started.
    `tell(name, state)` is called whenever one gets somewhere.
    """
    waiting, preparing, ready = list(names), dict[str, Process](), dict[str, Process]()
    found: dict[str, Found] = {}

    def end(name: str, process: Process) -> None:
        found[name] = process.found()
        tell(name, found[name][1] or "done")

    try:
        while waiting or preparing or ready:
            while waiting and len(preparing) + len(ready) < jobs and (preparing or not (undisturbed and ready)):
                name = waiting.pop(0)
                tell(name, "preparing")
                preparing[name] = start(name)
            for name, process in list(preparing.items()):
                if process.ready:
                    ready[name] = preparing.pop(name)
                elif not process.running():
                    end(name, preparing.pop(name))
            if ready and not (undisturbed and preparing):
                name, process = next(iter(ready.items()))
                with all_still([one for one in (*preparing.values(), *ready.values()) if one is not process]):
                    process.go(seconds, process.limit)
                end(name, ready.pop(name))
            else:
                time.sleep(POLL)
    finally:
        for process in [*preparing.values(), *ready.values()]:
            process.kill("the run ended")
    return found
