"""Marks of the field reports."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "simulated: runs on the simulated driver, with C++ kernels compiled for the CPU")
