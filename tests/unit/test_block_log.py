"""The history that CUDA's allocator keeps: started and ended where it is needed, and read only where it can be."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pygraph_inductor.driver import block_log
from pygraph_inductor.driver.block_log import watched_blocks
from pygraph_inductor.driver.protocol import BlockEvent


class Allocator:
    """What the module asks of torch."""

    def __init__(self) -> None:
        self.backend = "native"
        self.enabled = False
        self.entries: list[dict[str, Any]] = []
        self.counts = {"allocated": 0, "freed": 0, "current": 0}
        self.calls: list[str | None] = []

    def record(self, enabled: str | None, **_: Any) -> None:
        self.calls.append(enabled)
        self.enabled = enabled is not None
        if not self.enabled:
            self.entries.clear()

    def history(self) -> bool:
        if self.backend != "native":
            raise RuntimeError("keeps no history")
        return self.enabled

    def stats(self, device: int) -> dict[str, Any]:
        if self.backend == "pluggable":
            raise RuntimeError("has no statistics")
        return {"allocation": {"all": dict(self.counts)}}

    def snapshot(self) -> dict[str, Any]:
        return {"device_traces": [[], list(self.entries)]}

    def allocate(self, address: int) -> None:
        self._count("allocated", 1)
        self._note("alloc", address)

    def free(self, address: int) -> None:
        self._count("freed", -1)
        self._note("free_requested", address)
        self._note("free_completed", address)

    def reset(self) -> None:
        self.counts |= {"allocated": 0, "freed": 0}

    def _count(self, name: str, change: int) -> None:
        self.counts[name] += 1
        self.counts["current"] += change

    def _note(self, action: str, address: int) -> None:
        if self.enabled:
            self.entries.append({"action": action, "addr": address, "size": 512})


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Allocator]:
    made = Allocator()
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", made.record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", made.snapshot)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", made.stats)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: made.backend)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", made.history, raising=False)
    yield made
    monkeypatch.setattr(block_log, "_ours", False)


def given(address: int) -> BlockEvent:
    return BlockEvent(address, 512, given=True)


def taken(address: int) -> BlockEvent:
    return BlockEvent(address, 512, given=False)


def test_a_log_has_what_happened_since_it_was_opened(allocator: Allocator) -> None:
    allocator.allocate(1024)
    with watched_blocks(1) as outer:
        allocator.allocate(2048)
        with watched_blocks(1) as inner:
            allocator.free(1024)
            allocator.allocate(4096)
            assert inner.so_far() == 2 and inner.events() == [taken(1024), given(4096)]
        assert outer.events() == [given(2048), taken(1024), given(4096)]
    assert allocator.calls == ["all", None]


def test_a_history_of_the_users_stays_on(allocator: Allocator) -> None:
    allocator.enabled = True
    with watched_blocks(1) as log:
        allocator.allocate(1024)
        assert log.events() is None
    assert allocator.enabled and not allocator.calls


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_of_an_allocator_that_keeps_no_history_nothing_is_known(allocator: Allocator, backend: str) -> None:
    allocator.backend = backend
    with watched_blocks(1) as log:
        assert log.so_far() == 0 and log.events() is None
    assert not allocator.calls


def test_a_history_that_the_user_ended_meanwhile_tells_nothing(allocator: Allocator) -> None:
    with watched_blocks(1) as outer:
        allocator.allocate(1024)
        allocator.record(None)
        assert outer.events() is None
        with watched_blocks(1) as inner:
            allocator.allocate(2048)
            assert inner.events() == [given(2048)] and outer.events() is None
    assert not allocator.enabled


def test_statistics_that_start_anew_meanwhile_tell_nothing(allocator: Allocator) -> None:
    for address in (1024, 2048):
        allocator.allocate(address)
    with watched_blocks(1) as log:
        allocator.allocate(4096)
        allocator.reset()
        for address in (8192, 10240, 12288):
            allocator.allocate(address)
        assert log.events() is None


def test_an_interrupt_while_the_history_is_started_leaves_none_on(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(enabled: str | None, **options: Any) -> None:
        allocator.record(enabled, **options)
        if enabled is not None:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", interrupted)
    with pytest.raises(KeyboardInterrupt), watched_blocks(1):
        raise AssertionError("not reached")
    assert not allocator.enabled


def test_an_interrupt_before_the_history_is_ended_leaves_it_to_the_next_log(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(enabled: str | None, **options: Any) -> None:
        if enabled is None:
            raise KeyboardInterrupt
        allocator.record(enabled, **options)

    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda.memory, "_record_memory_history", interrupted)
        with pytest.raises(KeyboardInterrupt), watched_blocks(1):
            pass
    with watched_blocks(1) as log:
        allocator.allocate(1024)
        assert log.events() == [given(1024)]
    assert not allocator.enabled


def test_a_signal_handler_may_open_a_log_while_another_one_is_opened_or_closed(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler(*_: Any) -> None:
        with watched_blocks(1) as log:
            allocator.allocate(1024)
            assert log.events() == [given(1024)]

    def signalled(enabled: str | None, **options: Any) -> None:
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", allocator.record)
        signal.raise_signal(signal.SIGUSR1)
        allocator.record(enabled, **options)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", signalled)
        with watched_blocks(1) as log:
            allocator.allocate(2048)
            assert log.events() == [given(2048)]
            monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", signalled)
        assert not allocator.enabled
    finally:
        signal.signal(signal.SIGUSR1, before)
