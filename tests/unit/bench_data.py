"""Synthetic benchmark results, with round numbers that a reader can follow through page and comparison."""

from __future__ import annotations

from typing import Any

from scripts.bench.results import (
    Accuracy,
    Decision,
    Estimate,
    Graphs,
    Memory,
    Profile,
    Result,
    Startup,
    Timing,
    VariantResult,
)
from scripts.bench.stats import Spread

# Ten rounds of a machine that wobbles by up to 1 %.
WOBBLE = [1.0, 1.002, 0.998, 1.01, 0.995, 1.0, 1.004, 0.99, 1.001, 0.999]
MIB = 1 << 20
OTHER_NAME = "f" * 12
OTHER = {"id": "f" * 40, "sources": "beef", "changed": False}  # a commit that results are not of by default


def timing(microseconds: float) -> Timing:
    rounds = [microseconds * factor for factor in WOBBLE]
    latency = [2 * value for value in rounds]
    spread = Spread.of(rounds)
    return Timing(Spread.of(latency), spread, spread, spread, latency, rounds)


def variant(
    microseconds: float, copied: float = 0.0, reserved: int = 100 * MIB, in_graphs: float = 0.0
) -> VariantResult:
    return VariantResult(
        timing=timing(microseconds),
        startup=Startup(10.0, 12.0, "cold"),
        memory=Memory(reserved // 2, reserved, reserved // 2, reserved, 2 * reserved),
        profile=Profile(
            3, 20.0, in_graphs, 1.0 if in_graphs else 0.0, microseconds / 2, {"device_to_device": copied}, copies=0.0
        ),
        accuracy=Accuracy(1e-3, 0.0, 5e-2, True),
    )


def result(name: str, plain: float, stock: float, ours: float, floor: float, **changes: Any) -> Result:
    """A workload whose variants take these microseconds."""
    facts = {
        "title": f"model of {name}", "suite": "TorchBench", "mode": "inference", "batch": 1, "precision": "bf16",
        "structure": "synthetic", "source": "ours", "paper": True,
    }  # fmt: skip
    environment = {
        "device": "cuda", "gpu": "Some GPU", "driver": "1.2.3", "cpu": "Some CPU", "cores": 8, "torch": "2.11.0",
        "triton": "3.6.0", "python": "3.12.0", "cuda": "13.0",
    }  # fmt: skip
    found = Result(
        name, facts, environment, {"id": "0123456789abcdef", "sources": "feed", "changed": False},
        {"size": "full", "throughput": "steady", "values": "alike", "knobs": {}},
        finished="2026-01-01T00:00:00+00:00", seconds=1.0,
    )  # fmt: skip
    found.variants = {
        "eager": variant(2 * plain),
        "inductor": variant(plain),
        "stock": variant(stock, copied=4e6, reserved=120 * MIB, in_graphs=18.0),
        "ours": variant(ours, reserved=105 * MIB, in_graphs=20.0),
        "floor": VariantResult(timing=timing(floor)),
        "ours-no-transform": VariantResult(
            "not available", "not available: this build has no 'transform' to switch off"
        ),
    }
    found.variants["ours"].graphs = Graphs(functions=1, replayed=1, recordings=1, kernels_inside=20, slots={"patch": 3})
    # Expected on the host: half as much again as was measured of the graph, four fifths of it plainly.
    found.variants["ours"].decisions = [
        Decision(
            "inference 0/0", "", "graph", "measured", "the graph is cheaper", 1200.0,
            [
                Estimate("graph", 5, 20.0, ours, ours, 30.0, 1.5),
                Estimate("plain", 5, 400.0, plain, 400.0, 320.0, 0.0),
            ],
        )
    ]  # fmt: skip
    for key, value in changes.items():
        setattr(found, key, value)
    return found


def compiled_from_nothing(name: str, ours: float, **changes: Any) -> Result:
    """A row of a run that times nothing."""
    found = result(name, 100, 80, 50, 45, finished="2026-03-01T00:00:00+00:00", **changes)
    found.configuration = {**found.configuration, "throughput": None, "cache": "cold"}
    del found.variants["ours-no-transform"]
    for one in found.variants.values():
        one.timing = None
    found.variants["ours"].startup = Startup(ours - 3.0, ours, "cold")
    return found
