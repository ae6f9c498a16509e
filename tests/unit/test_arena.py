"""The simulated device's memory: reused at once as on a GPU, given back when nobody needs it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from pygraph_inductor.driver.arena import AddressRange, Arena, span_of

F32 = torch.float32


@pytest.fixture
def arena() -> Arena:
    return Arena()


def floats(pool, n):
    return pool.empty_strided((n,), (1,), F32)


def test_span_reaches_from_first_to_last_element():
    assert span_of((3, 4), (4, 1), 4) == 48
    assert span_of((3, 4), (8, 1), 4) == 80
    assert span_of((5,), (0,), 4) == 4
    assert span_of((), (), 8) == 8
    assert span_of((3, 0), (1, 1), 4) == 0


def test_freed_block_is_reused_at_once(arena):
    pool = arena.new_pool()
    first = floats(pool, 100)
    address = first.data_ptr()
    del first
    assert floats(pool, 90).data_ptr() == address


def test_a_view_keeps_its_block(arena):
    pool = arena.new_pool()
    first = floats(pool, 100)
    view = first[50:]
    address = first.data_ptr()
    del first
    assert floats(pool, 100).data_ptr() != address
    view.fill_(1.0)


def test_smallest_fitting_block_is_taken_and_split(arena):
    pool = arena.new_pool()
    blocks = [floats(pool, n) for n in (1024, 128, 512, 128, 256, 128)]
    addresses = [block.data_ptr() for block in blocks]
    del blocks[4], blocks[2], blocks[0]  # free: 4096, 2048 and 1024 bytes, none next to another
    tight = floats(pool, 300)
    rest = floats(pool, 100)
    assert tight.data_ptr() == addresses[2], "the middle one: the smallest that is large enough"
    assert rest.data_ptr() == addresses[2] + 1536, "what was left of it is smaller than the other blocks"


def test_neighbouring_free_blocks_become_one(arena):
    pool = arena.new_pool()
    blocks = [floats(pool, 128) for _ in range(4)]
    address = blocks[0].data_ptr()
    end = floats(pool, 128)
    for order in (2, 0, 3, 1):
        blocks[order] = None
    assert floats(pool, 4 * 128).data_ptr() == address
    assert end.data_ptr() == address + 4 * 512


def test_same_requests_get_same_addresses(arena):
    pool = arena.new_pool()
    pool.retain()

    def requests():
        a, b = floats(pool, 300), floats(pool, 5000)
        trace = [a.data_ptr(), b.data_ptr()]
        del a
        c = floats(pool, 10)
        return [*trace, c.data_ptr(), floats(pool, 1_000_000).data_ptr()]

    assert requests() == requests() == requests()


def test_storage_is_as_large_as_asked(arena):
    tensor = arena.new_pool().empty_strided((3, 5), (1, 3), torch.float64)
    assert tensor.untyped_storage().nbytes() == 120
    assert tensor.stride() == (1, 3)
    assert tensor.data_ptr() % 512 == 0


def test_empty_tensors_take_no_memory(arena):
    pool = arena.new_pool()
    tensor = pool.empty_strided((0, 3), (3, 1), F32)
    assert tensor.shape == (0, 3) and tensor.stride() == (3, 1)
    assert arena.allocated_bytes == arena.reserved_bytes == 0


def test_memory_returns_when_the_last_user_is_gone(arena):
    pool = arena.new_pool()
    pool.retain()
    pool.retain()
    tensor = floats(pool, 1000)
    del tensor
    assert arena.allocated_bytes == 0 and arena.reserved_bytes > 0
    pool.release()
    assert arena.reserved_bytes > 0, "another graph still writes there"
    pool.release()
    assert arena.reserved_bytes == 0


def test_memory_outlives_the_last_user_while_a_tensor_lives_in_it(arena):
    pool = arena.new_pool()
    pool.retain()
    tensor = floats(pool, 1000)
    pool.release()
    del pool
    gc.collect()
    assert arena.reserved_bytes > 0
    assert tensor.fill_(2.0).sum() == 2000
    del tensor
    gc.collect()
    assert arena.reserved_bytes == 0


def test_large_blocks_have_segments_of_their_own(arena):
    pool = arena.new_pool()
    small, large = floats(pool, 10), floats(pool, 8_000_000)
    ranges = sorted(pool.ranges())
    assert len(ranges) == 2
    assert any(first <= large.data_ptr() and large.data_ptr() + 32_000_000 <= end for first, end in ranges)
    assert any(first <= small.data_ptr() < end for first, end in ranges)


def test_limit_is_an_out_of_memory_error_and_not_for_ever(arena):
    pool = arena.new_pool()
    arena.limit = 4096
    tensor = floats(pool, 900)
    with pytest.raises(torch.OutOfMemoryError):
        floats(pool, 900)
    del tensor
    floats(pool, 900)


def test_finalizer_during_an_allocation_is_not_lost(arena):
    """A cycle that the collector frees while the pool is locked: the block comes back with the next request."""
    pool = arena.new_pool()
    pool.retain()
    tensor = floats(pool, 100)
    with pool._lock:
        del tensor
        assert arena.allocated_bytes == 512
    pool.settle()
    assert arena.allocated_bytes == 0


def test_pool_is_forgotten_with_its_last_tensor(arena):
    pool = arena.new_pool()
    tensor = floats(pool, 10)
    alive = weakref.ref(pool)
    del pool
    gc.collect()
    assert alive() is not None
    del tensor
    gc.collect()
    assert alive() is None


def test_address_range_reads_zero_and_is_aligned():
    memory = AddressRange(1000)
    flat = torch.frombuffer(memory._memory, dtype=torch.uint8, count=1000)
    assert memory.address % 256 == 0 and flat.data_ptr() == memory.address
    assert not flat.any()
    del flat
    memory.close()
    memory.close()


def test_huge_address_ranges_cost_nothing():
    memory = AddressRange(1 << 40)
    memory.close()


def test_graph_in_a_cycle_of_garbage_may_go_after_its_pool() -> None:
    """The collector finalizes garbage in any order."""
    arena = Arena()
    pool = arena.new_pool()
    pool.retain()
    tensor = pool.empty_strided((64,), (1,), torch.float32)
    del tensor
    assert arena.reserved_bytes > 0
    pool.__del__()
    pool.release()
    assert (arena.allocated_bytes, arena.reserved_bytes) == (0, 0)
    del pool
    assert (arena.allocated_bytes, arena.reserved_bytes) == (0, 0)
