"""The page about what one call costs the host, from data of `host_cost.py` that may be older than some columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scripts.bench import host_cost_alone, host_cost_goals, host_cost_training_page
from scripts.bench.markdown import table

COLUMNS = ("nothing", "eager", "inductor", "stock", "ours", "replay", "floor")
OURS_TOO = ("accept", "allocate", "wrap")  # phases of the launcher that are no driver's

_ABOUT_FLOOR = (
    "; `replay` is the plain call captured whole and replayed raw; the floor is nothing and the raw replay{}. How"
    " far we are above it is in microseconds, of the host's time and in brackets of the latency."
)
_FLOOR_ALONE = ", its latency [of calls alone](#one-call-alone)"
_ABOUT_TRAINING = (
    " Of training steps, `nothing` also has dropping gradients, autocast, as many saved tensors (activations are the"
    " same ones in every call), autograd's engine, and a new gradient for every parameter. The floor of their latency"
    " is the larger of the floor on the host{} and the raw replay's latency. How far we are above it is a ratio."
)
_HOST_ALONE = ", of calls alone,"
# What was measured first had a function with one output in place of this.
_NOTHING_AT_FIRST = (
    "a compiled function of the same signature that launches nothing (where ours is below the floor, it cost more than"
    " all of our call, and is none)"
)
_NOTHING = "the compiled function without its generated code, which makes new outputs and launches nothing"

_ABOUT_SPLIT = """\
Microseconds of host time per iteration. From `guards` to `driver` the columns add up to our total, which is the median
in the table above:

- `guards` is Dynamo's part: the function compiled with a backend that returns the same tensors in every call. It is
  timed from entering the compiled function to leaving it: guards, rewritten bytecode, and 0.1 µs for the clock.
- `AOTAutograd` is `nothing` without `guards` and without the making of outputs: AOTAutograd's wrappers, and what the
  iteration does around the call, as entering `no_grad` and freeing results. In training steps that is autograd, too:
  its engine, tensors saved for the backward, gradients dropped and accumulated, and autocast.
- `our path` is what ours takes beyond that without the driver: finding the recording, comparing inputs, making outputs
  and handing them out; in training steps also freeing activations, which `nothing` never does. In brackets, what the
  launcher in C counts of it (`accept`, `allocate` and `wrap`). Pieces that run outside of graphs or without the
  launcher are in this column with all they take.
- `driver` is rewriting nodes and launching graphs (`tell` and `launch`).

The floor has the same first two columns; in place of our path it has `making outputs` (allocating outputs and
gradients, as `nothing` does), in place of the driver the raw `replay`. So our path minus making outputs, and the driver
minus the replay, is how far we are `above the floor`.

Every part is a median over the same rounds as the total: guards in turns with everything else, making outputs and the
launcher's phases each in another burst after the one that is in the table above. Reading the clock takes time itself,
up to 0.1 µs in each phase of each graph and in each making of outputs: it is in the columns that are timed so (the
driver, the launcher, making outputs) and missing in those that are left of the total. And each part has more of the
processor's caches to itself than amid the whole. So a few tenths of a microsecond, of training steps more, may be in
the wrong column, and a small one may be negative. Guards of a training step are the most flattered: what they take
longer amid a real step is in the columns after them."""

_ABOUT_PHASES = (
    "the launcher in C compares the inputs with the recording (`accept`), makes outputs (`allocate`), rewrites node"
    " parameters (`tell`), replays (`launch`) and hands out (`wrap`)."
)

_ABOUT_FUNCTIONS = (
    "By Python's profiler, of ours: how often a function runs per call, and what it takes of its own, without what it"
    " calls. The profiler's own cost is in every figure, several times what a short function takes: they say who is"
    " there, not how long a call takes. The launcher in C is no function of Python: its time is that of its caller."
)


def page(result: dict[str, Any], source: str = "host_cost.json") -> str:
    """The numbers as a page of Markdown; `source` is the name of their file."""
    where = result["environment"]
    rows = result["rows"]
    # What was measured before raw replays were has no such columns.
    names = [name for name in COLUMNS if any(name in variants for variants in rows.values())]
    over = ["ours over the floor"] if "floor" in names else []
    fewer = host_cost_alone.rounds_of_training(result) if any("training step" in name for name in rows) else ""
    nothing = _NOTHING if any("training" in variants for variants in rows.values()) else _NOTHING_AT_FIRST
    alone = any(host_cost_alone.is_apart(variants) for variants in rows.values())
    heads = ["", *names, *over, "goal, at most", "met"]
    lines = [
        "# What one call costs the host",
        "",
        f"Generated from `{source}` by `python -m scripts.bench.host_cost --read … --page …`.",
        "",
        f"{where['gpu']}, {where['cpu']}, torch {where['torch']}, driver {where['driver']}, commit"
        f" {result['commit']['id']}. Microseconds of host time per call, median of {result['rounds']} bursts of"
        f" {result['calls_per_burst']} calls with new input tensors"
        f"{fewer}; in brackets the latency of one call. `nothing` is"
        f" {nothing}; `inductor` is without graphs"
        + (_ABOUT_FLOOR.format(_FLOOR_ALONE if alone else "") if over else ".")
        + (
            _ABOUT_TRAINING.format(_HOST_ALONE if alone else "")
            if any(variants.get("training") for variants in rows.values())
            else ""
        ),
        "",
        host_cost_goals.about(rows),
        "",
        table(heads, [_cells(name, variants, names, over) for name, variants in rows.items()]),
        *_split(rows),
        *_phases(rows),
        *host_cost_alone.section(result),
        *_functions(rows),
        *host_cost_training_page.events(rows),
    ]
    return "\n".join(lines) + "\n"


def _cells(name: str, variants: dict[str, Any], names: Sequence[str], over: Sequence[str]) -> list[str]:
    cells = [name]
    known = {v: value for v, value in variants.items() if v != "floor" or has_floor(variants)}
    cells += [f"{known[v]['host']:.0f} ({known[v]['latency']:.0f})" if v in known else "-" for v in names]
    if over:
        cells.append(_distance(variants))
    return [*cells, *host_cost_goals.cells(name, known)]


def has_floor(variants: dict[str, Any]) -> bool:
    """Whether the data tells it: a replay is not all that a step must do, and at first nothing else was measured."""
    return "floor" in variants and "nothing" in variants


def _distance(variants: dict[str, Any]) -> str:
    """From the floor to ours: microseconds, of a training step the ratio."""
    if not has_floor(variants):
        return "-"
    ours, least = variants["ours"], variants["floor"]
    if variants.get("training"):
        return f"{ours['host'] / least['host']:.2f}x ({ours['latency'] / least['latency']:.2f}x)"
    return f"{ours['host'] - least['host']:+.0f} ({ours['latency'] - least['latency']:+.0f})"


def _split(rows: dict[str, Any]) -> list[str]:
    """Guards, AOTAutograd, our path and the driver, where they were measured."""
    lines = []
    for training, frame in ((False, "AOTAutograd"), (True, "AOTAutograd, autograd, and around")):
        heads = ["", "guards", frame, "our path (launcher)", "driver", "total"]
        heads += ["making outputs", "replay", "above the floor"]
        cells = [
            _split_cells(name, variants)
            for name, variants in rows.items()
            if "split" in variants and bool(variants["training"]) is training
        ]
        lines += ["", table(heads, cells)] if cells else []
    if not lines:
        return []
    steps = host_cost_training_page.parts(rows)
    return ["", "## Where our time goes", "", *_ABOUT_SPLIT.splitlines(), *lines, *steps]


def _split_cells(name: str, variants: dict[str, Any]) -> list[str]:
    sums = host_cost_alone.sums(variants, "split", "host")
    launcher = sum(variants["phases"][phase] for phase in OURS_TOO)
    cells = [f"{value:.1f}" for value in sums]
    cells[2] += f" ({launcher:.1f})"
    return [name, *cells, f"{host_cost_alone.above(sums):+.1f}"]


def _phases(rows: dict[str, Any]) -> list[str]:
    """The launcher's phases; what is not in them has a table of its own since it is measured."""
    found = {name: variants["phases"] for name, variants in rows.items() if variants.get("phases")}
    if not found:
        return []
    heads = list(next(iter(found.values())))
    cells = [[name, *(f"{spent[head]:.1f}" for head in heads)] for name, spent in found.items()]
    if any("split" in variants for variants in rows.values()):
        return ["", "By phase: " + _ABOUT_PHASES, "", table(["", *heads], cells)]
    for line, (name, spent) in zip(cells, found.items(), strict=True):
        line.append(f"{rows[name]['ours']['host'] - sum(spent.values()):.0f}")
    about = (
        "Where our time goes: " + _ABOUT_PHASES + " The rest is Dynamo's, AOTAutograd's and, in training, autograd's."
    )
    return ["", about, "", table(["", *heads, "the rest"], cells)]


def _functions(rows: dict[str, Any]) -> list[str]:
    lines = []
    for name, variants in rows.items():
        if found := variants.get("functions"):
            cells = [[f"`{one['function']}`", f"{one['times']:.1f}", f"{one['own']:.1f}"] for one in found]
            lines += ["", f"### {name}", "", table(["function", "times", "µs"], cells)]
    return ["", "## Functions of one call", "", _ABOUT_FUNCTIONS, *lines] if lines else []
