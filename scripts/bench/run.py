"""Run workloads in processes of their own and write one result file each as soon as it is known.

On a GPU, work goes in batches: the variants of a batch are compiled by parallel processes that share one Inductor
cache (start-up, memory and kernels are measured there), then one process a workload compiles all variants from that
cache and waits, and when everything else is quiet they are timed one after another.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from scripts.bench import facts
from scripts.bench.registry import Workload
from scripts.bench.results import Result, VariantResult, decode, from_json, save
from scripts.bench.variants import INDUCTOR, OURS, STOCK, VARIANTS
from scripts.bench.worker import READY

PROBED = (INDUCTOR.name, STOCK.name, OURS.name)
POLL = 0.1
TAIL = 15  # lines of a dead worker's log that are shown
MARGIN = 40.0  # seconds of the budget in which nothing new is started
NOT_REACHED = "not reached within the time budget"
TURN = 4.0  # seconds that a process takes beyond those in which it times


@dataclass(frozen=True)
class Options:
    """One run's choices. `budget` is seconds for everything, `limit` for one process; `batch` workloads are prepared
    together by `jobs` processes at a time."""

    device: str
    out: Path
    cache: Path
    variants: tuple[str, ...]
    seconds: float = 6.0
    budget: float | None = None
    limit: float = 300.0
    jobs: int = 1
    batch: int = 1
    cold: bool = False
    probe: bool = True
    again: bool = False
    commit: str | None = None
    worker: tuple[str, ...] = (sys.executable, "-m", "scripts.bench.worker")

    def configuration(self) -> dict[str, Any]:
        """What a result must agree on to be comparable with another."""
        knobs = {name: value for name, value in sorted(os.environ.items()) if name.startswith("PYGRAPH_")}
        return {
            "size": "full" if self.device == "cuda" else "tiny",
            "variants": list(self.variants),
            "seconds": self.seconds,
            "cache": "cold" if self.cold else "shared",
            "knobs": knobs,
        }


class Worker:
    """A worker process: started at once, killed past its limit, its log kept beside its answer."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, cache: Path, limit: float) -> None:
        self.name, self.limit, self.started = name, limit, time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        self.answer, self.log = folder / f"{name}.answer.json", folder / f"{name}.log"
        self.answer.unlink(missing_ok=True)
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONUNBUFFERED": "1"}
        environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1" if "simulate" in command else "4")
        self.ready = threading.Event()
        self.killed: str | None = None
        self.tail = ""
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--out", str(self.answer)],
                cwd=facts.ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()

    def _listen(self, stdout: IO[str] | None) -> None:
        for line in stdout or ():
            if line.strip() == READY:
                self.ready.set()

    def running(self) -> bool:
        """Whether it still runs; one past its limit is ended here."""
        if self.process.poll() is not None:
            return False
        if time.monotonic() - self.started > self.limit and not self.ready.is_set():
            self.kill(f"no answer within {self.limit:.0f} s")
            return False
        return True

    def go(self, limit: float) -> None:
        """Open the gate and wait for the end."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
            self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            self.kill(f"timing took more than {limit:.0f} s")
        except BrokenPipeError:
            self.process.wait()

    def kill(self, reason: str) -> None:
        """End the process and the compile workers that it started."""
        self.killed = self.killed or reason
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def found(self) -> tuple[dict[str, Any], str | None]:
        """The answer, and why there is none."""
        if self.killed:
            return {}, f"timeout: {self.killed}"
        if self.process.returncode or not self.answer.exists():
            lines = self.log.read_text(errors="replace").strip().splitlines()
            last = next((line for line in reversed(lines) if line.strip()), "no output")
            self.tail = "\n".join(lines[-TAIL:])
            return {}, f"exit status {self.process.returncode}: {last.strip()[:300]}"
        answer: dict[str, Any] = json.loads(self.answer.read_text())
        return answer, None


@dataclass
class Item:
    """A workload on its way through a run."""

    workload: Workload
    result: Result
    started: float = field(default_factory=time.monotonic)
    floor: str | None = None
    timer: Worker | None = None


class Run:
    """Everything that one invocation does. `tell(result)` is called whenever a workload's state changed."""

    def __init__(self, options: Options, tell: Callable[[Workload, str, Result | None], None]) -> None:
        self.options, self.tell = options, tell
        self.deadline = time.monotonic() + options.budget if options.budget else None
        self.environment = facts.environment(options.device)
        self.commit = facts.commit(options.commit)
        self.workers: list[Worker] = []

    def left(self) -> float:
        return self.deadline - time.monotonic() if self.deadline else float("inf")

    def all(self, workloads: Sequence[Workload]) -> list[Result]:
        """Run what has no result yet; results of before come back with the new ones."""
        results, todo = [], []
        for workload in workloads:
            before = None if self.options.again else self.before(workload)
            if before is not None:
                self.tell(workload, "measured before", before)
                results.append(before)
            else:
                todo.append(workload)
        work = self.simulated if self.options.device == "sim" else self.batch
        try:
            for first in range(0, len(todo), self.options.batch):
                if self.left() > MARGIN:
                    results += work(todo[first : first + self.options.batch])
                else:
                    for workload in todo[first : first + self.options.batch]:
                        self.tell(workload, NOT_REACHED, None)
        finally:
            for worker in self.workers:
                if worker.process.poll() is None:
                    worker.kill("the run ended")
        return results

    def before(self, workload: Workload) -> Result | None:
        """A result of this commit and configuration, if there is one that answered."""
        path = self.options.out / f"{workload.name}.json"
        try:
            old = from_json(json.loads(path.read_text()))
        except (OSError, ValueError):
            return None
        mine = (self.commit["sources"], self.options.configuration(), self.environment.get("gpu"))
        theirs = (old.commit.get("sources"), old.configuration, old.environment.get("gpu"))
        return old if mine == theirs and old.status in ("ok", "wrong") else None

    def begin(self, workload: Workload) -> Item:
        described = {
            key: getattr(workload, key)
            for key in ("title", "suite", "mode", "batch", "precision", "structure", "source", "paper")
        }
        return Item(
            workload,
            Result(workload.name, described, self.environment, self.commit, self.options.configuration()),
        )

    def finish(self, item: Item) -> Result:
        """Write the result; its status is the worst of the variants that must work."""
        result = item.result
        if result.status == "ok":
            for name in (INDUCTOR.name, OURS.name):
                variant = result.variants.get(name)
                if variant is not None and variant.status in ("failed", "wrong"):
                    result.status, result.reason = variant.status, f"{VARIANTS[name].label}: {variant.reason}"
        result.finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
        result.seconds = round(time.monotonic() - item.started, 1)
        save(self.options.out, result)
        self.tell(item.workload, result.status, result)
        return result

    def skip(self, item: Item) -> Result:
        missing = ", ".join(item.workload.missing())
        item.result.status, item.result.reason = "skipped", f"needs {missing}, which is not installed"
        return self.finish(item)

    def start(self, name: str, arguments: Sequence[str], cache: str = "shared") -> Worker:
        limit = max(min(self.options.limit, self.left() - 5), 1)
        command = (*self.options.worker, *arguments)
        worker = Worker(name, command, self.options.out / "logs", self.options.cache / cache, limit)
        self.workers.append(worker)
        return worker

    def simulated(self, batch: Sequence[Workload]) -> list[Result]:
        """Tiny sizes on the simulated driver; nothing is timed, so they run side by side."""
        items = [self.begin(workload) for workload in batch]
        running: list[tuple[Item, Worker]] = []
        results = []
        for item in items:
            if item.workload.missing():
                results.append(self.skip(item))
                continue
            self.tell(item.workload, "running", None)
            running.append((item, self.start(f"{item.workload.name}.sim", ("simulate", item.workload.name))))
        for item, worker in running:
            while worker.running():
                time.sleep(POLL)
            answer, failure = worker.found()
            self.merge(item, answer, failure)
            results.append(self.finish(item))
        return results

    def merge(self, item: Item, answer: dict[str, Any], failure: str | None) -> None:
        """Add a worker's findings to the result, field by field; a field already known stays."""
        if failure is not None:
            kind = "timeout" if failure.startswith("timeout") else "failed"
            item.result.status, item.result.reason = kind, failure
        for name, data in answer.get("variants", {}).items():
            new, known = decode(VariantResult, data), item.result.variant(name)
            if new.status != "ok" or new.reason:
                known.status, known.reason = new.status, new.reason
            for part in ("timing", "startup", "memory", "profile", "accuracy", "graphs"):
                if getattr(new, part) is not None and getattr(known, part) is None:
                    setattr(known, part, getattr(new, part))
            known.decisions = new.decisions or known.decisions  # the timing process's: the machine is quiet then
            known.skips |= new.skips

    def batch(self, batch: Sequence[Workload]) -> list[Result]:
        """Compile and probe side by side; then, with everything else quiet, time one workload after another."""
        results: list[Result] = []
        items = []
        for workload in batch:
            item = self.begin(workload)
            if workload.missing():
                results.append(self.skip(item))
            else:
                items.append(item)
        self.prepare(items)
        for item in items:
            if item.timer is None or item.timer.killed == NOT_REACHED or not self.timed(item, item.timer):
                self.tell(item.workload, NOT_REACHED, None)
            else:
                results.append(self.finish(item))
        return results

    def timed(self, item: Item, timer: Worker) -> bool:
        """Let a prepared process time its workload; False if the time budget ended before it could."""
        if timer.running():
            if self.left() < self.options.seconds + TURN:
                timer.kill(NOT_REACHED)
                return False
            else:
                self.tell(item.workload, "timing", None)
                timer.go(min(self.options.seconds * 3 + 60, self.left()))
        answer, failure = timer.found()
        self.merge(item, answer, failure)
        return failure is None or self.left() > TURN

    def prepare(self, items: Sequence[Item]) -> None:
        """Every item's probes, then its timing process up to the gate; at most `jobs` at work at a time.

        Ends early when the time that is left is just enough to time what is ready.
        """
        probes = [name for name in PROBED if name in self.options.variants] if self.options.probe else []
        # All plain calls first: they compile the kernels that the other variants then find in the cache.
        queue = [(item, name) for name in probes for item in items]
        to_do = {item.workload.name: len(probes) for item in items}
        ready = [item for item in items if not probes]
        running: list[tuple[Item, str | None, Worker]] = []
        while queue or ready or running:
            for entry in [entry for entry in running if entry[2].ready.is_set() or not entry[2].running()]:
                running.remove(entry)
                item, name, worker = entry
                if name is not None:
                    self.probed(item, name, worker)
                    to_do[item.workload.name] -= 1
                    ready += [item] if not to_do[item.workload.name] else []
            while (queue or ready) and len(running) < self.options.jobs and self.left() > MARGIN:
                if ready:
                    item = ready.pop(0)
                    item.timer = self.start_timer(item)
                    running.append((item, None, item.timer))
                else:
                    item, name = queue.pop(0)
                    running.append((item, name, self.start_probe(item, name)))
            if self.left() <= MARGIN:
                queue.clear()
                ready.clear()
            waiting = sum(item.timer is not None and item.timer.ready.is_set() for item in items)
            if self.left() <= waiting * (self.options.seconds + TURN) + TURN:
                for _, _, worker in running:
                    worker.kill(NOT_REACHED)
                return
            time.sleep(POLL)

    def start_timer(self, item: Item) -> Worker:
        self.tell(item.workload, "preparing", None)
        name = item.workload.name
        # What failed alone, perhaps inside a capture, must not take the others' process with it.
        broken = {n for n, v in item.result.variants.items() if v.status == "failed" and n != INDUCTOR.name}
        variants = [variant for variant in self.options.variants if variant not in broken]
        arguments = ["time", name, "--device", self.options.device, "--variants", ",".join(variants)]
        arguments += ["--seconds", str(self.options.seconds), "--floor", item.floor or "", "--gate"]
        arguments += [] if self.options.probe else ["--profile"]
        return self.start(f"{name}.time", arguments)

    def start_probe(self, item: Item, name: str) -> Worker:
        self.tell(item.workload, f"compiling {VARIANTS[name].label}", None)
        kind = "cold" if self.options.cold else "shared"
        cache = f"cold/{item.workload.name}.{name}" if self.options.cold else "shared"
        arguments = ["probe", item.workload.name, "--device", self.options.device, "--variants", name, "--cache", kind]
        return self.start(f"{item.workload.name}.{name}", arguments, cache)

    def probed(self, item: Item, name: str, worker: Worker) -> None:
        answer, failure = worker.found()
        if failure is not None:
            variant = item.result.variant(name)
            variant.status, variant.reason = "failed", f"alone: {failure}"
        else:
            self.merge(item, answer, None)
        if name == INDUCTOR.name:
            item.floor = failure or answer.get("floor")
        if self.options.cold:
            share(self.options.cache / f"cold/{item.workload.name}.{name}", self.options.cache / "shared")


def share(source: Path, target: Path) -> None:
    """Hand a cold cache's content-addressed files on to the timing process; the first writer of a name wins."""
    for path in source.rglob("*"):
        copy = target / path.relative_to(source)
        if path.is_file() and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, copy)


def part(workloads: Sequence[Workload], text: str | None) -> list[Workload]:
    """The i-th of n parts, dealt out like cards so that each has a bit of everything."""
    if not text:
        return list(workloads)
    try:
        index, count = (int(number) for number in text.split("/"))
    except ValueError:
        index = count = 0
    if not 1 <= index <= count:
        raise SystemExit(f"--part is i/n with 1 <= i <= n, not {text!r}")
    return list(workloads)[index - 1 :: count]
