"""The data: one JSON file per workload, every number of the page. docs/benchmarks/SCHEMA.md explains each field."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.stats import Spread

SCHEMA = 1


@dataclass
class Timing:
    """Microseconds per iteration. `rounds_*` are the medians of the interleaved rounds, in order."""

    latency_us: Spread
    host_us: Spread
    device_us: Spread | None
    throughput_us: Spread
    rounds_latency_us: list[float]
    rounds_throughput_us: list[float]
    kind: str = "measured"


@dataclass
class Startup:
    """Seconds from the first call: compilation, and until calls are steady."""

    first_call_s: float
    to_steady_s: float
    cache: str


@dataclass
class MemoryParts:
    """Bytes by what they are for: reserved by graphs' pools; saved for the backward; gradients. Some lie in pools."""

    pools: int
    activations: int
    activations_in_pools: int
    gradients: int
    gradients_in_pools: int


@dataclass
class Memory:
    """Bytes over steady iterations, one set of inputs at a time; `parts` of one more of them, None in older data."""

    steady_allocated: int
    steady_reserved: int
    peak_allocated: int
    peak_reserved: int
    peak_reserved_with_startup: int
    parts: MemoryParts | None = None


@dataclass
class Activity:
    """A kernel or copy by its name: how often, and for how long altogether, per iteration."""

    name: str
    count: float
    us: float


@dataclass
class Profile:
    """Per iteration, from the profiler: kernels, graph launches, busy time, bytes copied by kind.

    `kernels_compiled` are those launched in calls of compiled functions, in graphs or not; `copies` how often something
    was copied on the device, also by kernels in graphs, of which nobody tells the bytes. Both are None in older data.
    """

    iterations: int
    kernels: float
    kernels_in_graphs: float
    graph_launches: float
    busy_us: float
    copied_bytes: dict[str, float]
    heaviest: list[Activity] = field(default_factory=list)
    kernels_compiled: float | None = None
    copies: float | None = None


@dataclass
class Accuracy:
    """Relative errors (root mean square). `survives`: an output was still intact two iterations later."""

    against_eager: float
    against_plain: float | None
    tolerance: float
    survives: bool | None


@dataclass
class Graphs:
    """What the package says about itself: recordings, cuts with reasons, slots per engine, counts per iteration."""

    functions: int = 0
    replayed: int = 0
    recordings: int = 0
    kernels_inside: int = 0
    copies_inside: int | None = None
    slots: dict[str, int] = field(default_factory=dict)
    bindings: int = 0
    bytes_borrowed: int = 0
    updates: float = 0.0
    staged: float = 0.0
    python_calls: int | None = None
    twins: int | None = None
    kernels_in_graphs: int | None = None
    kernels_outside: int | None = None
    cuts: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)


@dataclass
class Estimate:
    """One way to answer a function's calls, in microseconds: what was measured, and what the cost model had expected.

    `expected_added_us` is what it adds to the device's work.
    """

    name: str
    rounds: int = 0
    host_us: float | None = None
    device_us: float | None = None
    cost_us: float | None = None
    expected_host_us: float | None = None
    expected_added_us: float | None = None


@dataclass
class Decision:
    """What the package decided about a function's calls of one size class, and from what."""

    function: str
    sizes: str
    chosen: str
    origin: str
    reason: str
    plain_host_at_most_us: float | None = None
    variants: list[Estimate] = field(default_factory=list)


@dataclass
class VariantResult:
    """One variant of a workload. `status`: ok, failed, wrong, or not available, with the reason."""

    status: str = "ok"
    reason: str | None = None
    timing: Timing | None = None
    startup: Startup | None = None
    memory: Memory | None = None
    profile: Profile | None = None
    accuracy: Accuracy | None = None
    graphs: Graphs | None = None
    decisions: list[Decision] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)


@dataclass
class Result:
    """One workload, measured in one run. `status`: ok, failed, wrong, timeout, or skipped, with the reason."""

    workload: str
    facts: dict[str, Any]
    environment: dict[str, Any]
    commit: dict[str, Any]
    configuration: dict[str, Any]
    status: str = "ok"
    reason: str | None = None
    finished: str = ""
    seconds: float = 0.0
    variants: dict[str, VariantResult] = field(default_factory=dict)
    schema: int = SCHEMA

    def variant(self, name: str) -> VariantResult:
        """A variant's result, made on first use."""
        return self.variants.setdefault(name, VariantResult())

    def timing(self, name: str) -> Timing | None:
        found = self.variants.get(name)
        return found.timing if found is not None else None


def encode(value: Any) -> Any:
    return dataclasses.asdict(value)


def decode(kind: Any, data: Any) -> Any:
    """Data as `kind`. A missing, unknown or wrongly typed field is an error that names it."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(kind)
        if data is None and type(None) in options:
            return None
        return decode(next(option for option in options if option is not type(None)), data)
    if origin is list:
        return [decode(typing.get_args(kind)[0], item) for item in data]
    if origin is dict:
        return {key: decode(typing.get_args(kind)[1], item) for key, item in data.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, data)
    if kind is Any:
        return data
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind):
        raise ValueError(f"expected {kind.__name__}, found {data!r}")
    return data


def _decode_fields(kind: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{kind.__name__} is {data!r}, not an object")
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}
    if unknown := data.keys() - known.keys():
        raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    values = {}
    for name, item in data.items():
        try:
            values[name] = decode(hints[name], item)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{kind.__name__}.{name}: {error}") from error
    required = {
        n for n, f in known.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if missing := required - values.keys():
        raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
    return kind(**values)


def from_json(data: Any) -> Result:
    """A result; raises `ValueError` for another schema or a wrong field."""
    if isinstance(data, dict) and data.get("schema") != SCHEMA:
        raise ValueError(f"schema {data.get('schema')!r}; this version reads {SCHEMA}")
    return decode(Result, data)


def write_json(path: Path, data: Any) -> None:
    """Write at once or not at all, so that a killed run leaves no half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        json.dump(data, file, indent=1)
        file.write("\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def save(folder: Path, result: Result) -> Path:
    path = folder / f"{result.workload}.json"
    write_json(path, encode(result))
    return path


def load(source: Path) -> list[Result]:
    """Every result in a folder of files, or in one collected file."""
    if not source.exists():
        raise SystemExit(f"no results at {source}")
    paths = sorted(source.glob("*.json")) if source.is_dir() else [source]
    results = []
    for path in paths:
        data = json.loads(path.read_text())
        for one in data["results"] if isinstance(data, dict) and "results" in data else [data]:
            try:
                results.append(from_json(one))
            except ValueError as error:
                raise SystemExit(f"{path}: {error}") from error
    return results


def collect(results: Iterable[Result], path: Path) -> None:
    """All results as one file, the form in which they are committed."""
    write_json(path, {"results": [encode(result) for result in sorted(results, key=lambda r: r.workload)]})


def commit_name(result: Result) -> str:
    """What results are grouped by: the commit, or the hash of the sources where they differ from it."""
    commit, sources = result.commit.get("id"), str(result.commit.get("sources", ""))[:12]
    if commit and not result.commit.get("changed"):
        return str(commit)[:12]
    return f"{str(commit)[:12]}+{sources}" if commit else f"sources {sources}"
