"""What holds for the tests on a GPU: the seam can be switched to the plain call, and all cores compile."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from tests.gpu import comparing
from tests.without_clock import take_clocks_away


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "slow: minutes instead of seconds; runs with SLOW_TESTS=1",
        "model: a whole model, forward and backward",
        "real_seam: the test needs the seam as installed, not the switchable one",
        "measured: it is measured whether graphs pay; without this mark every recording is used",
    ):
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not os.environ.get("SLOW_TESTS"):
            item.add_marker(pytest.mark.skip(reason="slow: set SLOW_TESTS=1"))


@pytest.fixture(scope="session", autouse=True)
def all_cores_compile() -> None:
    """Kernels of a model compile side by side; the workers of pytest-xdist share the cores."""
    from torch._inductor import config

    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    config.compile_threads = max(1, min(16, (os.cpu_count() or 1) // workers))


@pytest.fixture(autouse=True)
def every_recording_is_used(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("measured"):
        take_clocks_away(monkeypatch)


@pytest.fixture(autouse=True)
def switchable_seam(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plainly` works on every function that the test compiles."""
    if request.node.get_closest_marker("real_seam"):
        return
    from torch._inductor import compile_fx

    monkeypatch.setattr(compile_fx, "cudagraphify", comparing.two_ways(compile_fx.cudagraphify))


@pytest.fixture(autouse=True)
def device_left_clean() -> Iterator[None]:
    """What a test made is gone, and its errors are its own, before the next one starts."""
    import torch

    yield
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
