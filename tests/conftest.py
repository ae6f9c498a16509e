"""What holds for every test: a compile cache in the checkout, a fresh compiler, GPU tests skipped without a GPU."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.alone import in_turn

ROOT = Path(__file__).resolve().parent.parent

# Read when torch is imported, so they are set here and not in a fixture. One compile thread: the pool of worker
# processes costs more than it saves on small graphs, and tests run in parallel already.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".cache" / "inductor"))

if os.environ.get("TESTS_WITHOUT_LAUNCHER") == "1":
    # As if the launcher in C could not be compiled. Before tests are collected: some ask then whether it is there.
    from pygraph_inductor.replay import native

    native._modules[:] = [None]


@functools.cache
def missing_gpu() -> str | None:
    """Why no GPU test can run here; None if they can."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "no CUDA device is visible"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(ROOT / "tests" / "gpu"):
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("gpu") and (reason := missing_gpu()):
            item.add_marker(pytest.mark.skip(reason=f"GPU test: {reason}"))
    # All workers wait for a test that is alone, as it waits for them: least at the end, where they have little to do.
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


@pytest.fixture(autouse=True)
def takes_turns(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    of_all_workers = tmp_path_factory.getbasetemp().parent
    with in_turn(of_all_workers, alone=request.node.get_closest_marker("alone") is not None):
        yield


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    """No compiled function, counter or report of an earlier test is left; costs nothing where none was made."""
    if "torch._dynamo" in sys.modules:
        import torch._dynamo.utils

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    if facts := sys.modules.get("pygraph_inductor.reporting.facts"):
        facts.clear()
