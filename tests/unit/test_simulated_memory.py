"""The simulated driver: who has which memory during a capture, between replays, and after failures."""

from __future__ import annotations

import gc

import pytest
import torch

from pygraph_inductor.driver.protocol import CaptureFailed
from tests.unit.capturing import F32, capture, captured


def test_intermediates_reuse_freed_blocks_within_a_capture(driver):
    x = torch.ones(64)

    def body():
        first = x + 1
        second = first * 2
        del first
        return second + 3

    graph, result = captured(driver, body)
    assert result.data_ptr() == graph.nodes[0].areas[-1].word(0), "the trap of the rule on outputs"
    graph.replay()
    assert result.tolist() == [7] * 64


def test_two_captures_in_the_same_state_get_the_same_addresses(driver):
    x = torch.ones(64)
    pool = driver.new_pool()

    def words():
        graph, _ = capture(driver, lambda: ((x + 1) * (x + 2)).sum(), pool=pool)
        return graph, [area.content() for node in graph.nodes for area in node.areas]

    graphs, contents = zip(words(), words(), strict=True)
    assert contents[0] == contents[1] and len(graphs) == 2


def test_constants_made_in_the_capture_belong_to_the_graph(driver):
    x = torch.arange(6.0)
    graph, y = captured(driver, lambda: x[[4, 1]] + torch.tensor([10.0, 20.0]))
    gc.collect()
    torch.full((64,), -1)
    graph.replay()
    assert y.tolist() == [14, 21]


def test_constants_are_not_where_an_intermediate_was(driver):
    x = torch.ones(2)

    def body():
        first = x + 1
        second = first * 2
        del first
        return second + torch.tensor([10.0, 20.0])

    graph, y = captured(driver, body)
    graph.replay()
    assert y.tolist() == [14, 24]


def test_resizing_a_storage_is_refused(driver):
    x = torch.ones(4)
    with pytest.raises(CaptureFailed, match="resizes a storage"):
        capture(driver, lambda: torch.ops.inductor.resize_storage_bytes_(x, 0))
    assert x.tolist() == [1] * 4


def test_memory_is_shared_by_the_graphs_of_a_pool_and_returned_with_the_last(driver):
    x = torch.ones(1 << 10)
    pool = driver.new_pool()
    first, kept = capture(driver, lambda: (x + 1).sum(), pool=pool)
    reserved = driver.arena.reserved_bytes
    second, _ = capture(driver, lambda: (x * 2).sum(), pool=pool)
    assert driver.arena.reserved_bytes == reserved
    first.close()
    first.close()
    second.close()
    assert driver.arena.reserved_bytes == reserved, "a tensor still lives there"
    del kept, _
    driver.release_cached()
    assert driver.arena.reserved_bytes == 0 and driver.arena.allocated_bytes == 0


def test_pool_is_finished_by_a_broken_capture_and_by_its_last_graph(driver):
    x, pool = torch.ones(4), driver.new_pool()
    first, _ = capture(driver, lambda: x + 1, pool=pool)
    second, _ = capture(driver, lambda: x + 2, pool=pool)
    first.close()
    third, _ = capture(driver, lambda: x + 3, pool=pool)
    second.close()
    third.close()
    with pytest.raises(CaptureFailed, match="left by all its graphs"):
        capture(driver, lambda: x + 4, pool=pool)
    pool = driver.new_pool()
    kept, _ = capture(driver, lambda: x + 1, pool=pool)
    with pytest.raises(CaptureFailed, match="reads a tensor"):
        capture(driver, lambda: x.sum().item(), pool=pool)
    with pytest.raises(CaptureFailed, match="broke in it"):
        capture(driver, lambda: x + 1, pool=pool)
    kept.instantiate()
    kept.replay()


def test_failed_captures_leave_no_memory_behind(driver):
    x = torch.ones(100)
    for error in (ValueError("mine"), None):

        def body():
            y = x + 1
            if error:
                raise error
            y.sum().item()

        with pytest.raises((ValueError, CaptureFailed)):
            capture(driver, body)
    error = None
    gc.collect()
    driver.release_cached()
    assert driver.arena.reserved_bytes == 0


def test_out_of_memory_in_a_capture_passes_through(driver):
    x = torch.ones(1000)
    driver.arena.limit = 4096
    assert driver.free_bytes() == 4096
    with pytest.raises(torch.OutOfMemoryError):
        capture(driver, lambda: x + (x + 1))
    driver.arena.limit = None
    graph, y = captured(driver, lambda: x + (x + 1))
    graph.replay()
    assert y.eq(3).all() and driver.free_bytes() > 0


def test_reservations_are_filled_and_tensors_live_there(driver):
    memory = driver.reserve(4096, 0x3F)
    tensor = driver.tensor_at(memory.address + 256, 48, (3, 4), (4, 1), F32)
    assert memory.address % driver.alignment == 0 and memory.nbytes >= 4096
    assert tensor.data_ptr() == memory.address + 256 and tensor.untyped_storage().nbytes() == 48
    assert tensor.view(torch.uint8).eq(0x3F).all()
    tensor.zero_()
    memory.refill()
    assert tensor.view(torch.uint8).eq(0x3F).all()
    memory.close()


def test_owns_plain_cpu_tensors_only(driver):
    assert driver.owns(torch.ones(2)) and driver.owns(torch.tensor(1.0)) and driver.owns(torch.ones(2).expand(3, 2))
    assert not driver.owns(torch.ones(2, device="meta")) and not driver.owns(torch.ones(2).to_sparse())
