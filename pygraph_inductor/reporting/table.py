"""The facts as text for people: rich tables, rendered to a string or to a terminal."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pygraph_inductor.reporting.facts import (
        DecisionFacts,
        ExpectedFacts,
        FunctionFacts,
        GraphFacts,
        RecordingFacts,
        Report,
    )

WIDTH = 140  # at least, so that no cell is squeezed beyond reading; a narrower terminal wraps lines


def report_text(report: Report) -> str:
    """The whole report as text."""
    parts: list[RenderableType] = [functions_table(report.functions)]
    measured = [one for one in report.functions if any(decision.variants for decision in one.decisions)]
    if measured:
        parts.append(decisions_table(measured))
    parts += [line for graph in report.graphs for line in graph_lines(graph)]
    parts += [line for function in report.functions for line in (*engine_lines(function), *balance_lines(function))]
    parts += [f"{name}: {value}" for name, value in report.installed.items()]
    parts += [f"declined: {line}" for line in report.declined]
    return rendered(*parts)


def engine_lines(function: FunctionFacts) -> list[str]:
    """How the latest recording is told where its slots are, and why so; which kernels could not be told by a table."""
    latest = function.recordings[-1] if function.recordings else None
    if latest is None or not latest.why:
        return []
    lines = [f"{function.name}: {latest.why}"]
    if latest.twins:
        lines.append(f"  {latest.twins} of {latest.kernels} kernels find them through a table")
        lines += [f"  {kernel} does not: {reason}" for kernel, reason in sorted(latest.without_twins.items())]
    return lines


def balance_lines(function: FunctionFacts) -> list[str]:
    """What recordings have cost a function and saved it, where that keeps further shapes plain."""
    if function.calls_until_recorded <= 2:
        return []
    spent, saved = f"{function.spent_ms:.0f} ms", f"{function.saved_ms:.0f} ms"
    return [
        f"{function.name}: recording has taken {spent}, replays have saved {saved}; "
        f"further shapes are recorded once they were called {function.calls_until_recorded} times"
    ]


def graph_lines(graph: GraphFacts) -> list[str]:
    """How a graph was kept together and where it is cut; nothing about a graph that is simply whole."""
    if not graph.rewrites and not graph.cuts:
        return []
    inside = f", {graph.kernels[0]} of {graph.kernels[1]} kernels in graphs" if graph.kernels else ""
    place = f" ({graph.source})" if graph.source else ""
    lines = [f"{graph.name}{place}: {graph.pieces} piece{'' if graph.pieces == 1 else 's'}{inside}"]
    return lines + [f"  rewrite: {line}" for line in graph.rewrites] + [f"  cut: {line}" for line in graph.cuts]


def functions_table(functions: Iterable[FunctionFacts]) -> Table:
    """One row per function: what it did, with what, and how it ended."""
    table = Table(title="pygraph_inductor", title_justify="left")
    for heading in ("graph", "kind", "source"):
        table.add_column(heading, overflow="fold")
    for heading in ("calls", "replays", "recordings", "kernels", "slots"):
        table.add_column(heading, justify="right")
    table.add_column("engine", no_wrap=True)
    table.add_column("bytes borrowed", justify="right")
    table.add_column("verdict", overflow="fold")
    for function in functions:
        add_text_row(
            table,
            function.name,
            function.kind,
            function.source or "-",
            str(function.calls),
            str(function.replays),
            str(len(function.recordings)),
            *recording_cells(function.recordings),
            function.verdict,
        )
    return table


def decisions_table(functions: Iterable[FunctionFacts]) -> Table:
    """One row per variant that was timed, grouped by function and size class; medians, and the choice."""
    table = Table(title="graph or plain call", title_justify="left")
    for heading in ("graph", "sizes", "variant"):
        table.add_column(heading, overflow="fold")
    for heading in ("rounds", "host µs", "expected", "device µs", "cost µs", "spread µs"):
        table.add_column(heading, justify="right")
    for heading in ("chosen", "why"):
        table.add_column(heading, overflow="fold")
    for function in functions:
        for decision in function.decisions:
            chosen = decision.chosen or "not yet"
            why = f"{decision.origin}: {decision.reason}" if decision.origin else decision.reason
            head = (function.name, decision.sizes or "-")
            rows = variant_rows(decision) or [("-",) * _FIGURES]
            for number, cells in enumerate(rows):
                add_text_row(
                    table, *(head if number == 0 else ("", "")), *cells, *([chosen, why] if number == 0 else [])
                )
        if not function.decisions:
            add_text_row(table, function.name, "-", *["-"] * _FIGURES, "-", function.verdict)
    return table


def digest_lines(functions: Iterable[FunctionFacts]) -> list[str]:
    """By which digest each choice that is kept can be pinned or forgotten; on lines of their own, to be copied."""
    kept = [(one, function) for function in functions for one in function.decisions if one.digest and one.chosen]
    lines = [
        f"  {decision.digest}  {function.name}: {decision.chosen} for {decision.sizes}" for decision, function in kept
    ]
    return ["kept choices, by digest (pygraph_inductor.decisions):", *lines] if lines else []


_FIGURES = 7  # cells of a variant


def variant_rows(decision: DecisionFacts) -> list[tuple[str, ...]]:
    """A row for each variant that was timed, or of which the cost model expected something: what was, and that."""
    measured = {one.name: one for one in decision.variants}
    expected = {one.name: one for one in decision.expected}
    rows = []
    for name in dict.fromkeys([*measured, *expected]):
        one, beside = measured.get(name), expected.get(name)
        figures = (one.host_us, one.device_us, one.cost_us, one.spread_us) if one else (None,) * 4
        host, *others = ("-" if figure is None else f"{figure:.1f}" for figure in figures)
        rows.append((name, str(one.rounds) if one else "-", host, expected_cell(beside), *others))
    return rows


def expected_cell(expected: ExpectedFacts | None) -> str:
    """The host's time by the cost model, and what the variant adds to the device's, where it adds something."""
    if expected is None:
        return "-"
    added = f", device +{expected.added_us:.1f}" if expected.added_us else ""
    return f"{expected.host_us:.1f}{added}"


def add_text_row(table: Table, *cells: str) -> None:
    """Add a row whose cells are shown as they are: rich would read `[…]` in a name as markup."""
    table.add_row(*(Text(cell) for cell in cells))


def recording_cells(recordings: list[RecordingFacts]) -> tuple[str, str, str, str]:
    """Kernels, slots, engines and borrowed bytes of a function's latest recording; dashes if it has none."""
    if not recordings:
        return ("-", "-", "-", "-")
    latest = recordings[-1]
    used = {engine: count for engine, count in latest.slots.items() if count}
    engines = ", ".join(f"{engine} {count}" for engine, count in sorted(used.items())) or "-"
    return (str(latest.kernels), str(sum(used.values())), engines, readable_bytes(latest.bytes_borrowed))


def readable_bytes(count: int) -> str:
    """A byte count with a binary unit: `1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def console() -> Console:
    """A console on standard output; a pipe or a file gets the full width."""
    found = Console()
    return found if found.is_terminal else Console(width=max(WIDTH, found.width))


def rendered(*parts: RenderableType) -> str:
    """The parts as plain text, without colours."""
    width = max(WIDTH, shutil.get_terminal_size().columns)
    out = io.StringIO()
    target = Console(file=out, width=width, force_terminal=False, color_system=None, highlight=False)
    for part in parts:
        target.print(part, markup=False) if isinstance(part, str) else target.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
