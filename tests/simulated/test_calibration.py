"""Coefficients of the cost model: measured on the way that calls go, kept per device, and used by the plan."""

from __future__ import annotations

import dataclasses
import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pygraph_inductor
from pygraph_inductor.driver.protocol import no_collection
from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.recording.record import Recording
from pygraph_inductor.replay.plan import Engine
from pygraph_inductor.selection import calibrating, calibration, probing
from pygraph_inductor.selection.cost_model import Coefficients
from pygraph_inductor.selection.probing import Case
from tests.simulated.hand_written import HandWritten, check
from tests.simulated.test_indirect import consumed_by, engines, only

MEASURED = Coefficients(node_update=100.0, table_node=1.0, table_update=1.0, indirect_load=0.5)


@pytest.fixture(autouse=True)
def nothing_known() -> Any:
    calibration._known.clear()
    yield
    calibration._known.clear()


def test_measuring_goes_the_way_of_calls_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "LARGE", (1 << 18, 1 << 20))
    before = len(pygraph_inductor.report().functions)
    measured = calibrating.measure(SimulatedDriver(), rounds=3)
    assert all(number > 0 for number in measured.to_dict().values())
    # Rewriting a node costs something on every device; so does copying a megabyte.
    assert measured.node_update > 0.1
    assert measured.bytes_per_us < 1e6
    assert len(pygraph_inductor.report().functions) == before


@pytest.mark.parametrize("engine", ["patch", "indirect", "copy"])
def test_case_is_recorded_with_its_engine_and_its_memory_goes_at_once(engine: str) -> None:
    gc.collect()
    case = Case(engine, 3, slots=2, moving=True)
    with no_collection():  # nothing is left to it
        with probing.Turns(SimulatedDriver()) as turns:
            turns.add(case)
            turns.add(case.still)
            turns.round()
            recordings = [one for one in gc.get_objects() if type(one) is Recording]
            assert len(recordings) == (1 if engine == "patch" else 2)
            planned = {slot.engine.value for recording in recordings for slot in recording.player.plan.slots}
            assert planned == {"patch", engine}
            assert len(turns.times(case)) == len(turns.differences(case, case.still)) == 1
            assert all(0 < time < 1e6 for time in turns.times(case))
            del recordings
        assert not [one for one in gc.get_objects() if type(one) is Recording]


def test_measuring_without_replays_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_WARM", 0)
    with pytest.raises(RuntimeError, match="nothing was measured"), probing.Turns(SimulatedDriver()) as turns:
        turns.add(Case("patch", 1))


def test_what_was_measured_is_used_from_then_on(tmp_path: Path) -> None:
    driver = SimulatedDriver()
    assert calibration.coefficients(driver, str(tmp_path)) == Coefficients()
    calibration.write(driver, str(tmp_path), MEASURED)
    assert calibration.coefficients(driver, str(tmp_path)) == MEASURED
    assert calibration.coefficients(driver, None) == Coefficients()
    function = HandWritten(consumed_by(5), driver, decisions_folder=str(tmp_path))
    check(function, lambda: (torch.randn(8),))
    assert Engine.INDIRECT in engines(only(function))


def test_what_another_device_measured_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimulatedDriver()
    path = calibration.write(driver, str(tmp_path), MEASURED)
    identity = {**driver.identity(), "driver": "another"}
    monkeypatch.setattr(driver, "identity", lambda: identity)
    assert calibration.file_of(driver, str(tmp_path)) != path
    path.rename(calibration.file_of(driver, str(tmp_path)))  # even where a name says otherwise
    assert calibration.coefficients(driver, str(tmp_path)) == Coefficients()


@pytest.mark.parametrize("problem", ["text", "format", "negative", "nan", "missing", "bool", "list", "huge"])
def test_broken_file_means_the_defaults(tmp_path: Path, problem: str, caplog: Any) -> None:
    driver = SimulatedDriver()
    path = calibration.write(driver, str(tmp_path), MEASURED)
    content = json.loads(path.read_text())
    numbers = content["coefficients"]
    if problem == "format":
        content["format"] = 99
    elif problem == "missing":
        del numbers["copy_launch"]
    elif problem == "list":
        content = [content]
    elif problem != "text":
        numbers["copy_launch"] = {"negative": -1.0, "nan": float("nan"), "bool": True, "huge": 10**400}[problem]
    path.write_text("{" if problem == "text" else json.dumps(content))
    assert calibration.coefficients(driver, str(tmp_path)) == Coefficients()
    assert ("holds no coefficients" in caplog.text) is (problem != "format")


def test_every_coefficient_is_kept(tmp_path: Path) -> None:
    names = [field.name for field in dataclasses.fields(Coefficients)]
    distinct = Coefficients(**{name: 1.5 + number for number, name in enumerate(names)})
    driver = SimulatedDriver()
    calibration.write(driver, str(tmp_path), distinct)
    assert calibration.read(driver, str(tmp_path)) == distinct
