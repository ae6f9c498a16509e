"""Memory: pools go when their last recording goes, recordings are capped, a kept output keeps only itself."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest
import torch

import pygraph_inductor
from tests.gpu.comparing import DEVICE, Counting, compiled, plainly

MIB = 1 << 20
SLACK = 8 * MIB
SHAPES = int(os.environ.get("TEST_SHAPES", "1000"))


def level() -> tuple[int, int]:
    """Allocated and, with the cache emptied, reserved bytes once every compiled function is gone."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    return allocated, torch.cuda.memory_reserved()


def expect_back_at_the_base(use: Callable[[], None]) -> None:
    use()  # contexts and workspaces of the libraries stay, so they belong to the base
    base = level()
    for _ in range(2):
        use()
        after = level()
        grown = [(now - before) / MIB for now, before in zip(after, base, strict=True)]
        assert max(grown) <= SLACK / MIB, f"allocated and reserved grew by {grown} MiB"


def test_memory_is_back_once_a_model_is_gone() -> None:
    def use() -> None:
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).to(DEVICE).eval()
        call, counting = compiled(model), Counting()
        with torch.no_grad():
            for _ in range(5):
                call(torch.randn(512, 1024, device=DEVICE))
        counting.expect(replays=2)

    expect_back_at_the_base(use)


def test_workspaces_of_plain_calls_are_given_back_once_a_graph_is_chosen() -> None:
    """Graphs have their own; on an H200 cuBLAS takes 32 MiB for each stream."""
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).to(DEVICE).eval()
    call, counting = compiled(model), Counting()
    with torch.no_grad():
        for _ in range(80):
            call(torch.randn(16, 256, device=DEVICE))
            torch.cuda.synchronize()
    [decision] = counting.functions[0].decisions
    if decision.chosen != "graph":
        pytest.skip(f"chosen was {decision.chosen!r}: {decision.reason}")
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() == before


def test_memory_is_back_after_training() -> None:
    def use() -> None:
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).to(DEVICE)
        call, counting = compiled(model), Counting()
        for _ in range(5):
            model.zero_grad(set_to_none=True)
            call(torch.randn(512, 512, device=DEVICE)).square().mean().backward()
        counting.expect(replays=4)

    expect_back_at_the_base(use)


def test_output_outlives_its_recording() -> None:
    call = compiled(lambda x: (x @ x).relu())
    x = torch.randn(256, 256, device=DEVICE)
    with torch.no_grad():
        outputs = [call(x) for _ in range(5)]
        del call
        level()
        filler = [torch.full((256, 256), 7.0, device=DEVICE) for _ in range(32)]
        for one in outputs:
            torch.testing.assert_close(one, (x @ x).relu(), rtol=1e-2, atol=1e-2)
    assert len(filler) == 32


def test_thousand_new_shapes_stay_under_the_cap() -> None:
    with pygraph_inductor.config.patch(max_recordings=16):
        call, counting = compiled(lambda x, w: (x @ w).relu(), dynamic=True), Counting()
        weight = torch.randn(16, 64, device=DEVICE)
        most, sizes = 0, range(2, 2 + SHAPES)
        with torch.no_grad():
            for rows in sizes:
                x = torch.randn(rows, 16, device=DEVICE)
                for _ in range(2):
                    result = call(x, weight)
                if rows % 50 == 0:
                    torch.testing.assert_close(result, (x @ weight).relu(), rtol=1e-2, atol=1e-2)
                    most = max(most, *(len(one.recordings) for one in counting.functions))
                if rows == sizes[SHAPES // 10]:
                    gc.collect()
                    early = torch.cuda.memory_allocated()
            gc.collect()
            late = torch.cuda.memory_allocated()
            replays = counting.replays
            for _ in range(3):
                call(x, weight)
        assert 0 < most <= 16, counting
        assert late - early <= SLACK, f"grew by {(late - early) / MIB:.1f} MiB over {SHAPES} shapes"
        assert counting.replays >= replays + 3, f"the newest shape is no longer replayed; {counting}"


def test_kept_output_keeps_only_itself() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x * n for n in range(1, 9))

    call, counting = compiled(function), Counting()
    x = torch.randn(MIB // 4, device=DEVICE)
    with torch.no_grad():
        for _ in range(4):
            call(x)
        before = torch.cuda.memory_allocated()
        kept = [call(x)[3] for _ in range(16)]
        grown = torch.cuda.memory_allocated() - before
    assert grown == len(kept) * MIB, f"16 kept outputs of 1 MiB take {grown / MIB:.2f} MiB"
    counting.expect(replays=17)


def test_peak_of_a_replay_is_not_above_the_plain_calls() -> None:
    """Intermediates are in the pool already; a replay allocates its outputs and nothing else."""
    weight = torch.randn(1024, 1024, device=DEVICE)

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = (x @ weight).relu()
        return x

    call, counting = compiled(function), Counting()
    x = torch.randn(1024, 1024, device=DEVICE)

    def peak() -> int:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call(x)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    with torch.no_grad():
        for _ in range(4):
            call(x)
        with plainly():
            plain = peak()
        replayed = peak()
    assert replayed <= plain, f"{replayed / MIB:.1f} MiB above the start, plain call {plain / MIB:.1f} MiB"
    counting.expect(replays=3)


def test_a_pool_holds_what_operators_allocate_once() -> None:
    """Convolutions allocate their outputs. Two captures are compared, but only one of them is kept."""
    weight = torch.randn(16, 16, 3, 3, device=DEVICE)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.conv2d(x + number, weight, padding=1) for number in range(12)]

    call, counting = compiled(function), Counting()
    x = torch.randn(8, 16, 128, 128, device=DEVICE)
    outputs = 12 * x.numel() * 4
    with torch.no_grad():
        before = private_bytes()
        for _ in range(5):
            call(x.clone())
        counting.expect(replays=3)
    gc.collect()
    # Not emptied before: the memory of what is not kept is the device's again by itself.
    taken = private_bytes() - before
    assert taken < 1.7 * outputs, f"{taken / MIB:.0f} MiB for outputs of {outputs / MIB:.0f} MiB"


def private_bytes() -> int:
    """What pools of graphs have taken from the device."""
    segments = torch.cuda.memory_snapshot(include_traces=False)
    return sum(one["total_size"] for one in segments if tuple(one["segment_pool_id"]) != (0, 0))


def test_outputs_go_back_to_the_allocator_when_dropped() -> None:
    call, counting = compiled(lambda x: (x * 2, x + 1)), Counting()
    x = torch.randn(MIB, device=DEVICE)
    with torch.no_grad():
        for _ in range(4):
            call(x)
        gc.disable()  # outputs must go by reference counting alone
        try:
            before = torch.cuda.memory_allocated()
            for _ in range(8):
                call(x)
            assert torch.cuda.memory_allocated() == before
        finally:
            gc.enable()
    counting.expect(replays=9)
