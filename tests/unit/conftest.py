"""A simulated driver of its own for every test that asks for one."""

from __future__ import annotations

import pytest

from pygraph_inductor.driver.simulated import SimulatedDriver


@pytest.fixture
def driver() -> SimulatedDriver:
    return SimulatedDriver()
