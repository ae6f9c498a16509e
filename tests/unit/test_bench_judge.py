"""Judging decisions in a fresh process: what is right is called right, what is wrong wrong, and nothing else is."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pygraph_inductor
from pygraph_inductor.driver.devices import driver_for
from pygraph_inductor.driver.simulated import SimulatedGraph
from pygraph_inductor.recording import function as recorded_function
from scripts.bench import judge
from scripts.bench.judging import ALWAYS, Deciding, HostStopwatch, Judged, Judging, decide, prepare_process
from scripts.bench.judging import judge as time_what_is_stored
from scripts.bench.registry import Program, Setting, Workload
from scripts.bench.results import Decision, encode
from scripts.bench.variants import INDUCTOR, OURS, STOCK
from tests.unit.bench_data import timing

CPU = torch.device("cpu")
US = 1000.0  # of a millisecond


def small(setting: Setting) -> Program:
    return Program(lambda x: torch.tanh(x) * 2 + 1, lambda draw: (draw.normal(64),))


SMALL = Workload("SMALL", "small", "extra", "inference", 1, "fp32", "one kernel", small)


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on the simulated device, and decisions of the test's own; the compiled code is everybody's."""
    monkeypatch.setattr("pygraph_inductor.seams.identity.decisions_folder", lambda: str(tmp_path / "decisions"))
    driver: Any = driver_for(CPU)
    monkeypatch.setattr(driver, "clock", HostStopwatch)


def slow(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, milliseconds: float = 3) -> None:
    original = getattr(owner, name)

    def slowed(*args: Any, **kwargs: Any) -> Any:
        time.sleep(milliseconds / 1e3)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, slowed)


@pytest.mark.parametrize("loser", ["graph", "plain"])
def test_slowed_variant_loses_whichever_it_is(simulated: None, monkeypatch: pytest.MonkeyPatch, loser: str) -> None:
    torch._dynamo.reset()
    owner, name = (SimulatedGraph, "replay") if loser == "graph" else (recorded_function, "run_plainly")
    slow(monkeypatch, owner, name)
    found = decide(SMALL, CPU).deciding
    assert found is not None
    [decision] = found.decisions
    assert (decision.chosen, decision.origin) == ("plain" if loser == "graph" else "graph", "measured")
    timed = {one.name: one for one in decision.variants}
    assert timed[loser].cost_us is not None and timed[loser].cost_us > 3 * US
    assert found.measuring_s > 0.004, "slow calls were answered for the sake of measuring"
    assert found.iterations >= 8 and found.steady_us < 3 * US


def test_stored_decision_is_found_and_called_right_and_a_wrong_one_wrong(
    simulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    slow(monkeypatch, SimulatedGraph, "replay")
    first = decide(SMALL, CPU).deciding
    torch._dynamo.reset()
    second = time_what_is_stored(SMALL, CPU, 0.1).judging
    assert first is not None and second is not None
    assert judge.kept(first, second) and [one.origin for one in second.decisions] == ["stored"]
    assert len(second.lookups_us) == 1
    assert set(second.timings) == {"ours", "inductor", ALWAYS.name}
    always = judge.over(second, (ALWAYS.name,))
    assert always is not None and always.high < 0.5, "it is not slowed, and graphs for everything are"

    [entry] = pygraph_inductor.decisions.list()
    pygraph_inductor.decisions.pin(entry.digest, "graph")
    torch._dynamo.reset()
    third = time_what_is_stored(SMALL, CPU, 0.1).judging
    assert third is not None and not judge.kept(first, third)
    assert judge.right(third) == "no" and judge.not_slower(third) == "no"


# -- from numbers alone


def judging(ours: float, plain: float, stock: float, always: float, origin: str = "stored") -> Judging:
    timings = {OURS.name: ours, INDUCTOR.name: plain, STOCK.name: stock, ALWAYS.name: always}
    decision = Decision("inference 0/0", "", "graph", origin, "cheaper")
    return Judging([200.0, 900.0], [decision], {name: timing(value) for name, value in timings.items()})


DECIDING = Deciding(10.0, 0.5, 20, 0.2, 100.0, [Decision("inference 0/0", "", "graph", "measured", "cheaper")])


@pytest.mark.parametrize(
    ("ours", "plain", "stock", "always", "right", "not_slower"),
    [
        (50, 100, 80, 50, "yes", "yes"),
        (100, 100, 120, 150, "yes", "yes"),
        (100, 100, 120, 50, "no", "yes"),
        (100, 50, 120, 100, "no", "no"),
        (100, 120, 80, 100, "yes", "no"),
        (101, 100, 200, 200, "yes", "yes"),
    ],
)
def test_verdicts(ours: float, plain: float, stock: float, always: float, right: str, not_slower: str) -> None:
    found = judging(ours, plain, stock, always)
    assert (judge.right(found), judge.not_slower(found)) == (right, not_slower)


def test_interval_that_holds_the_limit_settles_nothing() -> None:
    found = judging(100, 100, 100, 200)
    found.timings[OURS.name].rounds_throughput_us = [90.0, 125.0] * 5
    found.timings[INDUCTOR.name].rounds_throughput_us = [100.0] * 10
    assert judge.right(found) == "unsure"


@pytest.mark.parametrize("change", [{"origin": "measured"}, {"chosen": "plain"}, {"function": "another"}])
def test_warm_start_that_measures_or_chooses_otherwise_is_seen(change: dict[str, str]) -> None:
    found = judging(50, 100, 80, 50)
    assert judge.kept(DECIDING, found)
    found.decisions = [replace(found.decisions[0], **change)]
    assert not judge.kept(DECIDING, found)


def outcome(*judged: Judged) -> judge.Outcome:
    environment = {"device": "cuda", "gpu": "Some GPU", "cpu": "Some CPU", "torch": "2.11.0", "driver": "1"}
    return judge.Outcome(environment, {"id": "feed"}, True, 2.5, 1, True, list(judged))


def test_page_says_what_was_met_and_where_not() -> None:
    slow_to_find = judging(50, 100, 80, 50)
    slow_to_find.lookups_us = [1500.0]
    dear = replace(DECIDING, measuring_s=0.6)
    text = judge.page(
        outcome(
            Judged("A", deciding=DECIDING, judging=judging(50, 100, 80, 50)),
            Judged("B", deciding=dear, judging=slow_to_find),
            Judged("C", "RuntimeError: it broke"),
        )
    )
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert "2 of 2" in lines["the stored decision is right"]
    assert "1 of 2" in lines["measuring costs below 5 % of compiling"]
    assert "B: no" in lines["measuring costs below 5 % of compiling"]
    assert "B: no" in lines["a decision is found in under 1 ms"]
    assert "2.00%" in text and "550 us (longest 900 us)" in text and "RuntimeError: it broke" in text


def test_page_says_what_others_that_compile_make_slower() -> None:
    one = outcome(Judged("A", deciding=DECIDING, judging=judging(50, 100, 80, 50)))
    assert "at a time" not in judge.page(one)
    assert "16 at a time, which makes compiling and recording slower;" in judge.page(replace(one, jobs=16))
    disturbed = replace(one, jobs=16, undisturbed=False)
    assert "16 at a time, which makes compiling, recording and finding slower;" in judge.page(disturbed)


def test_decisions_are_looked_up_when_the_machine_is_quiet(simulated: None) -> None:
    torch._dynamo.reset()
    decide(SMALL, CPU)
    torch._dynamo.reset()
    asked: list[int] = []

    def wait() -> float:
        asked.append(pygraph_inductor.report().functions[-1].calls)
        time.sleep(0.2)
        return 0.1

    found = time_what_is_stored(SMALL, CPU, 0.1, wait).judging
    assert found is not None and len(asked) == 1
    [lookup] = found.lookups_us
    assert lookup < 0.1 * 1e6, "waiting for it is no part of it"


def test_outcome_survives_json() -> None:
    one = outcome(Judged("A", deciding=DECIDING, judging=judging(50, 100, 80, 50)), Judged("C", "it broke"))
    assert judge.decode(judge.Outcome, json.loads(json.dumps(encode(one)))) == one


def test_workload_that_does_not_come_through_is_a_row_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = []

    def in_turns(names: list[str], *_: Any, undisturbed: bool, **__: Any) -> dict[str, Any]:
        """The last one first, as it may happen; B fails in the first half, C in the second."""
        roles.append((undisturbed, list(names)))
        lost = "B" if undisturbed else "C"
        done = {"deciding": DECIDING} if undisturbed else {"judging": judging(50, 100, 80, 50)}
        return {
            name: ({}, "exit status 3: gone") if name == lost else (encode(Judged(name, **done)), None)
            for name in reversed(names)
        }

    monkeypatch.setattr(judge, "in_turns", in_turns)
    monkeypatch.setattr(judge, "choose", lambda names: [replace(SMALL, name=name) for name in names])
    found = judge.run(judge.parser().parse_args(["A", "B", "C", "--device", "cpu"])).judged
    assert roles == [(True, ["A", "B", "C"]), (False, ["A", "C"])]
    assert [(one.workload, one.reason) for one in found] == [
        ("A", None),
        ("B", "exit status 3: gone"),
        ("C", "exit status 3: gone"),
    ]
    assert [(one.deciding is not None, one.judging is not None) for one in found] == [
        (True, True),
        (False, False),
        (True, False),
    ]


def test_two_processes_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "judged.json", tmp_path / "judged.md"
    arguments = ["RL-ACT", "--device", "cpu", "--seconds", "0.2", "--out", str(out), "--page", str(page)]
    assert judge.main(arguments) == 0
    assert "decide RL-ACT: done" in capsys.readouterr().err
    [found] = judge.decode(judge.Outcome, json.loads(out.read_text())).judged
    assert found.deciding is not None and found.judging is not None
    assert found.deciding.decisions and {one.origin for one in found.deciding.decisions} == {"measured"}
    assert {one.origin for one in found.judging.decisions} == {"stored"}
    assert judge.kept(found.deciding, found.judging)
    assert len(found.judging.lookups_us) == len(found.judging.decisions)
    assert page.read_text() == judge.page(judge.decode(judge.Outcome, json.loads(out.read_text())))
    assert judge.main(["--read", str(out)]) == 0 and "RL-ACT" in capsys.readouterr().out


def test_processes_are_prepared_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = driver_for(CPU)
    monkeypatch.setattr(driver, "clock", None)
    with torch._dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=256):
        prepare_process(CPU)
        assert driver.clock is HostStopwatch and torch._dynamo.config.recompile_limit > 8
