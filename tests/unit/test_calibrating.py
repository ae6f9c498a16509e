"""Coefficients are found again from the times of a machine that has them, disturbed as it is."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.selection import calibrating, probing
from pygraph_inductor.selection.cost_model import Coefficients
from pygraph_inductor.selection.probing import Case, Turns
from scripts.bench import engines
from scripts.bench.stats import half_interval
from tests.unit import pretended_machine

H200 = Coefficients(0.2, 0.5, 2.4, 0.15, 1.55, 2.05e6, 20.0)
OTHER = Coefficients(0.6, 1.5, 6.0, 0.4, 4.0, 3e5, 60.0)


@pytest.mark.parametrize("truth", [H200, OTHER])
def test_coefficients_are_those_of_the_machine(monkeypatch: pytest.MonkeyPatch, truth: Coefficients) -> None:
    monkeypatch.setattr(calibrating, "Turns", pretended_machine.made(truth))
    found = calibrating.measure(SimulatedDriver())
    for name in ("node_update", "indirect_load", "copy_launch", "bytes_per_us", "python_replay"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.06), name
    assert found.table_node == pytest.approx(truth.table_node, abs=0.5)
    # That anything moved at all costs something, too.
    assert found.table_update == pytest.approx(truth.table_update + pretended_machine.ANYTHING_MOVED, abs=0.3)


def test_undisturbed_machine_is_measured_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "Turns", pretended_machine.made(H200, noise=0.0))
    monkeypatch.setattr(pretended_machine, "ANYTHING_MOVED", 0.0)
    found = calibrating.measure(SimulatedDriver(), rounds=3).to_dict()
    assert found == pytest.approx(H200.to_dict())


def test_what_cannot_be_negative_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    free = Coefficients(0.0, 0.0, 0.0, 0.0, 0.0, 1e15, 0.0)
    monkeypatch.setattr(calibrating, "Turns", pretended_machine.made(free))
    found = calibrating.measure(SimulatedDriver(), rounds=5)
    assert all(number > 0 for number in dataclasses.astuple(found))


def test_calibration_is_apart_from_the_sweep() -> None:
    held_out = {(point.consumers, point.slots) for point in engines.points()}
    assert not held_out & {(case.kernels, case.slots) for case in calibrating.cases()}


def test_line_ignores_one_wild_point() -> None:
    assert calibrating.line([(1.0, 5.0), (2.0, 7.0), (4.0, 11.0), (10.0, 23.0)]) == (2.0, 3.0)
    slope, intercept = calibrating.line([(1.0, 5.0), (2.0, 7.0), (4.0, 11.0), (8.0, 99.0), (10.0, 23.0)])
    assert (slope, intercept) == (2.0, 3.0)


class _Noted:
    """Stands for a recorded function: notes who was called, with which inputs."""

    def __init__(self, calls: list[tuple[str, int]], name: str) -> None:
        self.calls, self.name = calls, name

    def __call__(self, inputs: list[Any]) -> None:
        self.calls.append((self.name, inputs[0].data_ptr()))


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    calls: list[tuple[str, int]] = []

    class Probe:
        def __init__(self, driver: Any, engine: str, kernels: int, native: bool) -> None:
            self.name = engine

        def __enter__(self) -> _Noted:
            return _Noted(calls, self.name)

        def __exit__(self, *_: object) -> None:
            calls.append((self.name, 0))

    monkeypatch.setattr(probing, "_Probe", Probe)
    return calls


def test_cases_take_turns_in_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = noted(monkeypatch)
    with Turns(SimulatedDriver()) as turns:
        for engine in ("patch", "copy"):
            turns.add(Case(engine, 1))
        calls.clear()
        turns.round()
        turns.round()
        a_turn = probing._SETTLE + probing._TIMED
        assert [name for name, _ in calls[::a_turn]] == ["patch", "copy", "copy", "patch"]
        assert all(len(turns.times(Case(engine, 1))) == 2 for engine in ("patch", "copy"))
        calls.clear()
    assert calls == [("copy", 0), ("patch", 0)]


def test_inputs_of_a_moving_case_are_elsewhere_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = noted(monkeypatch)
    with Turns(SimulatedDriver()) as turns:
        moving = Case("patch", 1, moving=True)
        for case in (moving, moving.still):
            turns.add(case)
        a_turn = probing._SETTLE + probing._TIMED
        for number in range(2):
            calls.clear()
            turns.round()
            turns_of = [calls[:a_turn], calls[a_turn:]]
            (moved, stayed) = reversed(turns_of) if number else turns_of
            assert all(a != b for a, b in itertools.pairwise(moved))
            assert len(set(stayed)) == 1


def test_half_an_interval_holds_the_median() -> None:
    assert half_interval([5.0]) == 0.0
    assert half_interval([float(number) for number in range(9)]) == 3.0
    assert half_interval([0.0] * 60 + [1000.0] * 40) == 0.0
    held = 0
    for seed in range(50):
        machine = pretended_machine.Machine(H200, seed=seed)
        case = Case("patch", 8, moving=True)
        machine.add(case)
        machine.add(case.still)
        for _ in range(15):
            machine.round()
        found = machine.differences(case, case.still)
        truth = machine.latency(case) - machine.latency(case.still)
        held += abs(sorted(found)[7] - truth) <= half_interval(found)
    assert held >= 42, held
