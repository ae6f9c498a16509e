"""Verification on the device: memory that nobody writes, and what it may take."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pygraph_inductor
from pygraph_inductor import config
from pygraph_inductor.driver.devices import driver_for
from pygraph_inductor.recording.contents import digests
from tests.gpu.comparing import CALLS, DEVICE, agree, compiled
from tests.unit.fresh_interpreter import succeeds

pytestmark = pytest.mark.timeout(300)


def test_free_memory_is_soiled_and_nothing_else() -> None:
    driver = driver_for(torch.device("cuda", torch.cuda.current_device()))
    kept = [torch.full((size,), 7, dtype=torch.uint8, device=DEVICE) for size in (100, 5000, 3 << 20, 30 << 20)]
    freed = [torch.zeros(size, dtype=torch.uint8, device=DEVICE) for size in (100, 5000, 3 << 20, 30 << 20)]
    del freed
    gc.collect()
    reserved = torch.cuda.memory_reserved()
    with driver.guard():
        driver.soil_free_memory(0xA5)
    # Before anything is compared, which takes memory and gives it back.
    again = [torch.empty(size, dtype=torch.uint8, device=DEVICE) for size in (100, 5000, 3 << 20, 30 << 20)]
    assert torch.cuda.memory_reserved() == reserved
    assert all(bool((tensor == 7).all()) for tensor in kept)
    for tensor in again:
        assert bool((tensor == 0xA5).all()), tensor.numel()


def test_only_small_free_memory_is_soiled_where_that_is_enough() -> None:
    driver = driver_for(torch.device("cuda", torch.cuda.current_device()))
    sizes = (100, 5000, 3 << 20, 30 << 20)
    freed = [torch.full((size,), 9, dtype=torch.uint8, device=DEVICE) for size in sizes]
    del freed
    gc.collect()
    with driver.guard():
        driver.soil_free_memory(9)
        driver.soil_free_memory(0xA5, small_only=True)
    again = [torch.empty(size, dtype=torch.uint8, device=DEVICE) for size in sizes]
    assert [bool((tensor == 0xA5).all()) for tensor in again] == [True, True, False, False]


def test_soiling_takes_no_memory_for_a_pool_of_the_users() -> None:
    """A thread that allocates there gets none of what is free elsewhere, and keeps what it gets."""
    driver = driver_for(torch.device("cuda", torch.cuda.current_device()))
    freed = [torch.zeros(size, dtype=torch.uint8, device=DEVICE) for size in (100, 5000, 3 << 20, 300 << 20)]
    del freed
    gc.collect()
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool), driver.guard():
        driver.soil_free_memory(0xA5)
    assert torch.cuda.memory_reserved() - before <= 32 << 20


def test_stand_ins_hold_what_they_shall_while_other_streams_are_busy() -> None:
    """Verification runs on the caller's stream, and a kernel that reads a stand-in must find an index that is valid."""
    driver = driver_for(torch.device("cuda", torch.cuda.current_device()))
    torch.cuda._sleep(1 << 29)  # a fraction of a second, on the default stream
    with torch.cuda.stream(torch.cuda.Stream()):
        reserved = driver.reserve(4096, 0x3F)
        tensor = driver.tensor_at(reserved.address, 4096, (4096,), (1,), torch.uint8)
        assert bool((tensor == 0x3F).all())
        reserved.close()


_EXPANDABLE = """
import torch
from pygraph_inductor.driver.devices import driver_for

driver = driver_for(torch.device("cuda", 0))
kept = torch.full((100,), 7, dtype=torch.uint8, device="cuda")
freed = [torch.zeros(100, dtype=torch.uint8, device="cuda") for _ in range(9)]
assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
del freed
with driver.guard():
    driver.soil_free_memory(0xA5)
again = [torch.empty(100, dtype=torch.uint8, device="cuda") for _ in range(9)]
assert all(bool((tensor == 0xA5).all()) for tensor in again)
assert bool((kept == 7).all())
"""


def test_small_free_memory_of_segments_that_grow_is_soiled() -> None:
    """With them, too, attention's random state must be seen to be nobody's."""
    succeeds("-c", _EXPANDABLE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


def training_step(call: Callable[..., torch.Tensor], linear: torch.nn.Linear) -> Callable[..., list[Any]]:
    """What a step of mixed precision returns: the output and the gradients of `linear`, which `call` uses."""

    def step(*inputs: torch.Tensor | None) -> list[Any]:
        linear.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            out = call(*inputs)
        out.float().sum().backward()
        return [out.detach(), linear.weight.grad, linear.bias.grad]

    return step


@pytest.mark.parametrize("masked", [True, False])
def test_attention_returns_memory_that_it_does_not_write(masked: bool) -> None:
    """Its random state, saved for the backward, is uninitialised where it draws no numbers."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 192, device=DEVICE)

    def attend(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        q, k, v = linear(x).view(4, 128, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(4, 128, 64)

    step = training_step(compiled(attend), linear)

    def make(_: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        mask = torch.rand(4, 1, 1, 128, device=DEVICE) > 0.1
        return torch.randn(4, 128, 64, device=DEVICE), mask.expand(4, 1, 128, 128) if masked else None

    agree(step, make, replays=2 * (CALLS - 2))


def test_random_state_where_an_intermediate_was_is_nobodys() -> None:
    """The graph allocates it where a scalar of its own was, so that it copies what that one left behind."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 192, device=DEVICE)

    def attend(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):  # each with scalars that are free when the next state is made
            y = torch.cumsum(x, 1)
            scale = torch.mm(y[0].t(), y[0]).trace().abs().clamp(min=1.0).rsqrt()
            q, k, v = linear(x * (1 + scale)).view(4, 128, 3, 4, 16).permute(2, 0, 3, 1, 4)
            x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 128, 64)
        return x

    step = training_step(compiled(attend), linear)

    agree(step, lambda _: (torch.randn(4, 128, 64, device=DEVICE),), replays=2 * (CALLS - 2))


def test_gigabytes_are_left_alone_for_the_sake_of_a_random_state() -> None:
    """What is cached stays free for other threads, and out of the peak in statistics."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 192, device=DEVICE)

    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k, v = linear(x).view(4, 128, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 128, 64)

    step = training_step(compiled(attend), linear)

    cached = torch.empty(2 << 30, dtype=torch.uint8, device=DEVICE)
    del cached
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    agree(step, lambda _: (torch.randn(4, 128, 64, device=DEVICE),), replays=2 * (CALLS - 2))
    assert torch.cuda.max_memory_allocated() - before < 1 << 30


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_seldom_meet_are_no_reason_to_run_plainly(seed: int) -> None:
    """A few of thousands of rows that are added to a table meet in one, in an order that changes once in many calls."""
    torch.manual_seed(seed)
    table = torch.nn.Parameter(torch.randn(20_000, 16, device=DEVICE))

    def look_up(indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (F.embedding(indices, table) * weights).square().sum()

    call = compiled(look_up)

    def step(indices: torch.Tensor, weights: torch.Tensor) -> list[Any]:
        table.grad = None
        loss = call(indices, weights)
        loss.backward()
        return [loss.detach(), table.grad]

    def make(_: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(20_000, (2048,), device=DEVICE), torch.randn(2048, 16, device=DEVICE)

    agree(step, make, replays=2 * (CALLS - 2))


def test_outputs_that_do_not_fit_twice_are_compared_by_digests() -> None:
    """And then they are in memory once."""
    size = 512 << 20  # bytes of each of two outputs
    call = compiled(lambda x: (x.sin(), x.cos()))
    earlier = len(pygraph_inductor.report().functions)
    with config.patch(max_verify_bytes=size // 2):
        for number in range(4):
            x = torch.randn(size // 4, device=DEVICE)
            gc.collect()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            sine, cosine = call(x)
            torch.cuda.synchronize()
            if number == 1:
                assert torch.cuda.max_memory_allocated() - before < 3 * size, "beside each other they take four"
            assert torch.allclose(sine, x.sin(), atol=1e-6)
            assert torch.allclose(cosine, x.cos(), atol=1e-6)
            del sine, cosine
    [function] = pygraph_inductor.report().functions[earlier:]
    assert function.replays == 2, function.reasons


def test_digests_are_the_same_on_every_device() -> None:
    """Sums of 64-bit words that overflow, shifts of negative ones, pieces, and bytes that fill no word."""
    for size in (0, 5, 4096, (32 << 20) + 8 + 3):
        content = torch.randint(0, 256, (size,), dtype=torch.uint8)
        assert digests([content]) == digests([content.to(DEVICE)])
