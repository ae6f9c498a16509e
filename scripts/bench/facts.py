"""Facts that a result carries besides numbers: the machine, the versions, the commit, what the package reports."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from scripts.bench.results import Decision, Estimate, Graphs

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("torch", "triton", "transformers", "torchvision", "numpy")


def environment(device: str) -> dict[str, Any]:
    """Machine and versions; without importing torch, which a runner that only starts others need not do."""
    found: dict[str, Any] = {
        "device": device,
        "python": platform.python_version(),
        "host": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    if device == "cuda":
        found |= gpu()
    return found


def gpu() -> dict[str, Any]:
    """Name, memory and driver of the GPU that CUDA uses first."""
    script = (
        "import json, torch; p = torch.cuda.get_device_properties(0);"
        "print(json.dumps({'gpu': p.name, 'gpu_memory': p.total_memory, 'capability': f'{p.major}.{p.minor}',"
        "'cuda': torch.version.cuda, 'torch': torch.__version__}))"
    )
    import json

    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no output"])[-1]
        raise SystemExit(
            f"torch finds no CUDA device ({last}). Workloads run without a GPU, too: make bench DEVICE=sim"
        )
    found: dict[str, Any] = json.loads(answer.stdout)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.split()
        found["driver"] = driver[0] if driver else None
    except (OSError, subprocess.TimeoutExpired):
        found["driver"] = None
    return found


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def commit(given: str | None = None) -> dict[str, Any]:
    """The commit, whether the sources differ from it, and their hash, which also tells builds without git apart."""
    found: dict[str, Any] = {"id": given or git("rev-parse", "HEAD"), "sources": sources_hash()}
    if not given and found["id"]:
        found["changed"] = bool(git("status", "--porcelain", "--", "pygraph_inductor"))
    return found


def git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def sources_hash() -> str:
    """A hash of what the package does: every Python and C file of it."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "pygraph_inductor").rglob("*")):
        if path.suffix in (".py", ".c"):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def dynamo_counters() -> dict[str, int]:
    """What stock PyTorch counts about graphs in this process: skips, and graphs by Dynamo."""
    from torch._dynamo.utils import counters

    found = {key: value for key, value in counters["inductor"].items() if "cudagraph" in key}
    found["dynamo_graphs"] = counters["stats"]["unique_graphs"]
    return dict(found)


def keep_no_decisions() -> None:
    """Let this process decide for itself: others that compile beside it spoil what would be kept for it."""
    from pygraph_inductor.seams import identity

    identity.decisions_folder = lambda: None


def keep_decisions(folder: Path) -> None:
    """Let this process keep its decisions in a folder, wherever it has its compiled code from."""
    from pygraph_inductor.seams import identity

    identity.decisions_folder = lambda: str(folder)


def undecided() -> int:
    """How many decisions for or against a graph are still being measured."""
    import pygraph_inductor

    return sum(not one.chosen for function in pygraph_inductor.report().functions for one in function.decisions)


def graphs_of(functions: Iterable[Any]) -> Graphs:
    """Sum what the package reports about its functions."""
    graphs = Graphs()
    copies = twins = 0
    slots: Counter[str] = Counter()
    for function in functions:
        graphs.functions += 1
        graphs.replayed += bool(function.replays)
        graphs.recordings += len(function.recordings)
        for recording in function.recordings:
            graphs.kernels_inside += recording.kernels
            twins += recording.twins
            copies += recording.nodes.get("memcpy", 0)
            graphs.bindings += recording.bindings
            graphs.bytes_borrowed += recording.bytes_borrowed
            graphs.updates += recording.updates
            graphs.staged += recording.staged
            slots.update(recording.slots)
        where = f"{function.kind} {function.name}" + (f" ({function.source})" if function.source else "")
        graphs.cuts += [f"{reason} [{where}]" for reason in function.reasons]
        graphs.decisions += [f"{one.chosen}: {one.reason} [{where}]" for one in function.decisions]
    graphs.copies_inside = copies
    graphs.twins = twins
    graphs.slots = dict(sorted(slots.items()))
    return graphs


def decisions_of(functions: Iterable[Any]) -> list[Decision]:
    """What was decided about the functions, with the cost model's expectations beside what was measured."""
    return [
        Decision(
            function=f"{function.kind} {function.name}" if function.kind not in function.name else function.name,
            sizes=one.sizes,
            chosen=one.chosen,
            origin=one.origin,
            reason=one.reason,
            plain_host_at_most_us=one.plain_host_at_most_us,
            variants=estimates_of(one),
        )
        for function in functions
        for one in function.decisions
    ]


def estimates_of(decision: Any) -> list[Estimate]:
    found: dict[str, Estimate] = {}
    for one in decision.variants:
        found[one.name] = Estimate(one.name, one.rounds, one.host_us, one.device_us, one.cost_us)
    for one in decision.expected:
        estimate = found.setdefault(one.name, Estimate(one.name))
        estimate.expected_host_us, estimate.expected_added_us = one.host_us, one.added_us
    return list(found.values())


def steady_graphs(runner: Any, draw: Any, before: int, iterations: int = 2) -> Graphs:
    """The package's counts per steady iteration of the runner, how many Python calls of ours one takes, and where its
    kernels are launched, if it is simulated."""
    import pygraph_inductor
    from scripts.bench.launches import launches
    from scripts.bench.variants import active

    def functions() -> Sequence[Any]:
        return pygraph_inductor.report().functions[before:]

    kept: list[Any] = []  # nothing is freed meanwhile: every tensor is at an address of its own

    def iterate(inputs: Sequence[Any]) -> None:
        kept.append((inputs, runner.program.observe(runner.iterate(inputs))))

    with active(runner.variant, runner.simulate):
        iterate(runner.program.fresh(draw))
        start = graphs_of(functions())
        for _ in range(iterations):
            iterate(runner.program.fresh(draw))
        end = graphs_of(functions())
        inputs = runner.program.fresh(draw)
        calls = python_calls(lambda: iterate(inputs))
        if runner.simulate:
            last = runner.program.fresh(draw)
            launched = launches(lambda: iterate(last))
            end.kernels_in_graphs, end.kernels_outside = launched.in_graphs, launched.outside
    end.updates = (end.updates - start.updates) / iterations
    end.staged = (end.staged - start.staged) / iterations
    end.python_calls = calls
    return end


def python_calls(work: Any) -> int:
    """How many Python functions of the package `work` calls."""
    package = str(ROOT / "pygraph_inductor") + os.sep
    count = 0

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event == "call" and frame.f_code.co_filename.startswith(package):
            count += 1

    import threading

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return count
