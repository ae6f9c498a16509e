"""Which of autograd's nodes and operators a step runs on the host, by torch's profiler; variants are compared.

Only the host is watched, so nothing is launched differently. The profiler's own cost is in every event, several times
what a short one takes: so the figures say where one variant takes longer than another, not how long a step takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.profiler import ProfilerActivity, profile

from scripts.bench.host_cost_timing import Iterate
from scripts.bench.variants import Variant, active

STEPS = 10
WARM_UP = 2
SHOWN = 12  # events: those in which the last variant differs most from the first
# What differs by variant: the number of a compiled region and its entry, and the key of what Inductor compiled.
_OWN = re.compile(r"(?<=Region: )\d+/\d+|(?<=CompiledFxGraph )\S+ ")

Events = dict[str, tuple[float, float, float]]  # name -> times, own and total microseconds of a step


def compared(
    steps: Mapping[Variant, Iterate], sets: Sequence[Sequence[Any]], wait: Callable[[], Any]
) -> dict[str, Any]:
    """The events in which the last of these variants differs most from the first, per step.

    `own` is without what an event calls, so that it adds up: to `sum`, of all events, shown or not.
    """
    found: dict[str, Events] = {}
    for variant, one in steps.items():
        with active(variant):
            found[variant.name] = events(one, sets, wait)
    first, *_, last = found.values()
    nothing = (0.0, 0.0, 0.0)
    by_difference = sorted(
        {name: None for one in found.values() for name in one},
        key=lambda name: -abs(last.get(name, nothing)[1] - first.get(name, nothing)[1]),
    )
    return {
        "steps": STEPS,
        "sum": {variant: round(sum(own for _, own, _ in one.values()), 1) for variant, one in found.items()},
        "events": [
            {"event": name}
            | {
                variant: dict(zip(("times", "own", "total"), map(_rounded, one.get(name, nothing)), strict=True))
                for variant, one in found.items()
            }
            for name in by_difference[:SHOWN]
        ],
    }


def _rounded(value: float) -> float:
    return round(value, 2)


def events(one: Iterate, sets: Sequence[Sequence[Any]], wait: Callable[[], Any]) -> Events:
    """All events by name, after a profile that only makes the profiler ready. Waits for the device are in none."""
    _profiled(one, sets, wait, WARM_UP)
    found: Events = {}
    for event in _profiled(one, sets, wait, STEPS).key_averages():
        name = _OWN.sub("", event.key).strip()
        times, own, total = found.get(name, (0.0, 0.0, 0.0))
        found[name] = (
            times + event.count / STEPS,
            own + event.self_cpu_time_total / STEPS,
            total + event.cpu_time_total / STEPS,
        )
    return found


def _profiled(one: Iterate, sets: Sequence[Sequence[Any]], wait: Callable[[], Any], steps: int) -> profile:
    wait()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for number in range(steps):
            one(sets[number % len(sets)])
    wait()
    return found
