"""The recordings that answer a row's calls, found alive in the process, and what their launchers say of their time."""

from __future__ import annotations

import collections
import gc
import statistics
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pygraph_inductor.recording.record import Recording
from pygraph_inductor.reporting import FunctionFacts
from scripts.bench.host_cost_timing import Calls, Iterate


def launchers() -> set[Any]:
    """Those of all recordings. To look for them takes long, and the caches with it: not within a round that counts."""
    return {found.launcher for found in _open() if found.launcher is not None}


def served(since: int) -> dict[str, list[Recording]]:
    """Those that answered since that time of the monotonic clock, by kind ("forward", "backward" or "inference").

    Of each function one, the last that did: it had others before it was settled what answers.
    """
    recordings = [found for found in _open() if found.last_used() >= since]
    by_kind: dict[str, list[Recording]] = {}
    for function in [found for found in gc.get_objects() if type(found) is FunctionFacts]:
        # Of each function there are copies, too, whose logs are others.
        own = [one for one in recordings if any(one.log is log for log in function.recordings)]
        if own:
            by_kind.setdefault(function.kind, []).append(max(own, key=Recording.last_used))
    return by_kind


def _open() -> Iterator[Recording]:
    return (found for found in gc.get_objects() if type(found) is Recording and not found.closed)


def phases(
    one: Iterate, sets: Sequence[Sequence[Any]], launchers: Collection[Any], make_calls: Calls
) -> dict[str, float]:
    """Microseconds per iteration in each phase of the launcher in C, over all these launchers."""
    for launcher in launchers:
        launcher.time(True)
    number = make_calls(one, sets)
    total: collections.Counter[str] = collections.Counter()
    for launcher in launchers:
        total.update(launcher.spent())
        launcher.time(False)
    return {phase: spent / number / 1e3 for phase, spent in total.items()}


def over_rounds(bursts: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median and quartiles of each phase; none where no launcher was timed."""
    cuts = {phase: statistics.quantiles([burst[phase] for burst in bursts], n=4) for phase in bursts[0]}
    return {
        name: {phase: round(values[place], 2) for phase, values in cuts.items()}
        for name, place in (("phases", 1), ("phases_q1", 0), ("phases_q3", 2))
    }
