"""Processes that prepare side by side: one is let go at a time, the others stand still, and failures stay their own."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.bench.process import METHODS, Gate, Process
from scripts.bench.side_by_side import Found, in_turns

PREPARING = {"quick": 0.0, "slow": 1.5}


def works(arguments: Sequence[str], gate: Gate) -> int:
    """Prepares, and writes down the time of every hundredth of a second that it is at it; then waits, and times."""
    name, out = arguments[0], Path(arguments[arguments.index("--out") + 1])
    if name == "dies":
        raise MemoryError("no more of it")
    if name == "sleeps":
        time.sleep(60)
    preparing, end = [], PREPARING.get(name, 0.2)
    while len(preparing) * 0.01 < end:
        time.sleep(0.01)
        preparing.append(time.monotonic())
    allowed = gate.wait()
    begun = time.monotonic()
    time.sleep(0.4)
    out.write_text(json.dumps({"preparing": preparing, "timed": [begun, time.monotonic()], "allowed": allowed}))
    return 0


def run(folder: Path, names: Sequence[str], jobs: int, undisturbed: bool = False) -> tuple[dict[str, Found], list[str]]:
    told: list[str] = []

    def start(name: str, limit: float = 4.0) -> Process:
        return Process(name, f"{__name__}:works", [name], folder, dict(os.environ), limit, METHODS[0])

    first = start("first", 60.0)  # the server of forks imports everything with its first process
    while not first.ready:
        time.sleep(0.1)
    first.kill("over")
    found = in_turns(names, start, jobs, 9.0, undisturbed, lambda name, state: told.append(f"{name} {state}"))
    return found, told


def during(times: Sequence[float], span: Sequence[float]) -> list[float]:
    return [one for one in times if span[0] < one < span[1]]


@pytest.mark.parametrize("undisturbed", [False, True])
def test_what_is_timed_has_the_machine_for_itself(tmp_path: Path, undisturbed: bool) -> None:
    found, _ = run(tmp_path, ["quick", "slow", "other"], jobs=3, undisturbed=undisturbed)
    answers = {name: answer for name, (answer, why) in found.items() if why is None}
    assert set(answers) == {"quick", "slow", "other"}
    spans = sorted(answer["timed"] for answer in answers.values())
    assert all(one[1] <= next[0] for one, next in itertools.pairwise(spans))
    slow = answers["slow"]["preparing"]
    assert not [one for span in spans for one in during(slow, span)]
    before = [span for span in spans if span[0] < slow[-1]]
    assert not before if undisturbed else before
    assert {answer["allowed"] for answer in answers.values()} == {9.0}


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_fails_is_reported_and_the_others_go_on(tmp_path: Path, jobs: int) -> None:
    found, told = run(tmp_path, ["dies", "sleeps", "quick"], jobs)
    reasons = {name: why for name, (_, why) in found.items()}
    assert "MemoryError: no more of it" in str(reasons["dies"])
    assert "no answer within 4 s" in str(reasons["sleeps"])
    assert reasons["quick"] is None
    assert told.count("quick preparing") == 1 and "quick done" in told
    if jobs == 1:
        assert told.index("dies preparing") < told.index("sleeps preparing") < told.index("quick preparing")
        assert told.index(f"sleeps {reasons['sleeps']}") < told.index("quick preparing")


@pytest.mark.parametrize("undisturbed", [False, True])
def test_no_more_than_so_many_are_there_at_a_time(tmp_path: Path, undisturbed: bool) -> None:
    _, told = run(tmp_path, ["quick", "one", "two", "three"], jobs=2, undisturbed=undisturbed)
    there = most = 0
    for state in (line.split()[1] for line in told):
        there += 1 if state == "preparing" else -1
        most = max(most, there)
    assert (there, most) == (0, 2)
    if undisturbed:
        assert [line.split()[1] for line in told] == ["preparing", "preparing", "done", "done"] * 2


def test_interrupt_ends_also_the_one_that_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Process] = []
    original = Process.__init__

    def noted(self: Process, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        started.append(self)

    def interrupted(self: Process, seconds: float, limit: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Process, "__init__", noted)
    monkeypatch.setattr(Process, "go", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, ["quick", "slow"], jobs=2)
    assert [one.name for one in started] == ["first", "quick", "slow"]
    assert not any(one.running() or one._process.is_alive() for one in started)
