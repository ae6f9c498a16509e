"""Finalizers and signal handlers call compiled functions, too: at any line of ours, also where a lock is held.

A trace function stands for them here: it calls once at every line that calls reach.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pygraph_inductor
from pygraph_inductor.settings import Settings
from tests.simulated.hand_written import F32, HandWritten
from tests.simulated.timed import US, Clock, Timed

OURS = ("recording/", "replay/", "selection/", "reporting/", "driver/protocol", "driver/thread_globals")


def body(names: dict[str, Any], x: torch.Tensor) -> Any:
    mixed, out = (names["empty_strided_cpu"](tuple(x.size()), (1,), F32) for _ in range(2))
    names["cpp_fused_0"](mixed, x)
    names["cpp_fused_0"](out, mixed, x)
    return (out,)


def numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=F32) * 0.5  # random ones would move the state that outer calls have to leave


def ends(work: Callable[[], None]) -> None:
    """Do it in a thread of its own, so that a deadlock is a failure."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive(), "it waits for itself"
    if errors:
        raise errors[0]


class AtEveryLine:
    """While it is open, calls `inner` at each line of ours that is reached for the first time."""

    def __init__(self, inner: Callable[[int], None], is_capturing: Callable[[], bool]) -> None:
        self._inner = inner
        self._is_capturing = is_capturing
        self._seen: set[tuple[str, int]] = set()

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def __len__(self) -> int:
        return len(self._seen)

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        if not any(f"pygraph_inductor/{name}" in frame.f_code.co_filename for name in OURS):
            return None
        line = (frame.f_code.co_filename, frame.f_lineno)
        # What a handler launches during a capture is captured, whoever captures.
        if event == "line" and line not in self._seen and not self._is_capturing():
            self._seen.add(line)
            self._inner(len(self._seen))
        return self._trace


@pytest.mark.parametrize("native", [True, False], ids=["C", "Python"])
@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_at_every_line(whose: str, native: bool) -> None:
    few = Settings(max_recordings=2)
    function = Timed(body, Clock(plain=(300 * US, 300 * US)), native=native, settings=few)
    other = HandWritten(body, function.driver, "another", native=native, settings=few)
    inner = function if whose == "its own" else other

    def call(called: HandWritten, x: torch.Tensor) -> None:
        assert torch.equal(called(x)[0], called.run([x])[0])

    lines = AtEveryLine(lambda count: call(inner, numbers(8 + count % 3)), function.driver.is_capturing)

    def work() -> None:
        for number in range(60):
            x = numbers(8 + (number > 40) * (number % 4))
            with lines:
                (got,) = function(x)
            assert torch.equal(got, function.run([x])[0])
            if number % 20 == 19:
                with lines:
                    pygraph_inductor.report()

    ends(work)
    assert len(lines) > 800 and function.log.replays > 20
    if whose == "another's":
        assert other.log.replays > 20


def test_a_report_amidst_a_call() -> None:
    """As a signal handler may ask for one."""
    function = HandWritten(body)
    lines = AtEveryLine(lambda count: function.function.refresh(), function.driver.is_capturing)

    def work() -> None:
        for _ in range(6):
            with lines:
                function(numbers(8))

    ends(work)
    assert len(lines) > 300 and function.log.replays == 4
