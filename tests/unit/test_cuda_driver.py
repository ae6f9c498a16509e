"""What of the CUDA driver can be checked without a device: who may capture when, and what is asked of the allocator."""

from __future__ import annotations

import contextlib
import threading
import time
from unittest import mock

import pytest
import torch

from pygraph_inductor.driver import cuda
from pygraph_inductor.driver.protocol import SMALL


def pretend_device(monkeypatch):
    monkeypatch.setattr(cuda, "_stream_of_our_own", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: mock.Mock(cuda_stream=0))
    monkeypatch.setattr(cuda, "supports_mapping", lambda _: True)


def test_threads_with_streams_of_their_own_capture_one_after_the_other(monkeypatch):
    """They share the stream of captures and the default generator, of which torch captures one at a time."""
    pretend_device(monkeypatch)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda **_: object())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "_library_state", contextlib.nullcontext)
    monkeypatch.setattr(cuda, "CudaGraph", lambda graph: graph)
    monkeypatch.setattr(cuda.CudaDriver, "_capture_into", lambda self, graph, body, pool, generators: body())
    driver = cuda.CudaDriver(torch.device("cuda", 0))
    inside, most = [], []

    def body():
        inside.append(None)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()

    threads = [threading.Thread(target=driver.capture, args=(body, None, {})) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1, 1, 1]


def test_what_is_cached_is_released_between_captures_of_ours_and_beside_those_of_others(monkeypatch):
    pretend_device(monkeypatch)
    driver, done = cuda.CudaDriver(torch.device("cuda", 0)), []

    def refuses():
        done.append(None)
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    monkeypatch.setattr(torch.cuda, "empty_cache", refuses)
    with driver._capture_lock:
        thread = threading.Thread(target=driver.release_cached)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not done
    thread.join(10)
    assert done and not thread.is_alive()
    driver.release_cached()


class Allocator:
    """As the caching one: a request gets the free block of its pool that fits best, or new memory."""

    def __init__(self, small, large, rounds_to=512, elsewhere=False):
        self.free = {True: sorted(small), False: sorted(large)}
        self.rounds_to, self.elsewhere = rounds_to, elsewhere
        self.new, self.filled = [], []

    def snapshot(self, **_):
        return [
            {
                "device": 0,
                "stream": 0,
                "segment_type": "small" if small else "large",
                "segment_pool_id": (0, 0),
                "blocks": [{"state": "inactive", "size": size} for size in sizes],
            }
            for small, sizes in self.free.items()
        ]

    def empty(self, size, **_):
        sizes = self.free[size <= SMALL]
        rounded = -(-size // self.rounds_to) * self.rounds_to
        found = next((number for number, block in enumerate(sizes) if block >= rounded), None)
        if found is None or self.elsewhere:
            self.new.append(rounded)
        else:
            rest = sizes.pop(found) - rounded
            if rest and size <= SMALL:
                sizes.append(rest)
                sizes.sort()
        return mock.Mock(fill_=lambda byte: self.filled.append(size))


def soiled(monkeypatch, allocator, **options):
    pretend_device(monkeypatch)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", allocator.snapshot)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: (1 << 30) + sum(allocator.new))
    monkeypatch.setattr(torch, "empty", allocator.empty)
    cuda.CudaDriver(torch.device("cuda", 0)).soil_free_memory(0xA5, **options)
    return allocator


SMALL_BLOCKS = [512, 512, 3 * 512, SMALL // 2, SMALL, SMALL + 512, 2 * SMALL]
LARGE_BLOCKS = [2 * SMALL, 3 * SMALL, 3 * SMALL, 9 * SMALL]


def test_all_that_is_free_is_filled_and_nothing_new(monkeypatch):
    allocator = soiled(monkeypatch, Allocator(SMALL_BLOCKS, LARGE_BLOCKS))
    assert not allocator.new and not any(allocator.free.values())
    assert sum(allocator.filled) == sum(SMALL_BLOCKS + LARGE_BLOCKS)


def test_large_blocks_are_left_alone_where_that_is_enough(monkeypatch):
    allocator = soiled(monkeypatch, Allocator(SMALL_BLOCKS, LARGE_BLOCKS), small_only=True)
    assert not allocator.new and allocator.free == {True: [], False: LARGE_BLOCKS}


@pytest.mark.parametrize("options", [{"elsewhere": True}, {"rounds_to": 2 * SMALL}])
def test_memory_that_is_not_to_be_had_is_asked_for_once(monkeypatch, options):
    """A thread may allocate to a pool of the user's, which would get as much again as is free, and keep it."""
    allocator = soiled(monkeypatch, Allocator([], LARGE_BLOCKS, **options))
    assert len(allocator.new) <= 1 and sum(allocator.new) <= 4 * SMALL
    allocator = soiled(monkeypatch, Allocator(SMALL_BLOCKS, LARGE_BLOCKS, elsewhere=True))
    assert len(allocator.new) == 1 and not allocator.filled
