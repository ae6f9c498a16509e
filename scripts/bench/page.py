"""The page docs/benchmarks/README.md, from the data and the template; nothing on it is typed by hand."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.bench import goals, in_flight, model, paper, resources, single_calls, startup
from scripts.bench.again import again_table, judging, measured_again
from scripts.bench.choosing import ablated, chosen, compiled_from_nothing, marked
from scripts.bench.compare import times
from scripts.bench.markdown import table
from scripts.bench.measure import ALIKE, STEADY
from scripts.bench.reasons import brief
from scripts.bench.results import Result, VariantResult, commit_name, load
from scripts.bench.stats import Ratio, geomean, ratio
from scripts.bench.variants import ABLATIONS, EAGER, FLOOR, INDUCTOR, OURS, STOCK, TECHNIQUES, VARIANTS

TEMPLATE = "page.template.md"
NOTHING = "Nothing was measured yet."


def publish(data: Path, folder: Path, pool: bool, plots: bool) -> list[Path]:
    """Write the page and its plots; the files written."""
    results = load(data) if data.is_dir() and any(data.glob("*.json")) else []
    drawn: dict[str, Path] | None = None
    if plots:
        from scripts.bench.plots import draw_all

        try:
            import matplotlib  # noqa: F401
        except ImportError:
            explanation = "plots need matplotlib (make bench installs it); --no-plots makes the page without them"
            raise SystemExit(explanation) from None
        main, others = chosen(results, pool)
        drawn = draw_all(main, ablated(results, [*main, *others]), folder / "plots")
    paths = None if drawn is None else {name: path.relative_to(folder) for name, path in drawn.items()}
    text = page((folder / TEMPLATE).read_text(), results, pool, paths)
    target = folder / "README.md"
    target.write_text(text)
    return [target, *(drawn or {}).values()]


def page(template: str, results: Sequence[Result], pool: bool, plots: dict[str, Path] | None) -> str:
    """The template with every `{{name}}` replaced. `plots`: those that there is data for; None if none were drawn."""
    main, others = chosen(results, pool)
    again = measured_again(results, main)
    off, cold = ablated(results, [*main, *others]), compiled_from_nothing(results, main)
    shown, switched, published = marked([*main, *others, *again], main), marked(off, main), paper.published()
    parts: dict[str, Callable[[], str]] = {
        "origin": lambda: origin(main, others, again, [*cold, *off]),
        "goals": lambda: goals_table(main, cold, again),
        "values": lambda: values_of_rounds(shown),
        "speed": lambda: speed_table(main, [*others, *again]),
        "quartiles": lambda: in_flight.quartiles_table(shown),
        "single_calls": lambda: single_calls.calls_table(shown),
        "paper_title": lambda: str(published["title"]),
        "paper_overall": lambda: paper.overall_table(paper.Measured.of(main, off, cold), published),
        "paper": lambda: paper.workloads_table(main, off, published),
        "differences": lambda: paper.differences(main, published),
        "unrest": lambda: unrest(switched),
        "ablation": lambda: ablation_table(switched, main),
        "outside": lambda: resources.outside_of_graphs(main),
        "resources": lambda: resources.resources_table(main),
        "parts": lambda: resources.parts_table(main),
        "startup": lambda: startup.startup_table(marked(main, main)),
        "cold": lambda: startup.startup_table(marked(cold, main)),
        "unmeasured": lambda: resources.unmeasured(main),
        "far": lambda: far_from_eager(main),
        "model": lambda: model_table(main),
        "accuracy": lambda: accuracy_table(main),
        "failures": lambda: failures(shown),
    }

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name.startswith("plot:"):
            if plots is None:
                return "(no plot: this page was made without plots)"
            path = plots.get(name[5:])
            return f"![{name[5:]}]({path})" if path else "(no plot: there is no data for it)"
        return parts[name]() if main or name == "failures" else NOTHING

    return re.sub(r"\{\{([\w:]+)\}\}", fill, template)


def origin(
    main: Sequence[Result],
    others: Sequence[Result],
    again: Sequence[Result] = (),
    beside_them: Sequence[Result] = (),
) -> str:
    """Machine, versions, commits, and which rows the averages are over. `beside_them` come from runs of their own."""
    where = main[0].environment
    commits = sorted({commit_name(result) for result in main})
    lines = [
        f"{where.get('gpu')}, driver {where.get('driver')}, {where.get('cpu')} ({where.get('cores')} cores); "
        f"torch {where.get('torch')}, triton {where.get('triton')}, Python {where.get('python')}.",
        f"{len(main)} workloads measured at commit {', '.join(commits)}, "
        f"{min(r.finished for r in main)[:10]} to {max(r.finished for r in main)[:10]}.",
    ]
    if len(commits) > 1:
        lines.append("**Averages on this page pool rows of several commits.**")
    oldest = min(r.finished for r in main)
    if others:
        older = "older and " if all(r.finished < oldest for r in others) else ""
        lines.append(f"{rows_marked(others)} {older}in no average.")
    if again:
        lines.append(f"{rows_marked(again)} newer, of workloads measured again, and in no average.")
    elsewhere = sorted({commit_name(result) for result in beside_them} - set(commits))
    if elsewhere:
        lines.append(
            f"Runs with techniques switched off, and from an empty cache, are of {' or '.join(elsewhere)} where "
            "marked: each is compared with itself."
        )
    machines = {(r.environment.get("gpu"), r.environment.get("torch")) for r in [*main, *others, *beside_them]}
    if len(machines) > 1:
        lines.append("**Rows come from several machines or versions: " + "; ".join(map(str, sorted(machines))) + ".**")
    knobs = {json.dumps(r.configuration.get("knobs", {}), sort_keys=True) for r in main} - {"{}"}
    if knobs:
        lines.append("Rows were measured with knobs set: " + "; ".join(sorted(knobs)) + ".")
    if any(r.configuration.get("throughput") != STEADY for r in main):
        lines.append(
            "Time in flight includes what the host took to the first launch of a block of 25 ms, which counts for more "
            "the longer an iteration takes, and for the floor least of all; the benchmark leaves it out since."
        )
    return "\n".join(lines)


def rows_marked(rows: Sequence[Result]) -> str:
    return "1 row marked with its commit is" if len(rows) == 1 else f"{len(rows)} rows marked with their commit are"


def goals_table(main: Sequence[Result], cold: Sequence[Result], again: Sequence[Result]) -> str:
    every = goals.all_goals(main, cold, marked(judging(main, again), main))
    rows = [(g.what, g.goal, g.found, g.stock, g.verdict, g.over) for g in every]
    found = table(("what", "goal", "ours", "stock graphs", "met", "over"), rows, left=1)
    return f"{found}\n\n{again_table(main, again)}" if again else found


def values_of_rounds(named: Mapping[str, Result]) -> str:
    """Whether variants were compared on the same values, on which how long something takes may depend."""
    own = [name for name, row in named.items() if row.configuration.get("values") != ALIKE]
    if len(own) == len(named):
        return "Each variant of a round drew values of its own; the benchmark gives all of them the same ones since."
    if len(own) > len(named) / 2:
        others = [name for name in named if name not in own]
        return (
            "Each variant of a round drew values of its own, except where the benchmark, as it does since, gave all of "
            f"them the same ones: {', '.join(others)}."
        )
    older = f", except in older rows, where each drew its own: {', '.join(own)}" if own else ""
    return f"All variants of a round get the same values{older}."


def speed_table(main: Sequence[Result], others: Sequence[Result]) -> str:
    heads = ["workload", "model", "mode", "batch", "eager", "no graphs", "stock", "ours", "ours over stock"]
    heads += ["stock to the floor", "ours to the floor", "p99 stock", "p99 ours"]
    rows: list[tuple[Any, ...]] = []
    for name, result in marked([*main, *others], main).items():
        absolute = [result.timing(variant) for variant in (EAGER.name, INDUCTOR.name)]
        rows.append(
            (
                name,
                result.facts.get("title"),
                result.facts.get("mode"),
                f"{result.facts.get('batch', 0):,}",
                *(microseconds(t.throughput_us.median if t else None) for t in absolute),
                gain(result, STOCK.name, INDUCTOR.name),
                gain(result, OURS.name, INDUCTOR.name),
                gain(result, OURS.name, STOCK.name),
                times(goals.over(result, STOCK.name, FLOOR.name)),
                times(goals.over(result, OURS.name, FLOOR.name)),
                times(tail(result, STOCK.name)),
                times(tail(result, OURS.name)),
            )
        )
    # Over the same workloads in every column: one that stock graphs fail at, or that is wrong, is in none.
    pairs = ((INDUCTOR, STOCK), (INDUCTOR, OURS), (STOCK, OURS), (STOCK, FLOOR), (OURS, FLOOR))
    found = [[goals.over(r, a.name, b.name) for a, b in pairs] for r in main]
    columns = list(zip(*[[v for v in row if v] for row in found if all(row)], strict=True))
    for label, average in (("geomean", geomean), ("median", statistics.median)) if columns else ():
        cells = [times(average(column)) for column in columns]
        rows.append((f"**{label} of {len(columns[0])}**", "", "", "", "", "", *cells, "", ""))
    return table(heads, rows, left=3)


def gain(result: Result, name: str, over: str) -> str:
    """How many times faster, with its interval; what became of it where there is no time of its own."""
    mine, other = result.timing(name), result.timing(over)
    if mine is None:
        return result.variants.get(name, VariantResult("-")).status
    if other is None:
        return "-"
    found: Ratio = ratio(other.rounds_throughput_us, mine.rounds_throughput_us)
    mark = "" if result.variants[name].status == "ok" else f" ({result.variants[name].status})"
    return f"{found}{mark}"


def tail(result: Result, name: str) -> float | None:
    mine, plain = result.timing(name), result.timing(INDUCTOR.name)
    return mine.latency_us.p99 / plain.latency_us.p99 if mine and plain else None


def microseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} us"


def unrest(ablated: Mapping[str, Result]) -> str:
    """How far rounds of ours lie apart in these runs, for readers of small differences."""
    spreads = [(t.throughput_us, name) for name, result in ablated.items() if (t := result.timing(OURS.name))]
    if not spreads:
        return ""
    found = [((spread.high - spread.low) / spread.median, name) for spread, name in spreads]
    middle, (most, name) = statistics.median(share for share, _ in found), max(found)
    return (
        f"Between the quartiles of ours' rounds are {100 * middle:.1f} % of their median, at the median of these rows, "
        f"and {100 * most:.1f} % in {name}: differences of that size say little."
    )


def ablation_table(ablated: Mapping[str, Result], main: Sequence[Result]) -> str:
    """Our time without a technique over our time with it, by the name that the row shall have."""
    rows = [(name, *(ablation_cell(result, v.name) for v in ABLATIONS)) for name, result in ablated.items()]
    heads = ("workload", *(f"without {v.without}" for v in ABLATIONS))
    left_out = served_by_patches(ablated, main)
    return f"{table(heads, rows)}\n\n{switched_off()}{left_out}" if rows else "Not measured in these rows."


def served_by_patches(ablated: Mapping[str, Result], main: Sequence[Result]) -> str:
    """Where nothing is left of ours that `without indirect` could switch off, and it was not measured for that."""
    slots = {row.workload: ours.graphs.slots for row in main if (ours := row.variants.get(OURS.name)) and ours.graphs}
    tables = next(variant.name for variant in ABLATIONS if variant.without == "indirect")
    names = [
        name
        for name, result in ablated.items()
        if tables not in result.variants and set(slots.get(result.workload, ["unknown"])) <= {"patch", "static"}
    ]
    return f" Not measured where no slot has either: {', '.join(names)}." if names else ""


def switched_off() -> str:
    """Which knob each column is of, and what goes with the technique."""
    knobs = ", ".join(f"`without {name}` is `{knob} = {value!r}`" for name, (knob, value) in TECHNIQUES.items())
    return (
        f"{knobs}. With `indirect` go not only tables, but also the copies that nodes of a graph make where these cost "
        "less than rewriting addresses; what cannot be rewritten is copied with and without it."
    )


def ablation_cell(result: Result, name: str) -> str:
    variant = result.variants.get(name)
    if variant is None:
        return "-"
    return times(goals.over(result, name, OURS.name)) if variant.timing else variant.status


def model_table(main: Sequence[Result]) -> str:
    rows = model.rows(main)
    return table(model.HEADS, rows) if rows else model.UNKNOWN


def accuracy_table(main: Sequence[Result]) -> str:
    rows = []
    for result in main:
        found = [result.variants.get(n, VariantResult()).accuracy for n in (INDUCTOR.name, STOCK.name, OURS.name)]
        ours = found[2]
        errors = [f"{a.against_eager:.1e}" if a else "-" for a in found]
        same = "-" if ours is None or ours.against_plain is None else f"{ours.against_plain:.1e}"
        intact = "-" if ours is None or ours.survives is None else "yes" if ours.survives else "NO"
        rows.append((result.workload, *errors, same, f"{ours.tolerance:.1e}" if ours else "-", intact))
    heads = ("workload", "no graphs", "stock", "ours", "ours against no graphs", "allowed", "intact")
    return table(heads, rows)


def far_from_eager(main: Sequence[Result]) -> str:
    """Where the plain call is so far from eager that being near eager says nothing."""
    rows = []
    for result in main:
        plain, ours = (result.variants.get(n, VariantResult()).accuracy for n in (INDUCTOR.name, OURS.name))
        if plain and ours and ours.tolerance >= 1:
            same = "-" if ours.against_plain is None else f"{ours.against_plain:.1e}"
            rows.append(f"{result.workload} ({same})")
    if not rows:
        return ""
    return (
        f"Where 1 or more is allowed, rounding alone turns the result into another one, and being near eager proves "
        f"nothing; what counts there is how near ours is to no graphs: {', '.join(rows)}."
    )


def failures(named: Mapping[str, Result]) -> str:
    """Every workload and variant without a good answer, with its reason."""
    rows = []
    for workload, result in named.items():
        if result.status != "ok":
            rows.append((workload, "", result.status, brief(result.reason or "")))
        for name, variant in result.variants.items():
            if variant.status not in ("ok", "not available"):
                rows.append((workload, VARIANTS[name].label, variant.status, brief(variant.reason or "")))
            elif name == FLOOR.name and variant.reason:
                rows.append((workload, "floor", "from kernels", brief(variant.reason)))
    return table(("workload", "variant", "status", "reason"), rows, left=4) if rows else "Nothing."
