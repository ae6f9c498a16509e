"""One call of the driver fails, whichever: nobody but the log hears of it, and nothing is left behind."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pygraph_inductor.driver import simulated
from pygraph_inductor.driver.simulated import SimulatedDriver, SimulatedGraph
from pygraph_inductor.driver.thread_globals import original_of
from pygraph_inductor.recording import capture_pair
from pygraph_inductor.recording.pools import pool_for
from pygraph_inductor.settings import Settings
from tests.simulated.hand_written import F32, HandWritten, same_bits

OF_DRIVER = (
    *("empty", "new_table", "reserve", "tensor_at", "capture", "new_pool", "owns", "is_capturing", "current_stream"),
    *("random_state", "set_random_state", "free_bytes", "soil_free_memory", "nodes_so_far", "pool_bytes"),
    "is_held",
)
OF_GRAPHS = ("instantiate", "update", "disable")  # what a launch raises is the caller's: it may have run by half


class Fails:
    """Raises `error` at the n-th of the calls that it is asked to look at, while it is switched on."""

    def __init__(self, error: BaseException, number: int) -> None:
        self.error = error
        self.remaining = number
        self.on = False

    def looking_at(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.remaining -= self.on
            if self.on and self.remaining == 0:
                raise self.error
            return function(*args, **kwargs)

        return call


def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    between, out = (namespace["empty_strided_cpu"]((8,), (1,), F32) for _ in range(2))
    namespace["cpp_fused_0"](between, x, y)
    namespace["cpp_fused_0"](x, between, x)
    namespace["cpp_fused_0"](out, between, x)
    return (out, *torch.sort(z), x)


def fails_once(fails: Fails, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimulatedDriver()
    function = HandWritten(body, driver, mutated_inputs=frozenset({0}), settings=Settings(engine=engine))
    for name in OF_DRIVER:
        setattr(driver, name, fails.looking_at(getattr(driver, name)))
    with monkeypatch.context() as patch:
        for name in OF_GRAPHS:
            patch.setattr(SimulatedGraph, name, fails.looking_at(getattr(SimulatedGraph, name)))
        for number in range(5):
            inputs = [torch.randn(8) for _ in range(3)]
            copies = [tensor.clone() for tensor in inputs]
            wanted = function.run(list(copies))
            fails.on = number > 0
            try:
                got = function(*inputs)
            except KeyboardInterrupt:
                assert fails.remaining <= 0
                continue
            finally:
                fails.on = False
            assert all(map(same_bits, got, wanted)) and torch.equal(inputs[0], copies[0])
    assert gc.isenabled() and not simulated._thread.replaying and simulated._thread.recorder is None
    assert all(value is original_of(value) for value in function.namespace.values())
    assert not pool_for(driver).busy_word.value


@pytest.mark.parametrize("engine", ["patch", "indirect", "copy"])
@pytest.mark.parametrize("kind", [RuntimeError, torch.OutOfMemoryError, KeyboardInterrupt])
def test_any_one_call_of_the_driver(
    engine: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(capture_pair, "SMALL", 0)  # so that captures are made apart, too
    for number in itertools.count(1):
        fails = Fails(kind("no"), number)
        fails_once(fails, engine, monkeypatch)
        if fails.remaining > 0:
            break
    assert number > 40
