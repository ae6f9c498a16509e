"""The sweep over engines runs: its first point is measured, and what it says of it is possible."""

from __future__ import annotations

import functools
import json

import pytest
import torch

from pygraph_inductor.driver.devices import driver_for
from pygraph_inductor.selection import calibrating
from scripts.bench import engines


def test_points_of_the_sweep_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "measure", functools.partial(calibrating.measure, rounds=3))
    driver = driver_for(torch.device("cuda", torch.cuda.current_device()))
    sweep = [engines.Point(1, 1, 4 << 10), engines.Point(3, 2, 4 << 20)]
    content = json.loads(json.dumps(engines.measure(driver, sweep)))
    found = engines.loaded(content)
    assert [one.point for one in found] == sweep
    for one in found:
        assert one.rounds >= engines.MIN_ROUNDS
        assert set(one.latency) == set(one.error) == set(one.predicted) == set(engines.ENGINES)
        assert all(1.0 < time < 1e5 for time in one.latency.values())
    assert "| 3 | 2 | 4 MiB |" in engines.page(content, None)
