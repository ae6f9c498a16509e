"""The sweep over engines: its points, its predictions, and the page that is made from a file alone."""

from __future__ import annotations

import functools
import itertools
import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.selection import calibrating, probing
from pygraph_inductor.selection.cost_model import Coefficients
from scripts.bench import engines
from scripts.bench.engines import Measured, Point
from tests.unit import pretended_machine

ROUND = Coefficients(1.0, 2.0, 8.0, 0.5, 30.0, 1000.0, 100.0)


def measured(point: Point, **latency: float) -> Measured:
    return Measured(point, 10.0, latency, dict.fromkeys(latency, 0.2), engines.predicted(point, ROUND), 9)


def test_points_cover_the_ranges_and_fit_the_device() -> None:
    points = engines.points()
    assert len(set(points)) == len(points) > 30
    assert {p.consumers for p in points} >= {1, 256}
    assert {p.slots for p in points} >= {1, 512}
    assert {p.nbytes for p in points} >= {4 << 10, 1 << 30}
    assert all(p.slots * p.nbytes <= 12 << 30 for p in points)


def test_first_points_already_cover_the_ranges() -> None:
    """Time may be over at any of them."""
    points = engines.points()[:7]
    assert {p.consumers for p in points} >= {1, 256}
    assert {p.slots for p in points} >= {1, 512}
    assert min(p.nbytes for p in points) == 4 << 10 and max(p.nbytes for p in points) == 1 << 30


def test_predictions_are_the_models() -> None:
    found = engines.predicted(Point(consumers=10, slots=4, nbytes=2000), ROUND)
    assert found == {"patch": 40.0, "indirect": 0.5 * 40 + 10, "copy": 4 * (30 + 1 + 2)}


def test_choice_counts_as_good_if_it_is_nearly_the_best() -> None:
    point = Point(100, 1, 1 << 16)  # the model says: indirect
    good = measured(point, patch=104.0, indirect=100.0, copy=300.0)
    near = measured(point, patch=96.0, indirect=100.0, copy=300.0)
    wrong = measured(point, patch=50.0, indirect=100.0, copy=300.0)
    assert [one.chosen for one in (good, near, wrong)] == ["indirect"] * 3
    assert [one.best for one in (good, near, wrong)] == ["indirect", "patch", "patch"]
    assert engines.share_within([good, near, wrong]) == pytest.approx(2 / 3)


REFRESH = [
    {
        "length": length,
        "still": 40.0,
        "host": {"node": 1.0, "ring": 2.0, "patch": 90.0},
        "latency": {"node": node, "ring": 48.0, "patch": 130.0},
    }
    for length, node in ((1, 50.0), (500, 44.0))
]


def content() -> dict[str, Any]:
    found = [measured(point, patch=20.0, indirect=30.0, copy=200.0) for point in engines.points()[:5]]
    points = [asdict(one) for one in found]
    return {"device": "a device", "torch": "2.0", "coefficients": ROUND.to_dict(), "points": points}


def test_page_is_made_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "draw", lambda content, file: bool(file.write_text("a plot")))
    (tmp_path / "in.json").write_text(json.dumps(content() | {"left_out": 3, "table_refresh": REFRESH}))
    command = ["engines", "--read", str(tmp_path / "in.json"), "--page", str(tmp_path / "engines.md")]
    monkeypatch.setattr(sys, "argv", command)
    assert engines.main() == 0
    text = (tmp_path / "engines.md").read_text()
    assert "a device, torch 2.0. Each" in text and "(engines.svg)" in text
    assert text.count("\n| ") == 1 + 7 + 1 + 5 + 1 + 2
    assert "of the 5 points; 3 more were left out" in text
    assert "| 500 | 40.0 | 1.00 | 2.00 | 90.00 | 44.0 | 48.0 | 130.0 |" in text
    assert "In latency the node is the fastest of the three for 500 addresses." in text
    assert "| 1 | 1 | 4 KiB | 10.0 | 10.0 ± 0.2 (1.0) | 20.0 ± 0.2 (10.5) |" in text
    assert (tmp_path / "engines.svg").read_text() == "a plot"


def test_page_names_driver_and_commit() -> None:
    known = {"environment": {"driver": "580.1"}, "commit": {"id": "0123456789abcdef"}}
    assert "a device, torch 2.0, driver 580.1, commit 0123456789ab. Each" in engines.page(content() | known, None)
    unknown = {"environment": {"driver": None}, "commit": {"id": None}}
    assert "a device, torch 2.0. Each" in engines.page(content() | unknown, None)


def test_page_without_a_plot_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "in.json").write_text(json.dumps(content()))
    command = ["engines", "--read", str(tmp_path / "in.json"), "--page", str(tmp_path / "engines.md")]
    monkeypatch.setattr(sys, "argv", command)
    assert engines.main() == 0
    text = (tmp_path / "engines.md").read_text()
    assert "There is no plot" in text and "engines.svg" not in text and "left out" not in text
    assert "Ways to refresh the table" not in text
    assert "no plot: matplotlib is not installed" in capsys.readouterr().out
    assert not (tmp_path / "engines.svg").exists()


def test_plot_of_the_same_numbers_is_the_same_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    engines.draw(content(), tmp_path / "one.svg")
    engines.draw(content(), tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_sweep_measures_every_engine_at_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "LARGE", (1 << 14, 1 << 16))
    monkeypatch.setattr(calibrating, "measure", functools.partial(calibrating.measure, rounds=2))
    sweep = [Point(1, 1, 4096), Point(2, 3, 4096)]
    found = engines.loaded(json.loads(json.dumps(engines.measure(SimulatedDriver(), sweep))))
    assert [one.point for one in found] == sweep
    for one in found:
        assert set(one.latency) == set(one.predicted) == set(one.error) == set(engines.ENGINES)
        assert all(0 < number < 1e6 for number in one.latency.values())
        assert one.rounds >= engines.MIN_ROUNDS


H200 = Coefficients(0.2, 0.5, 2.4, 0.15, 1.55, 2.05e6, 20.0)


def swept(monkeypatch: pytest.MonkeyPatch, noise: float, step: float, **limits: Any) -> dict[str, Any]:
    """A sweep on a pretended machine, with a clock that goes on by `step` seconds whenever somebody looks."""
    monkeypatch.setattr(engines, "time", SimpleNamespace(monotonic=itertools.count(0.0, step).__next__))
    monkeypatch.setattr(calibrating, "Turns", pretended_machine.made(H200, noise))
    monkeypatch.setattr(probing, "Turns", pretended_machine.made(H200, noise))
    return engines.measure(SimulatedDriver(), engines.points(), **limits)


def test_disturbances_change_neither_what_is_measured_nor_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    found = engines.loaded(swept(monkeypatch, noise=1.0, step=0.01))
    assert [one.point for one in found] == engines.points()
    assert engines.share_within(found) == 1.0
    machine = pretended_machine.Machine(H200)
    for one in found:
        size = one.point.nbytes // 4
        for engine in engines.ENGINES:
            case = probing.Case(engine, one.point.consumers, one.point.slots, size, moving=True)
            added = machine.latency(case) - machine.latency(case.still)
            assert one.latency[engine] - one.still == pytest.approx(added, abs=0.03 * machine.latency(case)), one


def test_wrong_coefficients_show_in_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is thought to cost nothing: the sweep once found this, and so it would again."""
    free = Coefficients(**{**H200.to_dict(), "copy_launch": 0.001})
    monkeypatch.setattr(calibrating, "measure", lambda driver: free)
    found = engines.loaded(swept(monkeypatch, noise=1.0, step=0.01))
    assert engines.share_within(found) < 0.95


def test_a_recording_chooses_what_pays_for_itself_and_copies_little() -> None:
    def planned(nbytes: int = 4096, **predicted: float) -> str:
        return Measured(Point(1, 1, nbytes), 10.0, predicted, {}, predicted, 9).planned

    assert planned(patch=5.0, indirect=1.0, copy=9.0) == "indirect"
    assert planned(patch=3.0, indirect=2.1, copy=9.0) == "patch"  # 0.9 µs a call do not pay for a twin
    assert planned(patch=5.0, indirect=4.5, copy=1.5) == "copy"
    assert planned(patch=5.0, indirect=2.0, copy=1.5) == "indirect"  # copies save 0.5 µs
    assert planned(patch=5.0, indirect=4.5, copy=1.5, nbytes=1 << 21) == "patch"


def test_rounds_end_when_they_tell_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = engines.loaded(swept(monkeypatch, noise=0.0, step=0.01))
    disturbed = engines.loaded(swept(monkeypatch, noise=4.0, step=0.01))
    assert {one.rounds for one in quiet} <= {15, 16}
    assert {one.rounds for one in disturbed} <= set(range(15, 62))
    short = [one.rounds for one in disturbed if one.point.consumers * one.point.slots == 1]
    long = [one.rounds for one in disturbed if one.point.consumers * one.point.slots > 1000]
    assert min(short) > max(long) <= 16


def test_sweep_ends_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point that was begun is dropped unless it has its rounds."""
    monkeypatch.setattr(calibrating, "measure", lambda driver: ROUND)
    a_point = 4 + 1 + engines.MIN_ROUNDS  # looks at the clock: for each case, at the beginning, after each round
    for seconds, points in ((a_point, 1), (2 * a_point - 1, 1), (2 * a_point, 2)):
        found = swept(monkeypatch, noise=0.0, step=1.0, seconds=seconds)
        assert [one.point for one in engines.loaded(found)] == engines.points()[:points]
        assert found["left_out"] == len(engines.points()) - points


def test_sweep_without_any_point_makes_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.json").write_text(json.dumps(content() | {"points": []}))
    monkeypatch.setattr(sys, "argv", ["engines", "--read", str(tmp_path / "in.json"), "--page", str(tmp_path / "p.md")])
    assert engines.main() == 1
    assert not (tmp_path / "p.md").exists()
