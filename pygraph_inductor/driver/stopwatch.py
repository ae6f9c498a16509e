"""Times calls on a CUDA device with events, and says what a time measured there holds for.

Nothing here waits: events are queried, and a call in flight stays in flight.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from pygraph_inductor.driver.libcuda import bindings, checked
from pygraph_inductor.driver.protocol import Timing


@contextlib.contextmanager
def _unnoticed_by_captures() -> Iterator[None]:
    """A query breaks the capture of another thread, unless this thread says that it knows what it does."""
    cu = bindings()
    relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(cu.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        checked(cu.cuThreadExchangeStreamCaptureMode(before))


class EventStopwatch:
    """A pair of events around a call, and the host's clock inside them."""

    def __init__(self) -> None:
        self._began = torch.cuda.Event(enable_timing=True)
        self._ended = torch.cuda.Event(enable_timing=True)
        self._behind = False
        self._host = 0

    def start(self) -> None:
        with _unnoticed_by_captures():
            self._behind = not torch.cuda.current_stream().query()
        self._began.record()
        self._host = time.perf_counter_ns()

    def stop(self) -> None:
        self._host = time.perf_counter_ns() - self._host
        self._ended.record()

    def read(self) -> Timing | None:
        with _unnoticed_by_captures():
            if not self._ended.query():
                return None
            return Timing(self._host, round(self._began.elapsed_time(self._ended) * 1e6), self._behind)


@functools.cache
def identity_of(device: torch.device) -> dict[str, str]:
    """The model of a GPU, the clocks it may run at, and its driver."""
    found = torch.cuda.get_device_properties(device)
    clocks = [str(getattr(found, name, "?")) for name in ("clock_rate", "memory_clock_rate")]
    driver = str(checked(bindings().cuDriverGetVersion()))
    with contextlib.suppress(OSError):
        driver += " " + Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    return {
        "device": f"{found.name}, {found.multi_processor_count} processors, {found.total_memory} bytes",
        "clocks": "/".join(clocks),
        "driver": driver,
    }
