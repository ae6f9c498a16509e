"""What a run shows in the terminal: progress while it runs, one table when it is done."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scripts.bench.registry import Workload
from scripts.bench.results import Result, VariantResult
from scripts.bench.stats import TIMES, ratio
from scripts.bench.variants import FLOOR, INDUCTOR, OURS, STOCK, TABLES, VARIANTS

COLOURS = {"ok": "green", "skipped": "yellow", "measured before": "green", "timing": "cyan"}
BAD = {"failed", "wrong", "timeout"}


class Progress:
    """One line whenever a workload gets somewhere."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total, self.done = console, total, 0

    def __call__(self, workload: Workload, state: str, result: Result | None) -> None:
        self.done += result is not None
        line = Text(f"[{self.done}/{self.total}] {workload.name:9} ")
        line.append(state, style="red" if state in BAD else COLOURS.get(state, ""))
        if result is not None:
            line.append(f"  {summary(result)}")
        self.console.print(line, highlight=False, soft_wrap=True)


def summary(result: Result) -> str:
    """One workload in a few words."""
    if result.reason:
        return result.reason
    speeds = [
        f"{VARIANTS[name].label} {timing.throughput_us.median:,.0f} us"
        for name in VARIANTS
        if (timing := result.timing(name)) is not None
    ]
    graphs = result.variants.get(OURS.name, VariantResult()).graphs
    if not speeds and graphs is not None:
        return f"{graphs.replayed} of {graphs.functions} graphs replayed, {graphs.kernels_inside} kernels inside"
    return ", ".join(speeds)


def speed_up(result: Result, name: str, over: str) -> str:
    """How much faster `name` is than `over`, with its interval."""
    mine, other = result.timing(name), result.timing(over)
    if mine is None or other is None:
        return "-"
    if "kernels" in (mine.kind, other.kind):
        return f"{other.throughput_us.median / mine.throughput_us.median:.2f}{TIMES}"
    return str(ratio(other.rounds_throughput_us, mine.rounds_throughput_us))


def timing_table(results: Sequence[Result]) -> Table:
    """Time per iteration of every variant, and the ratios that matter."""
    table = Table(title="Microseconds per iteration, calls in flight", title_justify="left")
    table.add_column("workload")
    names = [name for name in VARIANTS if any(result.timing(name) for result in results)]
    for name in names:
        table.add_column(VARIANTS[name].label, justify="right")
    for heading in ("stock / none", "ours / none", "ours / stock", "to the floor"):
        table.add_column(heading, justify="right")
    table.add_column("status")
    for result in results:
        times = [f"{t.throughput_us.median:,.0f}" if (t := result.timing(n)) else "-" for n in names]
        pairs = (
            (STOCK.name, INDUCTOR.name),
            (OURS.name, INDUCTOR.name),
            (OURS.name, STOCK.name),
            (FLOOR.name, OURS.name),
        )
        ratios = [speed_up(result, *pair) for pair in pairs]
        table.add_row(result.workload, *times, *ratios, status(result))
    return table


def simulated_table(results: Sequence[Result]) -> Table:
    """The counts of the simulated run."""
    table = Table(title="On the simulated driver, tiny sizes, per iteration", title_justify="left")
    table.add_column("workload")
    for heading in ("graphs", "replayed", "kernels", "outside", "copies", "slots", "updates", "staged"):
        table.add_column(heading, justify="right")
    for heading in ("Python calls", "error"):
        table.add_column(heading, justify="right")
    table.add_column("status")
    for result in results:
        ours = result.variants.get(OURS.name, VariantResult())
        table.add_row(result.workload, *simulated_cells(ours), status(result))
        if (tables := result.variants.get(TABLES.name)) is not None:
            table.add_row(f"{result.workload}, tables", *simulated_cells(tables), tables.status)
    return table


def simulated_cells(ours: VariantResult) -> list[str]:
    """What a simulated run counted with one variant."""
    graphs, accuracy = ours.graphs, ours.accuracy
    cells = ["-"] * 9
    if graphs is not None:
        slots = " ".join(f"{engine} {count}" for engine, count in graphs.slots.items())
        kernels = (graphs.kernels_in_graphs, graphs.kernels_outside)
        counts = (graphs.functions, graphs.replayed, *kernels, graphs.copies_inside, slots or 0)
        cells = [*map(str, counts), f"{graphs.updates:g}", f"{graphs.staged:g}", str(graphs.python_calls)]
    return [*cells, "-" if accuracy is None else f"{accuracy.against_eager:.0e}"]


def status(result: Result) -> Text:
    return Text(result.status, style="red" if result.status in BAD else COLOURS.get(result.status, ""))
