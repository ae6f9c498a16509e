"""The section of the page about host cost that takes the latency of one call apart, where its parts were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scripts.bench.markdown import table

SHOWN = ("ours", "nothing", "replay")

_ABOUT = """\
A call that is made after a wait for the device, and waited for in turn. Medians of {singles} single calls in each of
{rounds} rounds{fewer}, in microseconds, of each figure on its own: sums of parts may be somewhat off.

- `until it returned` is the host's time, and beside it how much more that is than per call of a burst: what of this is
  in `nothing`, too, has nothing to do with launching.
- `wait after it` is, of `nothing`, what it takes to ask a device that has nothing to do. Of the others it has what the
  device still has to do by then: reaching its first kernel, the kernels, and saying so.
- `on the device` is the time between two events around a call that queued up behind other work until all of it was
  there: its kernels and what is between them, without the host. What else a latency has passes on the host, or on the
  way to the device and back.
- The floor's latency is `nothing` until it returned and the raw replay's latency, both alone: what a wait leaves cold
  is cold for every variant, and the replay's latency has a wait of its own. Of training steps it is the larger of what
  both take until they returned and the raw replay's latency."""

_ABOUT_PARTS = """\
The parts of ours alone, as in [the tables of a burst](#where-our-time-goes); in brackets how much more each is alone.
The launcher's phases and making outputs are of {singles} more single calls in each round, on average. What ours takes
longer until it returned (`above the floor`) and what its wait takes longer than the raw replay's are together its
latency over the floor; not of training steps, whose kernels and host may overlap."""

_NOT_MEASURED = (
    "What a latency is made of was not measured{}. The floor's has the host's time of `nothing` from a burst there,"
    " where a call alone may take longer: so it may be too low."
)
_LONGER = " `nothing`, which launches nothing, has a longer latency than that floor in: {}."


def rounds_of_training(result: Mapping[str, Any]) -> str:
    """How many rounds training steps have, in brackets. At first the data did not say."""
    return f" (of training steps, {result.get('rounds_of_training', 'a sixth as many')})"


def section(result: Mapping[str, Any]) -> list[str]:
    """Lines about rows that have a floor. Older data has fewer parts, or none."""
    rows, singles = result["rows"], result.get("single_calls_per_round")
    floored = {name: variants for name, variants in rows.items() if "floor" in variants and "nothing" in variants}
    if not floored:
        return []
    apart = {name: variants for name, variants in floored.items() if is_apart(variants)}
    lines = ["", "## One call alone"]
    if apart:
        fewer = rounds_of_training(result) if any(one["training"] for one in apart.values()) else ""
        about = _ABOUT.format(singles=singles, rounds=result["rounds"], fewer=fewer)
        lines += ["", *about.splitlines(), "", _latencies(apart)]
    parts = [*_parts(apart, training=False), *_parts(apart, training=True)]
    if parts:
        lines += ["", *_ABOUT_PARTS.format(singles=singles).splitlines(), *parts]
    missing = {name: variants for name, variants in floored.items() if name not in apart}
    return [*lines, "", _what_is_missing(missing, every=not apart)] if missing else lines


def is_apart(variants: Mapping[str, Any]) -> bool:
    """Whether single calls were timed in two parts, and so the floor's latency is of calls alone."""
    return "alone" in variants.get("nothing", {})


def _what_is_missing(rows: Mapping[str, Any], every: bool) -> str:
    longer = [name for name, one in rows.items() if not one.get("training") and _latency_over(one, "nothing") > 0]
    said = _NOT_MEASURED.format("" if every else f" of {'; '.join(rows)}")
    return said + (_LONGER.format("; ".join(longer)) if longer else "")


def _latencies(rows: Mapping[str, Any]) -> str:
    heads = ["", "", "latency", "until it returned", "more than in a burst", "wait after it", "on the device"]
    return table([*heads, "over the floor"], [cells for name, one in rows.items() for cells in _variants(name, one)], 2)


def _variants(name: str, variants: Mapping[str, Any]) -> Iterator[list[str]]:
    for variant in SHOWN:
        one = variants[variant]
        cells = [f"{one['latency']:.1f}", f"{one['alone']:.1f}", f"{one['alone'] - one['host']:+.1f}"]
        cells += [f"{one['wait']:.1f}", f"{one['device']:.1f}" if "device" in one else "-"]
        ratio = one["latency"] / variants["floor"]["latency"]
        over = f"{_latency_over(variants, variant):+.1f}, {ratio:.2f}x" if variant == "ours" else ""
        yield [name if variant == SHOWN[0] else "", variant, *cells, over]
    yield ["", "floor", f"{variants['floor']['latency']:.1f}", *[""] * 5]


def _latency_over(variants: Mapping[str, Any], variant: str) -> float:
    return float(variants[variant]["latency"] - variants["floor"]["latency"])


def _parts(rows: Mapping[str, Any], training: bool) -> list[str]:
    """The split of a call alone beside that of a call in a burst."""
    heads = ["", "guards", "AOTAutograd, autograd, and around" if training else "AOTAutograd", "our path", "driver"]
    heads += ["total", "making outputs", "replay", "above the floor"]
    heads += [] if training else ["wait, over the replay's"]
    cells = [
        _parts_of(name, variants)
        for name, variants in rows.items()
        if "split_alone" in variants and bool(variants["training"]) is training
    ]
    return ["", table(heads, cells)] if cells else []


def _parts_of(name: str, variants: Mapping[str, Any]) -> list[str]:
    alone, burst = sums(variants, "split_alone", "alone"), sums(variants, "split", "host")
    cells = [f"{value:.1f} ({value - other:+.1f})" for value, other in zip(alone, burst, strict=True)]
    cells.append(f"{above(alone):+.1f} ({above(alone) - above(burst):+.1f})")
    if not variants["training"]:
        cells.append(f"{variants['ours']['wait'] - variants['replay']['wait']:+.1f}")
    return [name, *cells]


def sums(variants: Mapping[str, Any], split: str, figure: str) -> Sequence[float]:
    """Guards, frame, our path, the driver, and their sum; then what the floor has in place of the last two parts."""
    parts = [variants[split][part] for part in ("guards", "frame", "path", "driver")]
    return [*parts, sum(parts), variants[split]["outputs"], variants["replay"][figure]]


def above(sums: Sequence[float]) -> float:
    """How far ours is above the floor, when it has returned."""
    _, _, path, driver, _, outputs, replay = sums
    return path - outputs + driver - replay
