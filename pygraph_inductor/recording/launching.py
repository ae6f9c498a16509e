"""Puts the launcher in C before a recording: alone for calls that are timed, and in front of its function."""

from __future__ import annotations

from typing import Any

from pygraph_inductor.driver.protocol import Driver
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.keys import overlaps_of
from pygraph_inductor.recording.record import Recording, Request
from pygraph_inductor.replay import native
from pygraph_inductor.reporting.facts import warn_once

ASIDE = object()  # what `Recording.alone` returns where the launcher does not take a call


def give_launcher(recording: Recording, request: Request, facts: Facts, driver: Driver, front: Any) -> None:
    """Make it, if the recording can have one; while the graph is measured it is not yet in `front`."""
    try:
        recording.launcher = native.launcher_for(
            recording.player,
            recording.graph,
            driver,
            request.inputs,
            overlaps_of(request.inputs, request.call),
            recording.pool,
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        warn_once(facts, reason, "its replays go through Python, which is slower")
    if recording.launcher is None:
        return
    alone = recording.alone = type(front)(_step_aside)
    alone.add(recording.launcher)
    if recording.watch is not None:
        recording.launcher.sample(recording.watch.every)
    if recording.measurement is None:
        front.add(recording.launcher)


def _step_aside(inputs: list[Any]) -> Any:
    return ASIDE
