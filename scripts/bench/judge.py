"""Decisions made in one process, judged in a fresh one: are they right, and what did making and finding them cost.

    python -m scripts.bench.judge --out docs/benchmarks/judged.json --page docs/benchmarks/judged.md

With `--read FILE` nothing is measured, and the page is made from that file. The first process of a workload compiles it
and decides, with an empty store; the second finds the decisions there and is timed in turns with no graphs, stock
graphs, and graphs whether or not they pay. `--jobs N` compiles N workloads side by side; all measuring has the machine
for itself. `--device cpu` runs tiny workloads on the simulated driver, for tests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from scripts.bench import facts
from scripts.bench.judging import ALWAYS, Deciding, Judged, Judging
from scripts.bench.measure import PATIENCE
from scripts.bench.page import table
from scripts.bench.process import METHODS, Process
from scripts.bench.registry import choose
from scripts.bench.results import Decision, decode, encode, write_json
from scripts.bench.side_by_side import in_turns
from scripts.bench.stats import Ratio, ratio
from scripts.bench.variants import INDUCTOR, OURS, STOCK

USUAL = ("TKE", "EOS", "DLRM", "DR-I", "MLP8")
SLOWER = 0.02  # than the better of no graphs and stock graphs
COST = 0.05  # of measuring, as a share of compile time
LOOKUP = 1000.0  # µs a graph
NEVER_MEASURED = ("stored", "pinned", "predicted")  # where decisions of a warm start come from


@dataclass
class Outcome:
    """A whole run. `cold`: compiled with nothing in the cache, so that compile times are what users wait for, where
    not several workloads were compiled side by side (`jobs`); `undisturbed`: decisions were looked up while the others
    stood still."""

    environment: dict[str, Any]
    commit: dict[str, Any]
    cold: bool
    seconds: float
    jobs: int = 1
    undisturbed: bool = False
    judged: list[Judged] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    outcome = decode(Outcome, json.loads(options.read.read_text())) if options.read else run(options)
    if options.out is not None:
        write_json(options.out, encode(outcome))
    if options.page is not None:
        options.page.write_text(page(outcome))
    print(page(outcome))
    return 1 if any(one.reason for one in outcome.judged) else 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("names", nargs="*", help=f"workloads ({' '.join(USUAL)})")
    found.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    found.add_argument("--seconds", type=float, default=2.5, help="timing per workload, all variants together")
    found.add_argument("--limit", type=float, default=600.0, help="seconds that one process may take")
    found.add_argument("--jobs", type=int, default=1, help="workloads that are compiled side by side")
    found.add_argument("--cache", type=Path, help="compiled code of earlier runs; without it everything is compiled")
    found.add_argument("--commit", help="the commit's name, where git cannot tell")
    found.add_argument("--read", type=Path, help="a JSON file of an earlier run, in place of measuring")
    found.add_argument("--out", type=Path, help="a JSON file for the numbers")
    found.add_argument("--page", type=Path, help="a Markdown file for the tables")
    return found


def run(options: argparse.Namespace) -> Outcome:
    """Both processes of every workload, over one folder of compiled code and one of decisions."""
    names = [workload.name for workload in choose(options.names or USUAL)]
    environment = facts.environment(options.device)
    with tempfile.TemporaryDirectory() as folder:
        first = half(options, "decide", names, Path(folder))
        second = half(options, "judge", [name for name in names if first[name].reason is None], Path(folder))
    judged = [joined(first[name], second[name]) if name in second else first[name] for name in names]
    cold = options.cache is None
    return Outcome(environment, facts.commit(options.commit), cold, options.seconds, options.jobs, True, judged)


def half(options: argparse.Namespace, role: str, names: Sequence[str], folder: Path) -> dict[str, Judged]:
    """What the first or the second process of each workload found."""
    console = Console(stderr=True)
    compiled_code = str(options.cache or folder / "cache")
    # A pool of processes that compile would not stand still while another workload is measured.
    threads = 1 if options.jobs > 1 else os.cpu_count() or 1

    def start(name: str) -> Process:
        arguments = [role, name, "--device", options.device, "--seconds", str(options.seconds)]
        arguments += ["--decisions", str(folder / "decisions"), "--threads", str(threads)]
        environment = {"TORCHINDUCTOR_CACHE_DIR": compiled_code}
        work = "scripts.bench.judging:main"
        return Process(f"{name}.{role}", work, arguments, folder / "logs", environment, options.limit, METHODS[0])

    found = in_turns(
        names,
        start,
        options.jobs,
        PATIENCE * options.seconds,
        undisturbed=role == "decide",
        tell=lambda name, state: console.print(f"{role} {name}: {state}", highlight=False, soft_wrap=True),
    )
    return {name: Judged(name, why) if why else decode(Judged, answer) for name, (answer, why) in found.items()}


def joined(first: Judged, second: Judged) -> Judged:
    return replace(first, reason=second.reason, judging=second.judging)


def over(judging: Judging, names: Sequence[str]) -> Ratio | None:
    """Ours over the best of some variants, with its interval; None where none of them was timed."""
    timed = [judging.timings[name] for name in names if name in judging.timings]
    if not timed:
        return None
    best = min(timed, key=lambda timing: timing.throughput_us.median)
    return ratio(judging.timings[OURS.name].rounds_throughput_us, best.rounds_throughput_us)


def at_most(found: Ratio | None, limit: float) -> str:
    """Whether a ratio is below a limit, as far as its interval tells."""
    if found is None:
        return "-"
    return "yes" if found.high <= limit else "no" if found.low > limit else "unsure"


def right(judging: Judging) -> str:
    """Whether the stored decisions are as good as the better of deciding everything one way and the other."""
    return at_most(over(judging, (INDUCTOR.name, ALWAYS.name)), 1 + SLOWER)


def not_slower(judging: Judging) -> str:
    return at_most(over(judging, (INDUCTOR.name, STOCK.name)), 1 + SLOWER)


def kept(first: Deciding, second: Judging) -> bool:
    """Whether the second process measured nothing and chose as the first one had."""
    same = choices(first.decisions) == choices(second.decisions)
    return same and all(one.origin in NEVER_MEASURED for one in second.decisions)


def choices(decisions: Sequence[Decision]) -> list[tuple[str, str, str]]:
    """What was chosen for which function, by its name without the number of times that its code had been compiled
    before: the second process has compiled other variants of it.
    """
    return sorted((_COMPILED.sub(r"\1", one.function), one.sizes, one.chosen) for one in decisions)


def share_of_compiling(first: Deciding) -> float:
    return first.measuring_s / first.compiling_s


_COMPILED = re.compile(r"(\d+)/\d+")

Both = tuple[Judged, Deciding, Judging]


def page(outcome: Outcome) -> str:
    """The numbers as a page of Markdown."""
    where = outcome.environment
    both: list[Both] = [(one, one.deciding, one.judging) for one in outcome.judged if one.deciding and one.judging]
    lines = [
        "# Decisions, judged in a fresh process",
        "",
        "Generated by `python -m scripts.bench.judge --read JSON --page …`.",
        "",
        f"{where.get('gpu') or where['device']}, {where['cpu']}, torch {where['torch']}, driver {where.get('driver')}, "
        f"commit {outcome.commit['id']}. Ratios are of medians of rounds in which the variants took turns, with new "
        "inputs for every iteration, with 95 % intervals.",
        "",
        goals(both) if both else "Nothing was judged.",
        "",
        "## Are the stored decisions right",
        "",
        "`right`: as fast as the better of no graphs and a graph for everything, within 2 %; `unsure` if the interval "
        "holds that limit. `kept`: the second process chose as the first one had, and measured nothing.",
        "",
        table(RIGHT, [right_row(*one) for one in both], left=3),
        "",
        "## What deciding costs",
        "",
        "`measuring` is what the iterations until everything was decided took beyond as many steady ones; `compiling` "
        f"the first call, from {'an empty' if outcome.cold else 'a shared'} cache. `finding` is how long a function of "
        "the second process takes to find its stored decision: the median, and the longest (the first one in a process "
        f"also looks up the device).{beside(outcome)}",
        "",
        table(COSTS, [cost_row(*one) for one in both]),
    ]
    failed = [(one.workload, one.reason) for one in outcome.judged if one.reason]
    if failed:
        lines += ["", "## What did not work", "", table(("workload", "reason"), failed, left=2)]
    return "\n".join(lines) + "\n"


def beside(outcome: Outcome) -> str:
    """What took longer than it would have alone."""
    if outcome.jobs == 1:
        return ""
    slower = "compiling and recording" if outcome.undisturbed else "compiling, recording and finding"
    return (
        f" Workloads were compiled {outcome.jobs} at a time, which makes {slower} slower; while one decided or was "
        "timed, all the others stood still."
    )


RIGHT = ("workload", "decided", "kept", "over no graphs", "over stock", "over the better of both", "over the better of "
         "none and always", "right")  # fmt: skip
COSTS = ("workload", "compiling", "recording", "iterations", "measuring", "share of compiling", "finding")


def right_row(one: Judged, first: Deciding, second: Judging) -> tuple[Any, ...]:
    chosen = Counter(decision.chosen for decision in second.decisions)
    ratios = ((INDUCTOR.name,), (STOCK.name,), (INDUCTOR.name, STOCK.name), (INDUCTOR.name, ALWAYS.name))
    return (
        one.workload,
        ", ".join(f"{count} {name}" for name, count in sorted(chosen.items())) or "-",
        "yes" if kept(first, second) else "no",
        *(over(second, names) or "-" for names in ratios),
        right(second),
    )


def cost_row(one: Judged, first: Deciding, second: Judging) -> tuple[Any, ...]:
    found = second.lookups_us
    finding = f"{statistics.median(found):.0f} us (longest {max(found):.0f} us)" if found else "-"
    return (
        one.workload,
        f"{first.compiling_s:.1f} s",
        f"{first.recording_s:.2f} s",
        first.iterations,
        f"{first.measuring_s * 1e3:.1f} ms",
        f"{share_of_compiling(first):.2%}",
        finding,
    )


def goals(both: Sequence[Both]) -> str:
    """Each goal, over how many workloads it is met, and where not."""
    rows = [
        ("within 2 % of the better of no graphs and stock graphs", lambda _, second: not_slower(second)),
        ("the stored decision is right", lambda _, second: right(second)),
        ("a warm start measures nothing", lambda first, second: answer(kept(first, second))),
        ("measuring costs below 5 % of compiling", lambda first, _: answer(share_of_compiling(first) < COST)),
        ("a decision is found in under 1 ms", lambda _, second: in_time(second)),
    ]
    return table(("goal", "met", "not met, or unsure"), [goal_row(what, of, both) for what, of in rows], left=3)


def goal_row(what: str, of: Callable[[Deciding, Judging], str], both: Sequence[Both]) -> tuple[str, str, str]:
    answers = {one.workload: of(first, second) for one, first, second in both}
    open_ = [f"{name}: {said}" for name, said in answers.items() if said != "yes"]
    return what, f"{len(answers) - len(open_)} of {len(answers)}", ", ".join(open_) or "-"


def in_time(second: Judging) -> str:
    return answer(statistics.median(second.lookups_us) < LOOKUP) if second.lookups_us else "-"


def answer(met: bool) -> str:
    return "yes" if met else "no"


if __name__ == "__main__":
    sys.exit(main())
