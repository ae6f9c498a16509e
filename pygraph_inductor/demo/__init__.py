"""`pygraph demo`: a transformer's inference and training steps from graphs, checked against eager, in one table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch._inductor
from rich.table import Table

import pygraph_inductor
from pygraph_inductor import config
from pygraph_inductor.demo import timing
from pygraph_inductor.demo.model import Shape
from pygraph_inductor.demo.workloads import WORKLOADS, Difference, Workload, check
from pygraph_inductor.reporting import FunctionFacts, table

CALLS = 6  # one plain, one that records, four replays


@dataclass(frozen=True)
class Outcome:
    """What came of one workload."""

    workload: Workload
    difference: Difference
    functions: list[FunctionFacts]
    times: timing.Times | None

    @property
    def good(self) -> bool:
        """Every answer right, every graph replayed."""
        replayed = bool(self.functions) and all(function.replays for function in self.functions)
        return replayed and not self.difference.failures


def main() -> int:
    """Run the demo; 0 if every answer equals eager's and every graph was replayed."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    out = table.console()
    out.print(introduction(device), highlight=False)
    simulation = contextlib.nullcontext() if device.type == "cuda" else config.patch(simulate=True)
    with simulation:
        outcomes = [run(workload, Shape(), device) for workload in WORKLOADS]
    out.print(demo_table(outcomes, timed=device.type == "cuda"))
    good = all(outcome.good for outcome in outcomes)
    out.print(conclusion(outcomes, good), highlight=False)
    return 0 if good else 1


def introduction(device: torch.device) -> str:
    """Where this runs and what is done."""
    if device.type == "cuda":
        where = f"On {torch.cuda.get_device_name(device)} with torch {torch.__version__}."
    else:
        where = (
            f"No CUDA device: this SIMULATES graphs on CPU tensors (torch {torch.__version__}). "
            "Addresses, bindings and numbers are real; times would mean nothing, so there are none."
        )
    shape = Shape()
    return (
        f"{where}\nA transformer of {shape.layers} layers, {CALLS} calls per workload, new tensors on every call, "
        "every output and gradient compared with eager. Compiling takes a minute or so."
    )


def run(workload: Workload, shape: Shape, device: torch.device) -> Outcome:
    """Compile, check and, on a GPU, time one workload."""
    torch.compiler.reset()
    before = len(pygraph_inductor.report().functions)
    model = workload.model(shape, device)
    difference = check(workload, compiled(graphs=True)(model), model, shape, device, CALLS)
    functions = pygraph_inductor.report().functions[before:]
    times = timing.measure(workload, shape, device, compiled) if device.type == "cuda" else None
    return Outcome(workload, difference, functions, times)


def compiled(graphs: bool) -> Callable:
    """`torch.compile` as `mode="reduce-overhead"` or without graphs, with eager's random numbers.

    Inductor draws dropout masks of its own; only with eager's can the two be compared.
    """
    mode = "reduce-overhead" if graphs else "default"
    options = {**torch._inductor.list_mode_options(mode), "fallback_random": True}
    return lambda model: torch.compile(model, options=options)


def demo_table(outcomes: list[Outcome], timed: bool) -> Table:
    """One row per graph; the times belong to a workload's whole step and stand in its first row."""
    result = Table(title="pygraph_inductor demo", title_justify="left")
    result.add_column("graph")
    result.add_column("kernels", justify="right")
    result.add_column("slots", justify="right")
    result.add_column("engine", no_wrap=True)
    result.add_column("bytes stock copies, we do not", justify="right")
    for heading in ("ours, ms a step", "no graphs", "stock graphs") if timed else ():
        result.add_column(heading, justify="right")
    result.add_column("verdict")
    for outcome in outcomes:
        for number, cells in enumerate(graph_rows(outcome)):
            times = time_cells(outcome.times if number == 0 else None) if timed else ()
            table.add_text_row(result, *cells[:-1], *times, cells[-1])
        result.add_section()
    return result


def graph_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """The cells of one workload, without times; one row says so if no graph came of it."""
    name, verdict = outcome.workload.name, outcome.difference.verdict
    if not outcome.functions:
        return [(name, "-", "-", "-", "-", f"not handed to us, {verdict}")]
    return [
        (
            name if function.kind == "inference" else f"{name}: {function.kind}",
            *table.recording_cells(function.recordings),
            f"{replay_verdict(function)}, {verdict}",
        )
        for function in outcome.functions
    ]


def replay_verdict(function: FunctionFacts) -> str:
    """How often the graph was replayed, or why not."""
    return f"replayed {function.replays}x" if function.replays else function.verdict


def time_cells(times: timing.Times | None) -> tuple[str, str, str]:
    """The three times of a row, empty where they stand in the row above."""
    if times is None:
        return ("", "", "")
    return (f"{times.ours:.2f}", f"{times.no_graphs:.2f}", f"{times.stock:.2f}")


def conclusion(outcomes: list[Outcome], good: bool) -> str:
    """What the table comes to, in a sentence."""
    latest = [function.recordings[-1] for outcome in outcomes for function in outcome.functions if function.recordings]
    kernels = sum(recording.kernels for recording in latest)
    if good:
        return f"{len(latest)} graphs of {kernels} kernels together: all replayed, all equal to eager."
    failures = [
        f"  {outcome.workload.name}: {line}" for outcome in outcomes for line in outcome.difference.failures[:5]
    ]
    declined = [f"  {line}" for line in pygraph_inductor.report().declined]
    return "\n".join(["FAILED: not every graph was replayed with eager's answers.", *failures, *declined])
