"""Marks of the field reports."""

from __future__ import annotations

import pytest

from tests.without_clock import take_clocks_away


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "simulated: runs on the simulated driver, with C++ kernels compiled for the CPU")


@pytest.fixture(autouse=True)
def every_recording_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    take_clocks_away(monkeypatch)
