"""The simulated driver as every test here finds it: CPU graphs are its business, and nothing is set to go wrong."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

import pygraph_inductor
from pygraph_inductor.driver.capturing import Faults
from pygraph_inductor.driver.devices import driver_for
from pygraph_inductor.driver.simulated import SimulatedDriver, SimulatedGraph
from pygraph_inductor.selection import drift
from tests.simulated.timed import Clock, spending


@pytest.fixture
def driver() -> Iterator[SimulatedDriver]:
    """The driver that compiled functions use."""
    driver = driver_for(torch.device("cpu"))
    assert isinstance(driver, SimulatedDriver)
    driver.waits.clear()
    yield driver
    driver.faults = Faults()
    driver.arena.limit = None


# These pass with every engine: what they test, no engine may change.
_WITH_BOTH_ENGINES = ("test_adversarial", "test_aliasing", "test_operator_outputs", "test_outputs")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.endswith(_WITH_BOTH_ENGINES):
        metafunc.parametrize("engine_of_all", ["auto", "indirect"], indirect=True)


@pytest.fixture(autouse=True)  # a fixture that was only parametrized would not be set up
def engine_of_all(request: pytest.FixtureRequest) -> Iterator[str]:
    """The engine of every function that the test makes; the environment's where nothing is said."""
    engine = getattr(request, "param", pygraph_inductor.config.engine)
    with pygraph_inductor.config.patch(engine=engine):
        yield engine


@pytest.fixture(autouse=True)
def simulating() -> Iterator[None]:
    with pygraph_inductor.config.patch(simulate=True):
        yield
    torch._dynamo.reset()
    gc.collect()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that replays move, too."""
    clock = Clock()
    monkeypatch.setattr(SimulatedGraph, "replay", spending(clock))
    return clock


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "EVERY", 8)
    monkeypatch.setattr(drift, "_RARER", 1)
