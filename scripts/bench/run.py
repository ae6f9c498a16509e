"""Run workloads in processes of their own and write one result file each as soon as it is known.

On a GPU, work goes in batches: the variants of a batch are compiled by parallel processes that share one Inductor
cache (start-up, memory and kernels are measured there). Then one process a workload compiles all variants from that
cache, several side by side, and as soon as one is done it is timed, while all the others stand still.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from scripts.bench import facts
from scripts.bench.measure import ALIKE, PATIENCE, STEADY
from scripts.bench.process import METHODS, Process, all_still
from scripts.bench.registry import Workload
from scripts.bench.results import Result, VariantResult, decode, from_json, save
from scripts.bench.variants import INDUCTOR, OURS, STOCK, TABLES, VARIANTS

PROBED = (INDUCTOR.name, STOCK.name, OURS.name)
POLL = 0.1
MARGIN = 40.0  # seconds of the budget in which nothing new is started
NOT_REACHED = "not reached within the time budget"
TURN = 3.0  # seconds that a process takes beyond those in which it times
COMPILING = 4  # processes that compile the kernels of one workload
CROWD = 0.6  # of the GPU's memory is given to processes that prepare or wait


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
    time: bool = True
    again: bool = False
    commit: str | None = None
    method: str = METHODS[0]
    work: str = "scripts.bench.worker:main"

    def configuration(self) -> dict[str, Any]:
        """What a result must agree on to be comparable with another."""
        knobs = {name: value for name, value in sorted(os.environ.items()) if name.startswith("PYGRAPH_")}
        return {
            "size": "full" if self.device == "cuda" else "tiny",
            "variants": list(self.variants),
            "seconds": self.seconds,
            "throughput": STEADY if self.time else None,
            "values": ALIKE if self.time else None,
            "cache": "cold" if self.cold else "shared",
            "knobs": knobs,
        }


@dataclass
class Item:
    """A workload on its way through a run. `resumed`: its result is of an earlier one, and all there but for probes."""

    workload: Workload
    result: Result
    started: float = field(default_factory=time.monotonic)
    floor: str | None = None
    probing_s: float = 0.0
    probes: int = 0
    timer: Process | None = None
    resumed: bool = False
    news: bool = False

    def lacks(self, name: str) -> bool:
        """Whether a process of its own has yet to tell of a variant."""
        variant = self.result.variants.get(name)
        if variant is None:
            return True
        return variant.status in ("ok", "wrong") and variant.memory is None and variant.startup is None

    def probe_s(self) -> float:
        """What another probe may take."""
        return self.probing_s / max(self.probes, 1)

    def bytes_wanted(self) -> int:
        """What a process with all variants will take of the GPU's memory, as far as probes have told."""
        memories = [variant.memory for variant in self.result.variants.values() if variant.memory]
        # One variant is prepared at a time, beside what those before it keep; the floor keeps what a plain call takes.
        kept = sum(memory.steady_reserved for memory in memories)
        plain = self.result.variants.get(INDUCTOR.name)
        if plain is not None and plain.memory is not None:
            kept += max(plain.memory.peak_reserved - plain.memory.steady_reserved, 0)
        return kept + max((one.peak_reserved_with_startup - one.steady_reserved for one in memories), default=0)


class Run:
    """Everything that one invocation does. `tell(result)` is called whenever a workload's state changed."""

    def __init__(self, options: Options, tell: Callable[[Workload, str, Result | None], None]) -> None:
        self.options, self.tell = options, tell
        self.deadline = time.monotonic() + options.budget if options.budget else None
        self.environment = facts.environment(options.device)
        self.commit = facts.commit(options.commit)
        self.processes: list[Process] = []

    def left(self) -> float:
        return self.deadline - time.monotonic() if self.deadline else float("inf")

    def all(self, workloads: Sequence[Workload]) -> list[Result]:
        """Run what has no result yet, and probes that a result lacks; results of before come back with the others."""
        results: list[Result] = []
        todo: list[Item] = []
        for workload in workloads:
            before = None if self.options.again else self.before(workload)
            item = self.begin(workload, before)
            if before is None or (not workload.missing() and any(map(item.lacks, self.probes()))):
                todo.append(item)
            else:
                self.tell(workload, "measured before", before)
                results.append(before)
        work = self.simulated if self.options.device == "sim" else self.batch
        try:
            for first in range(0, len(todo), self.options.batch):
                items = todo[first : first + self.options.batch]
                results += work(items) if self.left() > MARGIN else self.all_known(items)
        finally:
            for process in self.processes:
                if process.running():
                    process.kill("the run ended")
        return results

    def probes(self) -> list[str]:
        """The variants that get processes of their own."""
        probed = self.options.probe and self.options.device != "sim"
        return [name for name in PROBED if name in self.options.variants] if probed else []

    def before(self, workload: Workload) -> Result | None:
        """A result of this commit, configuration, machine and versions, if there is one that answered."""
        path = self.options.out / f"{workload.name}.json"
        try:
            old = from_json(json.loads(path.read_text()))
        except (OSError, ValueError):
            return None
        mine = (self.commit["sources"], self.options.configuration(), self.environment)
        theirs = (old.commit.get("sources"), old.configuration, old.environment)
        return old if mine == theirs and old.status in ("ok", "wrong") else None

    def begin(self, workload: Workload, before: Result | None = None) -> Item:
        """A workload from its start, or from where an earlier run was out of time."""
        if before is not None:
            took = [v.startup.to_steady_s for v in before.variants.values() if v.startup is not None]
            return Item(workload, before, probing_s=sum(took), probes=len(took), resumed=True)
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
            for name in (INDUCTOR.name, OURS.name, TABLES.name):
                variant = result.variants.get(name)
                if variant is not None and variant.status in ("failed", "wrong"):
                    result.status, result.reason = variant.status, f"{VARIANTS[name].label}: {variant.reason}"
        result.finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
        result.seconds = round(result.seconds + time.monotonic() - item.started, 1)
        save(self.options.out, result)
        self.tell(item.workload, result.status, result)
        return result

    def skip(self, item: Item) -> Result:
        missing = ", ".join(item.workload.missing())
        item.result.status, item.result.reason = "skipped", f"needs {missing}, which is not installed"
        return self.finish(item)

    def start(self, name: str, arguments: Sequence[str], threads: int, cache: str = "shared") -> Process:
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(self.options.cache / cache), "PYTHONUNBUFFERED": "1"}
        arguments = [*arguments, "--threads", os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", str(threads))]
        logs = self.options.out / "logs"
        process = Process(
            name, self.options.work, arguments, logs, environment, self.options.limit, self.options.method
        )
        self.processes.append(process)
        return process

    def simulated(self, items: Sequence[Item]) -> list[Result]:
        """Tiny sizes on the simulated driver; nothing is timed, so they run side by side."""
        running: list[tuple[Item, Process]] = []
        results = []
        for item in items:
            if item.workload.missing():
                results.append(self.skip(item))
                continue
            self.tell(item.workload, "running", None)
            name = item.workload.name
            running.append((item, self.start(f"{name}.sim", ("simulate", name), threads=1)))
        for item, process in running:
            while process.running():
                if self.left() < 1:
                    process.kill(NOT_REACHED)
                time.sleep(POLL)
            answer, failure = process.found()
            self.merge(item, answer, failure)
            results.append(self.finish(item))
        return results

    def merge(self, item: Item, answer: dict[str, Any], failure: str | None) -> None:
        """Add a worker's findings to the result, field by field; a field already known stays."""
        if failure is not None:
            kind = "timeout" if failure.startswith("timeout") else "failed"
            item.result.status, item.result.reason = kind, failure
        try:
            found = {name: decode(VariantResult, data) for name, data in answer.get("variants", {}).items()}
        except (ValueError, TypeError, AttributeError) as error:  # one odd number must not end everybody's run
            item.result.status, item.result.reason = "failed", f"an answer that cannot be read: {error}"
            return
        for name, new in found.items():
            known = item.result.variant(name)
            if new.status != "ok" or (new.reason and known.status == "ok"):  # what is wrong stays wrong
                known.status, known.reason = new.status, new.reason
            for part in ("timing", "startup", "memory", "profile", "accuracy", "graphs"):
                if getattr(new, part) is not None and getattr(known, part) is None:
                    setattr(known, part, getattr(new, part))
            if not (item.resumed and known.decisions):  # the timing process's stay: the machine is quiet then
                known.decisions = new.decisions or known.decisions
            known.skips |= new.skips

    def batch(self, batch: Sequence[Item]) -> list[Result]:
        """Compile and probe side by side; time one workload after another, as they get ready."""
        for item in batch:
            item.started = time.monotonic()
        results = [self.skip(item) for item in batch if item.workload.missing()]
        items = [item for item in batch if not item.workload.missing()]
        # All plain calls first: they compile the kernels that the other variants then find in the cache. Of these, what
        # is to be compared comes together, in case that time is up before all are done.
        queue = [(item, name) for item in items for name in self.probes() if item.lacks(name)]
        queue.sort(key=lambda entry: entry[1] != INDUCTOR.name)
        probing: list[tuple[Item, str, Process]] = []
        untimed = [item for item in items if item.resumed or not self.options.time]
        waiting, timers = [item for item in items if item not in untimed], list[Item]()
        while waiting or timers or untimed:
            for entry in [entry for entry in probing if not entry[2].running()]:
                probing.remove(entry)
                self.probed(*entry)
            spare = self.left() - self.reserve([*waiting, *timers])
            # What does not fit is left out: what is known of its memory and start-up has to do.
            queue = [entry for entry in queue if entry[0].probe_s() < spare]
            self.start_probes(queue, probing, len(timers), spare)
            busy = {item.workload.name for item, _, _ in probing}
            unprobed = busy | {item.workload.name for item, _ in queue}
            results += self.all_known([item for item in untimed if item.workload.name not in unprobed])
            untimed = [item for item in untimed if item.workload.name in unprobed]
            if not queue:
                self.start_timers(waiting, timers, busy, len(probing))
            elif len(timers) + 1 < self.options.jobs:
                self.start_timers(waiting, timers, unprobed | self.in_time(waiting), len(probing))
            ended = [item for item in timers if item.timer and (item.timer.ready or not item.timer.running())]
            idle = not timers and not probing and self.left() < MARGIN
            if idle or self.left() < self.options.seconds + TURN:
                for _, _, process in probing:
                    process.kill(NOT_REACHED)
                ended, waiting = [*timers, *waiting], []
                results += self.all_known(untimed)
                untimed = []
            elif queue or not self.pressing(waiting, timers, ended, [process for _, _, process in probing]):
                ended = []
            for item in ended:
                if item in timers:
                    timers.remove(item)
                others = [process for _, _, process in probing]
                others += [one.timer for one in timers if one.timer]
                results += self.timed(item, others, self.reserve([*waiting, *timers]))
            if not ended:
                time.sleep(POLL)
        return results

    def all_known(self, untimed: Sequence[Item]) -> list[Result]:
        """The results of those that are not timed in this run, as far as there are any."""
        results = []
        for item in untimed:
            if item.news:
                results.append(self.finish(item))
            elif item.resumed:
                self.tell(item.workload, "measured before", item.result)
                results.append(item.result)
            else:
                self.tell(item.workload, NOT_REACHED, None)
        return results

    def pressing(self, waiting: list[Item], timers: list[Item], ended: list[Item], probes: Sequence[Process]) -> bool:
        """Whether to time although probes run, which time how long compiling takes: they had better not stand still."""
        if all(process.interrupted for process in probes):
            return True
        full = len(probes) + len(timers) >= self.options.jobs and len(ended) == len(timers) and bool(waiting)
        return full or self.left() <= self.reserve([*waiting, *timers])

    def reserve(self, items: Sequence[Item]) -> float:
        """Seconds that timing takes, and preparing it, which takes about half as long as the probes did."""
        unready = [item for item in items if item.timer is None or not item.timer.ready]
        preparing = sum(item.probing_s for item in unready) / 2 / self.options.jobs
        return preparing + len(items) * (self.options.seconds + TURN)

    def in_time(self, waiting: Sequence[Item]) -> set[str]:
        """Which need not be prepared before all probes have begun: preparing takes less than a probe does."""
        left = self.left() - len(waiting) * (self.options.seconds + TURN)
        return {item.workload.name for item in waiting if item.probe_s() < left}

    def start_probes(
        self, queue: list[tuple[Item, str]], probing: list[tuple[Item, str, Process]], others: int, spare: float
    ) -> None:
        """As many as there is room for: those that take longest first, if there is time to `spare` for all of them."""
        while queue and len(probing) + others < self.options.jobs and self.left() > MARGIN:
            plain = [one for one in queue if one[1] == INDUCTOR.name]
            if plain:
                entry = max(plain, key=lambda one: one[0].probe_s())
            elif sum(item.probe_s() for item, _ in queue) / self.options.jobs < spare:
                entry = max(queue, key=lambda one: one[0].probe_s())
            else:  # stock graphs and ours of one workload after each other, of as many workloads as there is time for
                entry = min(queue, key=lambda one: (not one[0].probes, one[0].probe_s()))
            queue.remove(entry)
            probing.append((*entry, self.start_probe(*entry)))

    def start_timers(self, waiting: list[Item], timers: list[Item], busy: set[str], others: int) -> None:
        """Prepare to time what is not being probed, what takes long first, as far as the GPU's memory goes."""
        room = CROWD * self.environment.get("gpu_memory", 0)
        for item in sorted(waiting, key=lambda one: -one.probing_s):
            taken = sum(one.bytes_wanted() for one in timers)
            if item.workload.name in busy or (timers and room and taken + item.bytes_wanted() > room):
                continue
            if len(timers) + others >= self.options.jobs or self.left() < MARGIN:
                return
            waiting.remove(item)
            timers.append(item)
            item.timer = self.start_timer(item)

    def timed(self, item: Item, others: Sequence[Process], reserved: float = 0.0) -> list[Result]:
        """The result of a prepared workload, timed while others stand still; none if there was no time for that.

        `reserved` seconds are left to those that are timed after it.
        """
        timer = item.timer
        if timer is None or (timer.running() and not (timer.ready and self.left() > self.options.seconds + TURN)):
            if timer is not None:
                timer.kill(NOT_REACHED)
            self.tell(item.workload, NOT_REACHED, None)
            return []
        if timer.ready:
            self.tell(item.workload, "timing", None)
            with all_still(others):
                seconds = self.options.seconds
                most = max(min(PATIENCE * seconds, self.left() - reserved - TURN), seconds)
                timer.go(most, min(most + 2 * seconds + 60, self.left()))
        answer, failure = timer.found()
        if failure and self.left() < TURN:
            self.tell(item.workload, NOT_REACHED, None)
            return []
        self.merge(item, answer, failure)
        return [self.finish(item)]

    def start_timer(self, item: Item) -> Process:
        self.tell(item.workload, "preparing", None)
        name = item.workload.name
        # What failed alone, perhaps inside a capture, must not take the others' process with it.
        broken = {n for n, v in item.result.variants.items() if v.status == "failed" and n != INDUCTOR.name}
        variants = [variant for variant in self.options.variants if variant not in broken]
        arguments = ["time", name, "--device", self.options.device, "--variants", ",".join(variants)]
        arguments += ["--seconds", str(self.options.seconds), "--floor", item.floor or "", "--gate"]
        arguments += [] if self.options.probe else ["--profile"]
        # In one thread: a pool of compiling processes would not stand still.
        return self.start(f"{name}.time", arguments, threads=1)

    def start_probe(self, item: Item, name: str) -> Process:
        self.tell(item.workload, f"compiling {VARIANTS[name].label}", None)
        kind = "cold" if self.options.cold else "shared"
        cache = f"cold/{item.workload.name}.{name}" if self.options.cold else "shared"
        if self.options.cold:  # a run that was stopped, or is made again, has left something in it
            shutil.rmtree(self.options.cache / cache, ignore_errors=True)
        arguments = ["probe", item.workload.name, "--device", self.options.device, "--variants", name, "--cache", kind]
        threads = COMPILING if self.options.cold or name == INDUCTOR.name else 1
        return self.start(f"{item.workload.name}.{name}", arguments, threads, cache)

    def probed(self, item: Item, name: str, process: Process) -> None:
        answer, failure = process.found()
        item.probing_s += process.seconds
        item.probes += 1
        item.news = True
        if failure is not None:
            variant = item.result.variant(name)
            variant.status, variant.reason = "failed", f"alone: {failure}"
        else:
            # The clock went on while it stood still; or the process that timed all variants had compiled what this one
            # found in the cache, and not what its rivals had found.
            if process.interrupted or (item.resumed and not self.options.cold):
                for variant in answer.get("variants", {}).values():
                    variant["startup"] = None
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
