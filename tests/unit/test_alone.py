"""Workers of pytest-xdist take turns with a test that wants to be alone."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

from tests.alone import in_turn


def test_one_that_is_alone_waits_for_those_that_came_before_and_keeps_those_that_come_after(tmp_path: Path) -> None:
    seen: list[str] = []
    first_may_end = threading.Event()

    def worker(name: str, alone: bool, until: threading.Event | None = None) -> threading.Thread:
        def work() -> None:
            with in_turn(tmp_path, alone):
                seen.append(f"{name} begins")
                if until is not None:
                    until.wait(20)
                seen.append(f"{name} ends")

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.2)
        return thread

    threads = [worker("first", False, first_may_end), worker("second", False)]
    assert seen == ["first begins", "second begins", "second ends"], "they do not wait for each other"
    threads += [worker("alone", True), worker("late", False)]
    assert seen[3:] == [], "neither the one that waits for the first nor the one behind it"
    first_may_end.set()
    for thread in threads:
        thread.join(20)
    assert seen[3:] == ["first ends", "alone begins", "alone ends", "late begins", "late ends"]


def test_child_that_is_still_there_keeps_nobody_out(tmp_path: Path) -> None:
    with in_turn(tmp_path, alone=False):
        child = subprocess.Popen(["sleep", "20"], pass_fds=open_files())
    try:
        entered = threading.Event()

        def alone() -> None:
            with in_turn(tmp_path, alone=True):
                entered.set()

        threading.Thread(target=alone, daemon=True).start()
        assert entered.wait(10)
    finally:
        child.kill()
        child.wait()


def open_files() -> list[int]:
    """A forked child has them, too; one that starts another program is only given those that are named."""
    return [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
