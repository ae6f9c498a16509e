"""A process that measures: one of its own for every probe and every workload, forked from a server that has imported
everything already, since a hundred of them would spend most of their time on that.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from scripts.bench.reasons import last_words

PRELOADED = "scripts.bench.preload"
TAIL = 15  # lines of a dead worker's log that are shown
SETTLED = 0.3  # seconds after which processes that were stopped have nothing on the device any more
DYING = 15.0  # seconds that are waited for the end of a process that was killed
ASKING = "PYTORCH_NVML_BASED_CUDA_CHECK"
METHODS = ("forkserver", "spawn")


class Gate:
    """The child's end: says that it is ready, and waits until it may time, and is told for how many seconds at most."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def wait(self) -> float:
        self._connection.send("ready")
        return float(self._connection.recv())


def context(method: str) -> Any:
    """How processes are started: `forkserver`, or `spawn` where something imported does not survive a fork."""
    found = multiprocessing.get_context(method)
    if method == "forkserver":
        found.set_forkserver_preload([PRELOADED])
    return found


@contextlib.contextmanager
def asking_without_the_driver() -> Iterator[None]:
    """For processes started meanwhile, and the server of forks, a GPU is there if the management library says so.

    Imports ask for it; the usual way to find out starts the driver, which forks cannot share.
    """
    before = os.environ.get(ASKING)
    os.environ[ASKING] = "1"
    try:
        yield
    finally:
        del os.environ[ASKING]
        if before is not None:
            os.environ[ASKING] = before


class Process:
    """Started at once, ended past its limit, its log kept beside its answer; it can be stopped for a while."""

    def __init__(
        self,
        name: str,
        work: str,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        limit: float,
        method: str,
    ) -> None:
        """`work` is a function, as `module:name`, that is given the arguments and a `Gate`."""
        self.name, self.limit, self.started = name, limit, time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        self.answer, self.log = folder / f"{name}.answer.json", folder / f"{name}.log"
        self.answer.unlink(missing_ok=True)
        self.killed: str | None = None
        self.tail = ""
        self.interrupted = False
        self._ready = False
        self._stopped_at: float | None = None
        chosen = context(method)
        self._gate, theirs = chosen.Pipe()
        given = (work, [*arguments, "--out", str(self.answer)], str(self.log), dict(environment), theirs)
        self._process = chosen.Process(target=_begin, args=given)
        with asking_without_the_driver():
            self._process.start()
        theirs.close()

    @property
    def ready(self) -> bool:
        """Whether it waits to be let go."""
        if not self._ready and self._gate.poll():
            with contextlib.suppress(EOFError, OSError):
                self._ready = self._gate.recv() == "ready"
        return self._ready

    @property
    def seconds(self) -> float:
        """How long it has been at work."""
        return (self._stopped_at or time.monotonic()) - self.started

    def running(self) -> bool:
        """Whether it still runs; one past its limit is ended here."""
        if self.killed or not self._process.is_alive():
            return False
        if self.seconds > self.limit and not self.ready:
            self.kill(f"no answer within {self.limit:.0f} s")
            return False
        return True

    def go(self, seconds: float, limit: float) -> None:
        """Open the gate for timing of so many seconds at most, and wait for the end."""
        with contextlib.suppress(OSError):
            self._gate.send(seconds)
        self._process.join(limit)
        if self._process.is_alive():
            self.kill(f"timing took more than {limit:.0f} s")

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """The process and what it started do nothing meanwhile, and the time does not count."""
        self._signal(signal.SIGSTOP)
        self.interrupted = True
        self._stopped_at = time.monotonic()
        try:
            yield
        finally:
            self.started += time.monotonic() - self._stopped_at
            self._stopped_at = None
            self._signal(signal.SIGCONT)

    def kill(self, reason: str) -> None:
        """End the process and the compile workers that it started."""
        self.killed = self.killed or reason
        self._signal(signal.SIGKILL)
        self._process.kill()
        self._process.join(DYING)  # one that the driver does not let go may take for ever

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                os.kill(self._process.pid, number)  # it has only begun, and not yet made a group of its own

    def found(self) -> tuple[dict[str, Any], str | None]:
        """The answer, and why there is none. One that had answered before it was ended has only been cut short."""
        if self.killed and not self.answer.exists():
            return {}, f"timeout: {self.killed}"
        if not self.killed and (self._process.exitcode or not self.answer.exists()):
            lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
            self.tail = "\n".join(lines[-TAIL:])
            return {}, f"exit status {self._process.exitcode}: {last_words(lines, raised=self._process.exitcode == 1)}"
        try:
            answer: dict[str, Any] = json.loads(self.answer.read_text())
        except ValueError as error:
            return {}, f"an answer that cannot be read: {error}"
        return answer, None


@contextlib.contextmanager
def all_still(processes: Sequence[Process]) -> Iterator[None]:
    """Several of them stand still; what they had begun on the device has ended."""
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.enter_context(process.standing_still())
        if processes:
            time.sleep(SETTLED)
        yield


def _begin(
    work: str, arguments: Sequence[str], log: str, environment: Mapping[str, str], connection: Connection
) -> None:
    """The child: a group of its own, everything that is printed into its log."""
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(environment)
    module, name = work.split(":")
    sys.exit(getattr(importlib.import_module(module), name)(arguments, Gate(connection)))
