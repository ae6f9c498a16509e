"""What variants take besides time, as tables: bytes copied, kernels in graphs, memory and what it is for, decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from scripts.bench import goals
from scripts.bench.compare import times
from scripts.bench.markdown import human, human_bytes, table
from scripts.bench.results import Result, VariantResult
from scripts.bench.variants import INDUCTOR, OURS, STOCK, VARIANTS


def share(variant: VariantResult) -> str:
    """How many of all kernels are launched from graphs, as the profiler sees it."""
    profile = variant.profile
    return f"{100 * profile.kernels_in_graphs / profile.kernels:.2f} %" if profile and profile.kernels else "-"


def compiled_share(variant: VariantResult) -> str:
    """How many are launched in calls of compiled functions."""
    profile = variant.profile
    if profile is None or not profile.kernels or profile.kernels_compiled is None:
        return "-"
    return f"{100 * profile.kernels_compiled / profile.kernels:.2f} %"


def outside_of_graphs(main: Sequence[Result]) -> str:
    """How many kernels of compiled code are launched outside of graphs, and where."""
    found: dict[int, list[str]] = {}
    for result in main:
        profile = result.variants.get(OURS.name, VariantResult()).profile
        if profile is not None and profile.kernels_compiled is not None:
            found.setdefault(round(profile.kernels_compiled - profile.kernels_in_graphs), []).append(result.workload)
    if not found:
        return "How many kernels of compiled code are outside of graphs was not measured in these rows."
    known = sum(map(len, found.values()))
    none = [f"none in {len(found.pop(0))} of {known} workloads"] if 0 in found else []
    some = [f"{count:,} in {', '.join(names)}" for count, names in sorted(found.items())]
    return f"Kernels of compiled code outside of graphs: {'; '.join([*none, *some])}."


def copied(result: Result, name: str) -> str:
    """Bytes that a variant copies on the device beyond the plain call, and copies of which nobody tells the bytes."""
    inside = goals.extra_copies(result, name) or 0.0
    outside = goals.extra_bytes(result, name)
    return human(outside) + (f" and {inside:,.0f} in graphs" if inside > 0 and not outside else "")


def decided(variant: VariantResult) -> str:
    """How many functions, for their sizes, got a graph and how many are called plainly."""
    found = Counter(decision.chosen or "undecided" for decision in variant.decisions)
    return " / ".join(f"{count} {chosen}" for chosen, count in sorted(found.items())) or "-"


def resources_table(main: Sequence[Result]) -> str:
    heads = ["workload", "copied, stock", "copied, ours", "host to device, stock", "host to device, ours"]
    knows = any(v.profile and v.profile.kernels_compiled is not None for r in main for v in r.variants.values())
    heads += ["kernels", *(["of compiled code"] if knows else []), "in graphs, stock", "in graphs, ours"]
    heads += ["steady memory, stock", "steady memory, ours"]
    heads += ["peak, stock", "peak, ours", "decided", "recordings", "cuts"]
    rows = []
    for result in main:
        stock, ours = (result.variants.get(n, VariantResult()) for n in (STOCK.name, OURS.name))
        graphs, profile = ours.graphs, ours.profile
        memory = [times(goals.memory_ratio(result, n, f)) for f in goals.MEMORY for n in (STOCK.name, OURS.name)]
        host = [human(goals.extra_bytes(result, n, "host_to_device")) for n in (STOCK.name, OURS.name)]
        counted = [graphs.recordings, len(graphs.cuts)] if graphs else ["-", "-"]
        kernels = f"{profile.kernels:,.0f}" if profile else "-"
        shares = [*([compiled_share(ours)] if knows else []), share(stock), share(ours)]
        rows.append(
            (
                result.workload,
                copied(result, STOCK.name),
                copied(result, OURS.name),
                *host,
                kernels,
                *shares,
                *memory,
                decided(ours),
                *counted,
            )
        )
    return table(heads, rows)


def unmeasured(main: Sequence[Result]) -> str:
    """Which variants lack memory or start-up, which come from a process of their own."""
    names = (INDUCTOR.name, STOCK.name, OURS.name)
    lacking: dict[str, dict[str, list[str]]] = {}
    for result in main:
        for name in names:
            found = result.variants.get(name, VariantResult())
            what = [part for part, value in (("memory", found.memory), ("start-up", found.startup)) if value is None]
            if what:
                why = ", which failed" if found.status == "failed" else ""
                lacking.setdefault(" and ".join(what), {}).setdefault(result.workload, []).append(
                    f"{VARIANTS[name].label}{why}"
                )
    if not lacking:
        return "Every variant has both."
    every = [VARIANTS[name].label for name in names]
    listed = []
    for what, workloads in sorted(lacking.items()):
        whole = [workload for workload, labels in workloads.items() if labels == every]
        some = [f"{workload} ({', '.join(labels)})" for workload, labels in workloads.items() if labels != every]
        listed.append(f"{what}: {', '.join([*whole, *some])}")
    explanation = "Processes of their own that did not end within the run's time budget, or failed, told nothing."
    return "\n".join([f"Not measured: {'; '.join(listed)}.", explanation])


def parts_table(main: Sequence[Result]) -> str:
    """What reserved memory is for, of workloads whose three variants all told; the last row adds up each column."""
    names = (INDUCTOR.name, STOCK.name, OURS.name)
    rows: list[list[Any]] = []
    total: list[list[int]] = []
    for result in main:
        memories = [found.memory for name in names if (found := result.variants.get(name)) and found.memory]
        parts = [memory.parts for memory in memories if memory.parts]
        if len(parts) < len(names):
            continue
        reserved = [memory.steady_reserved for memory in memories]
        columns = [(size, 0) for size in reserved] + [(part.pools, 0) for part in parts[1:]]
        columns += [(part.activations, part.activations_in_pools) for part in parts]
        columns += [(part.gradients, part.gradients_in_pools) for part in parts]
        total.append([value for column in columns for value in column])
        rows.append([result.workload, *(partly(*column) for column in columns)])
    if not rows:
        return "Not measured in these rows."
    added = [sum(column) for column in zip(*total, strict=True)]
    rows.append(["**all**", *(partly(*added[n : n + 2]) for n in range(0, len(added), 2))])
    heads = ["workload", *(f"reserved, {VARIANTS[name].label}" for name in names)]
    heads += [f"pools, {VARIANTS[name].label}" for name in names[1:]]
    heads += [f"{what}, {VARIANTS[name].label}" for what in ("activations", "gradients") for name in names]
    return table(heads, rows)


def partly(size: int, in_pools: int) -> str:
    return f"{human_bytes(size)} ({human_bytes(in_pools)})" if in_pools else human_bytes(size)
