"""The command line: run workloads, collect, compare and publish their results. `python -m scripts.bench --help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from scripts.bench import facts
from scripts.bench.process import METHODS
from scripts.bench.registry import Workload
from scripts.bench.results import Result
from scripts.bench.variants import EAGER, FLOOR, INDUCTOR, OURS, STOCK, TABLES, VARIANTS

DATA = facts.ROOT / "docs" / "benchmarks" / "data"
SCRATCH = facts.ROOT / ".cache" / "bench"
COMMANDS = ("run", "list", "collect", "compare", "page", "expect")
QUICK = ("XLNET-I", "EOS", "TKE", "DLRM", "ST", "BERT-MLM", "DECODE-S", "MLP8")


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments.insert(0, "run")
    options = parser().parse_args(arguments)
    command = {
        "run": run,
        "list": list_workloads,
        "collect": collect,
        "compare": compare,
        "page": page,
        "expect": expect,
    }
    return command[options.command](options)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m scripts.bench", description="Measure what the package claims.")
    commands = top.add_subparsers(dest="command", metavar="command", required=True)

    about = "measure workloads (the default command)"
    one = commands.add_parser("run", help=about, description=about)
    add_selection(one)
    one.add_argument(
        "--device", choices=("cuda", "sim"), default="cuda", help="sim: tiny sizes on the simulated driver"
    )
    one.add_argument("--part", metavar="i/n", help="only the i-th of n parts of the selection")
    one.add_argument("--budget-minutes", type=float, help="start nothing that would not end within this time")
    one.add_argument("--seconds", type=float, default=6.0, help="timing per workload, all variants together")
    one.add_argument("--limit", type=float, default=300.0, help="seconds that one process may take")
    one.add_argument("--jobs", type=int, default=0, help="processes side by side (0: by the number of cores)")
    one.add_argument("--batch", type=int, default=0, help="workloads measured together (0: by jobs)")
    one.add_argument("--method", choices=METHODS, default=METHODS[0], help="how processes are started")
    one.add_argument("--variants", default="", help=f"comma-separated, of: {', '.join(VARIANTS)}")
    one.add_argument("--ablation", action="store_true", help="ours again with each technique switched off")
    one.add_argument("--cold", action="store_true", help="compile each variant from an empty cache, to time compiling")
    one.add_argument("--no-probe", action="store_true", help="leave out memory, start-up and the profiler's counts")
    one.add_argument("--no-timing", action="store_true", help="only memory, start-up and the profiler's counts")
    one.add_argument("--again", action="store_true", help="measure also what has a result of this commit")
    one.add_argument("--commit", help="the commit's name, where git cannot tell")
    one.add_argument("--out", type=Path, default=None, help="folder of result files (.cache/bench/DEVICE)")
    one.add_argument("--cache", type=Path, default=SCRATCH / "cache", help="folder of compiled code")
    one.add_argument("--collect", type=Path, help="also keep all results of the run in one file, up to date")
    one.add_argument("--compare", type=Path, help="also say what got slower or worse than in these results")

    about = "list workloads and what each needs"
    add_selection(commands.add_parser("list", help=about, description=about))

    about = "write the result files of a folder into one file, the form that is committed"
    one = commands.add_parser("collect", help=about, description=about)
    one.add_argument("source", type=Path, nargs="?", default=SCRATCH / "cuda")
    one.add_argument("target", type=Path, nargs="?", default=None)

    about = "say what got slower or worse between two sets of results, and how sure that is"
    one = commands.add_parser("compare", help=about, description=about)
    one.add_argument("old", type=Path)
    one.add_argument("new", type=Path, nargs="?", default=SCRATCH / "cuda")
    one.add_argument("--threshold", type=float, default=0.02, help="a change smaller than this share is none")

    about = "generate docs/benchmarks/README.md and its plots from the committed results"
    one = commands.add_parser("page", help=about, description=about)
    one.add_argument("--data", type=Path, default=DATA)
    one.add_argument("--pool", action="store_true", help="average over rows of different commits, and say so")
    one.add_argument("--no-plots", action="store_true")

    about = "refresh tests/regression from a simulated run of the workloads that are there, or of those named"
    one = commands.add_parser("expect", help=about, description=about)
    one.add_argument("names", nargs="*")
    one.add_argument("--results", type=Path, help="take the result files of this simulated run instead of running")
    return top


def add_selection(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="*", help="workloads (all)")
    command.add_argument("--suite", action="append", default=[], help="TorchBench, HuggingFace, TIMM or extra")
    command.add_argument("--mode", action="append", default=[], choices=("inference", "training", "update"))
    command.add_argument("--tag", action="append", default=[], help="paper, or a tag of a workload")
    command.add_argument("--quick", action="store_true", help=f"a small selection: {', '.join(QUICK)}")


def selected(options: argparse.Namespace) -> list[Workload]:
    from scripts.bench.registry import choose

    names = [*options.names, *(QUICK if options.quick else ())]
    return choose(names, options.suite, options.mode, options.tag)


def run(options: argparse.Namespace) -> int:
    from scripts.bench import results, show
    from scripts.bench.run import PROBED, Options, Run, part

    console = terminal()
    simulated = options.device == "sim"
    names = [v.name for v in (EAGER, INDUCTOR, STOCK, OURS, FLOOR)]
    if options.variants:
        names = options.variants.split(",")
        if unknown := [name for name in names if name not in VARIANTS]:
            raise SystemExit(f"no variant called {', '.join(unknown)}; there are: {', '.join(VARIANTS)}")
    elif options.ablation:
        names = [name for name in VARIANTS if name != TABLES.name]
    if options.no_timing and (options.no_probe or not set(names) & set(PROBED)):
        raise SystemExit(
            f"--no-timing leaves nothing to measure: only {', '.join(PROBED)} are probed, without --no-probe"
        )
    cores = os.cpu_count() or 1
    jobs = options.jobs or (max(cores - 1, 1) if simulated else max(min(cores // 2, 10), 1))
    settings = Options(
        device=options.device,
        out=options.out or SCRATCH / options.device,
        cache=options.cache.resolve(),
        variants=tuple(names),
        seconds=options.seconds,
        budget=options.budget_minutes * 60 if options.budget_minutes else None,
        limit=options.limit,
        jobs=jobs,
        batch=options.batch or (jobs if simulated else min(12, 3 * jobs)),
        cold=options.cold,
        probe=not options.no_probe,
        time=not options.no_timing,
        again=options.again,
        commit=options.commit,
        method=options.method,
    )
    workloads = part(selected(options), options.part)
    progress = show.Progress(console, len(workloads))
    done: list[Result] = []

    def tell(workload: Workload, state: str, result: Result | None) -> None:
        progress(workload, state, result)
        if result is not None:
            done.append(result)
            if options.collect:
                results.collect(done, options.collect)

    work = Run(settings, tell)
    order = [workload.name for workload in workloads]
    found = sorted(work.all(workloads), key=lambda result: order.index(result.workload))
    for process in work.processes:
        if process.tail:
            console.print(f"--- the end of {process.log}\n{process.tail}", highlight=False, markup=False)
    console.print((show.simulated_table if simulated else show.timing_table)(found))
    bad = [f"{r.workload}: {r.status}: {r.reason}" for r in found if r.status in show.BAD]
    if simulated:
        from scripts.bench.regression import complaints

        bad += [f"worse than expected: {line}" for line in complaints(found)]
    skipped = [f"{r.workload}: skipped: {r.reason}" for r in found if r.status == "skipped"]
    for line in [*skipped, *bad]:
        console.print(line, highlight=False, markup=False)
    console.print(f"{len(found)} of {len(workloads)} workloads have results in {settings.out}", highlight=False)
    if options.compare and show_comparison(console, results.load(options.compare), found, 0.02):
        return 1
    return 1 if bad else 0


def list_workloads(options: argparse.Namespace) -> int:
    for w in selected(options):
        note = f"  (needs {', '.join(w.missing())})" if w.missing() else ""
        print(f"{w.name:9} {w.suite:11} {w.mode:9} {w.batch:>9,} {w.precision:4}  {w.title}: {w.structure}{note}")
    return 0


def collect(options: argparse.Namespace) -> int:
    from scripts.bench import results

    found = results.load(options.source)
    if not found:
        raise SystemExit(f"no results in {options.source}")
    names = sorted({results.commit_name(result).replace(" ", "-") for result in found})
    target = (
        options.target or DATA / f"{found[0].environment.get('gpu', 'sim').replace(' ', '-').lower()}-{names[0]}.json"
    )
    results.collect(found, target)
    print(f"{len(found)} results of {', '.join(names)} in {target}")
    return 0


def compare(options: argparse.Namespace) -> int:
    from scripts.bench import results

    old, new = results.load(options.old), results.load(options.new)
    return 1 if show_comparison(terminal(), old, new, options.threshold) else 0


def terminal() -> Console:
    """The terminal, or for a file or pipe a page that is wide enough for the tables."""
    return Console(width=None if sys.stdout.isatty() else 180)


def show_comparison(console: Console, old: list[Result], new: list[Result], threshold: float) -> bool:
    """Print what changed; says whether anything got worse."""
    from scripts.bench.compare import compared, comparison_table

    changes = compared(old, new, threshold)
    console.print(comparison_table(changes))
    return any(change.verdict == "worse" for change in changes)


def page(options: argparse.Namespace) -> int:
    from scripts.bench.page import publish

    for path in publish(options.data, facts.ROOT / "docs" / "benchmarks", options.pool, plots=not options.no_plots):
        print(path)
    return 0


def expect(options: argparse.Namespace) -> int:
    from scripts.bench.regression import refresh

    return refresh(options.names, options.results)


if __name__ == "__main__":
    sys.exit(main())
