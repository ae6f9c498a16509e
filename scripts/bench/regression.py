"""Expectations for simulated workloads: counts that need no clock, so that any machine sees a regression.

`tests/regression/expected/torch-X.Y.json` holds them by variant and workload, one file per torch minor version because
Inductor decides how many kernels there are. Every supported version has the workloads of `make test`, one of them has
all. `python -m scripts.bench expect` refreshes the file of the torch that runs it.
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
from scripts.bench.variants import OURS, TABLES, VARIANTS

EXPECTED = facts.ROOT / "tests" / "regression" / "expected"
# What is also held to counts of its own with a table for whatever can have one: by itself the package makes none here.
TABLED = ("EOS", "MLP8", "DLRM", "DECODE-S")
# What `make test` runs: many inputs with one written in place, a training step, and an inference each of one kernel,
# of many, of library calls with views, of a state that is kept.
TESTED = (*TABLED, "TKE", "RL-PPO")
EXACT_AT_MOST = ("functions", "recordings", "bindings", "copies_inside", "kernels_outside")
AT_LEAST = ("replayed", "kernels_inside", "kernels_in_graphs", "twins")
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


def expected(minor: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Expectations by variant and workload; none where this minor version of torch has no file."""
    known = json.loads(path(minor).read_text()) if path(minor).exists() else {}
    return {OURS.name: {}, TABLES.name: {}} | known


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
    # Which engine is better, nobody can tell from here: any change is one that somebody should have meant.
    if found["slots"] != wanted["slots"]:
        lines.append(f"slots: {found['slots']}, expected {wanted['slots']}")
    lines += [f"a new cut: {cut}" for cut in found["cuts"] if cut not in wanted["cuts"]]
    return lines


def simulated(workload: Workload) -> dict[str, dict[str, Any]]:
    """Run a workload in this process; the counts of each of our variants."""
    from scripts.bench.worker import simulate

    variants = simulate(workload)["variants"]
    failures = [f"{name}: {v['status']}: {v['reason']}" for name, v in variants.items() if v["status"] != "ok"]
    if failures:
        raise AssertionError(f"{workload.name}: " + "; ".join(failures))
    return counted({name: decode(VariantResult, variant) for name, variant in variants.items()})


def counted(variants: dict[str, VariantResult]) -> dict[str, dict[str, Any]]:
    """The counts of each variant that is held to some."""
    return {
        name: counts(variants[name].graphs)
        for name in (OURS.name, TABLES.name)
        if name in variants and variants[name].graphs is not None
    }


def forced(result: Result) -> str | None:
    """The engine that the environment asked for, instead of the one that expectations are of."""
    engine = result.configuration.get("knobs", {}).get("PYGRAPH_ENGINE", "auto")
    return None if engine == "auto" else f"with PYGRAPH_ENGINE={engine}, which no expectation is of"


def complaints(results: Iterable[Result]) -> list[str]:
    """What a simulated run shows that is worse than expected, one line each."""
    wanted, lines = expected(installed()), []
    for result in results:
        if forced(result):
            continue
        for variant, found in counted(result.variants).items():
            if result.workload in wanted[variant]:
                name = titled(result.workload, variant)
                lines += [f"{name}: {line}" for line in worse(found, wanted[variant][result.workload])]
    return lines


def titled(workload: str, variant: str) -> str:
    return workload if variant == OURS.name else f"{workload}, {VARIANTS[variant].label}"


def unusable(result: Result, now: dict[str, dict[str, Any]]) -> str | None:
    """Why no expectation can be made of a result and its counts; None if one can."""
    if result.status != "ok":
        return f"{result.status}: {result.reason}"
    if OURS.name not in now:
        return "nothing was counted"
    uncounted = [worse(found, found)[0] for found in now.values() if None in found.values()]
    return forced(result) or next(iter(uncounted), None)


def refresh(names: list[str], source: Path | None) -> int:
    """Write what workloads do now: from the result files of a simulated run, or by running them.

    Without names, those that have an expectation are run, or should have one.
    """
    known = expected(installed())
    results = load(source) if source else simulate_all(names or sorted({*TESTED, *known[OURS.name]}))
    bad = 0
    for result in results:
        now = counted(result.variants)
        if reason := unusable(result, now):
            print(f"{result.workload}: {reason}; its expectation stays", file=sys.stderr)
            bad += result.status != "skipped"
            continue
        for variant, found in now.items():
            # A count that is new has nothing to be worse than.
            for line in worse(found, {**found, **known[variant].get(result.workload, {})}):
                print(f"{titled(result.workload, variant)} is worse than before: {line}")
            known[variant][result.workload] = found
        write_json(path(installed()), {variant: dict(sorted(held.items())) for variant, held in known.items()})
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
