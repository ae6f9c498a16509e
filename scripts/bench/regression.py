"""Expectations for simulated workloads: counts that need no clock, so that any machine sees a regression.

`tests/regression/expected/torch-X.Y.json` holds them, one file per torch minor version because Inductor decides
how many kernels there are. Every supported version has the workloads of `make test`, one of them has all.
`python -m scripts.bench expect` refreshes the file of the torch that runs it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.bench import facts
from scripts.bench.registry import Workload, choose
from scripts.bench.results import Graphs, Result, VariantResult, decode, load, write_json

EXPECTED = facts.ROOT / "tests" / "regression" / "expected"
# What `make test` runs: an inference of many kernels, many inputs with one written in place, a training step.
TESTED = ("MLP8", "TKE", "RL-PPO")
EXACT_AT_MOST = ("functions", "recordings", "bindings", "copies_inside")
AT_LEAST = ("replayed", "kernels_inside")
# Whether memory that was freed is handed out at its old address again is the allocator's mood, and an address that did
# not move needs no update: these counts may wobble by the share given. How a view is aligned is its mood, too.
WOBBLING = {"updates": 0.25, "staged": 1.0, "python_calls": 0.10}
KEYS = (*EXACT_AT_MOST, *AT_LEAST, *WOBBLING, "slots", "cuts")


def installed() -> str:
    """The minor version of the torch that is installed."""
    from importlib import metadata

    return ".".join(metadata.version("torch").split(".")[:2])


def path(minor: str) -> Path:
    return EXPECTED / f"torch-{minor}.json"


def expected(minor: str) -> dict[str, dict[str, Any]]:
    """Expectations by workload; none where this minor version of torch has no file."""
    return json.loads(path(minor).read_text()) if path(minor).exists() else {}


def counts(graphs: Graphs) -> dict[str, Any]:
    """The part of a report that is an expectation; of cuts the reasons, since their places move with every edit."""
    found = {key: value for key, value in asdict(graphs).items() if key in KEYS}
    return {**found, "cuts": sorted({cut.split(" [")[0] for cut in graphs.cuts})}


def worse(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What got worse, one line each; better is not a complaint."""
    if lacking := [key for key, value in found.items() if value is None]:  # a result file from before it was counted
        return [f"not counted: {', '.join(lacking)}; run it again with --again"]
    lines = []
    most = {key: wanted[key] for key in EXACT_AT_MOST}
    most |= {key: wanted[key] * (1 + share) for key, share in WOBBLING.items()}
    for key, limit in most.items():
        if found[key] > limit:
            lines.append(f"{key}: {found[key]:g}, expected {wanted[key]:g}, allowed {limit:g}")
    for key in AT_LEAST:
        if found[key] < wanted[key]:
            lines.append(f"{key}: {found[key]}, expected at least {wanted[key]}")
    if found["slots"].get("copy", 0) > wanted["slots"].get("copy", 0):
        lines.append(f"slots: {found['slots']}, expected {wanted['slots']}")
    lines += [f"a new cut: {cut}" for cut in found["cuts"] if cut not in wanted["cuts"]]
    return lines


def simulated(workload: Workload) -> tuple[VariantResult, dict[str, Any]]:
    """Run a workload in this process; our variant's result and its counts."""
    from scripts.bench.worker import simulate

    variants = simulate(workload)["variants"]
    failures = [f"{name}: {v['status']}: {v['reason']}" for name, v in variants.items() if v["status"] != "ok"]
    if failures:
        raise AssertionError(f"{workload.name}: " + "; ".join(failures))
    ours: VariantResult = decode(VariantResult, variants["ours"])
    assert ours.graphs is not None
    return ours, counts(ours.graphs)


def complaints(results: Iterable[Result]) -> list[str]:
    """What a simulated run shows that is worse than expected, one line each."""
    wanted, lines = expected(installed()), []
    for result in results:
        graphs = result.variants.get("ours", VariantResult()).graphs
        if graphs is not None and result.workload in wanted:
            lines += [f"{result.workload}: {line}" for line in worse(counts(graphs), wanted[result.workload])]
    return lines


def refresh(names: list[str], source: Path | None) -> int:
    """Write what workloads do now: from the result files of a simulated run, or by running them.

    Without names, those that have an expectation are run.
    """
    known = expected(installed())
    results = load(source) if source else simulate_all(names or list(known) or list(TESTED))
    bad = 0
    for result in results:
        ours = result.variants.get("ours")
        if result.status != "ok" or ours is None or ours.graphs is None:
            print(f"{result.workload}: {result.status}: {result.reason}; its expectation stays", file=sys.stderr)
            bad += result.status != "skipped"
            continue
        now = counts(ours.graphs)
        if None in now.values():
            print(f"{result.workload}: {worse(now, now)[0]}; its expectation stays", file=sys.stderr)
            bad += 1
            continue
        # A count that is new has nothing to be worse than.
        for line in worse(now, {**now, **known.get(result.workload, {})}):
            print(f"{result.workload} is worse than before: {line}")
        known[result.workload] = now
        write_json(path(installed()), dict(sorted(known.items())))
    return 1 if bad else 0


def simulate_all(names: list[str]) -> list[Result]:
    """Run workloads on the simulated driver, each in a process of its own."""
    from scripts.bench.run import Options, Run

    scratch = facts.ROOT / ".cache" / "bench"
    options = Options(
        device="sim",
        out=scratch / "expect",
        cache=scratch / "cache",
        variants=("eager", "inductor", "ours"),
        limit=900,
        again=True,
    )
    return Run(options, lambda workload, state, _: print(workload.name, state)).all(choose(names))
