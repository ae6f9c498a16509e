"""What operators allocate themselves: the allocator's log, and workspaces that lay where an output lies."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pygraph_inductor.driver.devices import driver_for
from pygraph_inductor.driver.protocol import BlockEvent
from tests.gpu.comparing import DEVICE, Counting, agree, compiled
from tests.gpu.operators import like_first, opaque

MIB = 1 << 20


def given(address: int, nbytes: int) -> BlockEvent:
    return BlockEvent(address, nbytes, given=True)


def taken(address: int, nbytes: int) -> BlockEvent:
    return BlockEvent(address, nbytes, given=False)


def test_the_log_has_the_blocks_that_were_given_out_and_taken_back_meanwhile_in_order() -> None:
    driver = driver_for(torch.device(DEVICE, torch.cuda.current_device()))
    with driver.watched_blocks() as outer:
        first = torch.empty(3 * MIB, dtype=torch.uint8, device=DEVICE)
        place = first.data_ptr()
        del first
        with driver.watched_blocks() as log:
            second = torch.empty(3 * MIB, dtype=torch.uint8, device=DEVICE)
            assert log.so_far() == 1
            small = torch.empty(100, dtype=torch.uint8, device=DEVICE)
            assert log.events() == [given(second.data_ptr(), 3 * MIB), given(small.data_ptr(), 100)]
        assert outer.so_far() == 4
        assert outer.events() == [
            given(place, 3 * MIB),
            taken(place, 3 * MIB),
            given(second.data_ptr(), 3 * MIB),
            given(small.data_ptr(), 100),
        ]
    assert second.data_ptr() == place
    assert not torch._C._cuda_isHistoryEnabled()


def test_a_capture_is_in_the_log_too() -> None:
    driver = driver_for(torch.device(DEVICE, torch.cuda.current_device()))
    places = []

    def body() -> None:
        for _ in range(2):
            places.append(torch.empty(5 * MIB, dtype=torch.uint8, device=DEVICE).data_ptr())

    with driver.watched_blocks() as log:
        graph, _ = driver.capture(body, driver.new_pool(), {})
        events = log.events()
        graph.close()
    assert events is not None and places[0] == places[1]
    once = [given(places[0], 5 * MIB), taken(places[0], 5 * MIB)]
    assert [event for event in events if event.address == places[0]] == once * 2


def test_a_history_of_the_users_stays_as_it_is() -> None:
    driver = driver_for(torch.device(DEVICE, torch.cuda.current_device()))
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=1000)
    try:
        kept = torch.empty(3 * MIB, dtype=torch.uint8, device=DEVICE)
        with driver.watched_blocks() as log:
            torch.empty(3 * MIB, dtype=torch.uint8, device=DEVICE)
            assert log.events() is None
        entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
        assert [entry for entry in entries if entry["action"] == "alloc" and entry["addr"] == kept.data_ptr()]
        step = compiled(lambda x: F.conv1d(x, x[:8, :, :3]))
        with torch.no_grad():
            agree(step, lambda _: (torch.randn(16, 8, 64, device=DEVICE),))
        assert torch._C._cuda_isHistoryEnabled()
    finally:
        torch.cuda.memory._record_memory_history(None)


def _where_a_workspace_was(x: torch.Tensor) -> torch.Tensor:
    workspace = x.repeat(16, 1)
    total = workspace.sum(0)
    del workspace
    return torch.add(x, total[0])


where_a_workspace_was = opaque(
    "where_a_workspace_was", "(Tensor x) -> Tensor", _where_a_workspace_was, lambda x: like_first(x)
)


def test_nothing_is_written_beyond_an_output_that_lies_where_a_workspace_lay() -> None:
    """Not while the graph is verified either: the memory that follows an output is somebody's."""
    call, counting = compiled(lambda x: where_a_workspace_was(x * 2)), Counting()
    x = torch.randn(1024, 1024, device=DEVICE)
    with torch.no_grad():
        expected = _where_a_workspace_was(x * 2)
        torch.cuda.empty_cache()
        # Blocks of the output's size, every other one free: whatever is handed out for an output has neighbours.
        blocks = [torch.full((1024, 1024), 7.0, device=DEVICE) for _ in range(64)]
        kept, blocks = blocks[::2], []
        for _ in range(6):
            torch.testing.assert_close(call(x), expected, rtol=0, atol=0)
    counting.expect(replays=2)
    assert all(bool((block == 7.0).all()) for block in kept) and not blocks
    [recording] = counting.functions[0].recordings
    assert "copy" not in recording.slots and recording.verdict == "verified"


@pytest.mark.parametrize("shape", ["1d", "2d", "3d"])
def test_convolutions_in_training(shape: str) -> None:
    """Their backwards allocate workspaces, two gradients, and workspaces in between."""
    dims = int(shape[0])
    layer = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}[dims]
    model = torch.nn.Sequential(*(layer(64, 64, 3, padding=1) for _ in range(3))).to(DEVICE, torch.bfloat16)
    call = compiled(model)

    def step(x: torch.Tensor) -> list[torch.Tensor | None]:
        model.zero_grad(set_to_none=True)
        call(x).float().square().mean().backward()
        return [parameter.grad for parameter in model.parameters()]

    counting = Counting()
    agree(step, lambda _: (torch.randn(4, 64, *(16,) * dims, device=DEVICE, dtype=torch.bfloat16),))
    for function in counting.functions:
        assert all("copy" not in recording.slots for recording in function.recordings), function
