"""Outputs that operators allocate themselves: handed out without a copy, whoever was in their block before."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pygraph_inductor.driver.arena import ArenaLog
from pygraph_inductor.driver.protocol import TABLE_WRITER, Area, BlockEvent, Node, NodeKind
from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.recording import capture_pair
from pygraph_inductor.recording.bindings import Found
from pygraph_inductor.recording.in_place import Block, in_place, is_alone
from pygraph_inductor.recording.operators import Operators
from pygraph_inductor.replay.plan import Binding
from tests.simulated.hand_written import F32, HandWritten, check

SIZE, STRIDE = (64, 64), (64, 1)


@pytest.fixture(params=[None, 0], ids=["in one pool", "apart"], autouse=True)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """What operators allocate beyond this has the first of two captures made in memory of its own."""
    if request.param is not None:
        monkeypatch.setattr(capture_pair, "SMALL", request.param)
    return request.param


def random() -> tuple[torch.Tensor]:
    return (torch.randn(SIZE),)


def sorted_twice(namespace: dict[str, Any], x: torch.Tensor) -> Any:
    mixed = namespace["empty_strided_cpu"](SIZE, STRIDE, F32)
    namespace["cpp_fused_0"](mixed, x)
    values, indices = torch.ops.aten.sort.default(mixed)
    again = namespace["empty_strided_cpu"](SIZE, STRIDE, F32)
    namespace["cpp_fused_0"](again, values)
    return values, indices, again, torch.ops.aten.sort.default(again)[1]


def sorted_into_a_freed_block(namespace: dict[str, Any], x: torch.Tensor) -> Any:
    """The values go where `mixed` was, which is larger: its own words must stay as they are."""
    mixed = namespace["empty_strided_cpu"]((128, 64), STRIDE, F32)
    namespace["cpp_fused_0"](mixed, x)
    small = namespace["empty_strided_cpu"](SIZE, STRIDE, F32)
    namespace["cpp_fused_0"](small, mixed)
    del mixed
    return tuple(torch.ops.aten.sort.default(small))


def test_memory_that_nobody_writes_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """As attention's random state without dropout: a copy would be of what happens to be in the pool."""
    driver = SimulatedDriver()
    found = [7]  # in memory that a plain call does not write
    monkeypatch.setattr(driver, "soil_free_memory", lambda byte, small_only=False: found.__setitem__(0, byte))

    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        out = namespace["empty_strided_cpu"]((8,), (1,), F32)
        namespace["cpp_fused_0"](out, x)
        state = torch.ops.aten.empty.memory_format([2], dtype=torch.int64)
        if not driver.is_capturing():
            ctypes.memset(state.data_ptr(), found[0], 16)
        return out, state

    function = HandWritten(body, driver)
    for _ in range(4):
        x = torch.randn(8)
        assert torch.equal(function(x)[0], function.run([x])[0])
    (recording,) = function.recordings
    assert "memcpy" not in recording.log.nodes
    assert [len(slot.bindings) for slot in recording.player.plan.slots if slot.layout.size == (2,)] == [0]


@pytest.mark.parametrize("native", [True, False])
def test_an_operators_output_is_handed_out_without_a_copy(native: bool) -> None:
    function = HandWritten(sorted_twice, native=native)
    check(function, random)
    tables = [node for node in function.recordings[0].graph.nodes if node.name == TABLE_WRITER]
    assert function.recordings[0].log.nodes == {"kernel": 4 + len(tables)}


def sorted_and_written_again(namespace: dict[str, Any], x: torch.Tensor) -> Any:
    """Operators write to what another one allocated, and return it as theirs; so does a kernel."""
    mixed = namespace["empty_strided_cpu"](SIZE, STRIDE, F32)
    namespace["cpp_fused_0"](mixed, x)
    small = namespace["empty_strided_cpu"](SIZE, STRIDE, F32)
    namespace["cpp_fused_0"](small, mixed)
    del mixed
    values, indices = torch.ops.aten.sort.default(small)
    del small
    torch.ops.aten.mul_.Tensor(values, values)
    again = torch.ops.aten.sort.default(values)[0]
    namespace["cpp_fused_0"](again, values)
    return values, torch.ops.aten.add_.Tensor(indices, indices), again


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("body", [sorted_into_a_freed_block, sorted_and_written_again])
def test_an_output_where_an_intermediate_was_is_not_copied(
    body: Callable[..., Any], native: bool, engine_of_all: str
) -> None:
    function = HandWritten(body, native=native)
    check(function, random)
    (recording,) = function.recordings
    assert ("indirect" in recording.log.slots) is (engine_of_all == "indirect"), "every test here has both engines"
    assert "memcpy" not in recording.log.nodes and "copy" not in recording.log.slots
    assert not recording.player.staged


def test_where_it_is_wrong_to_do_without_copies_there_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more of them than before anybody tried."""

    def forgetful(*arguments: Any) -> tuple[Binding, ...] | None:
        own = in_place(*arguments)
        return own[:-1] if own else own

    monkeypatch.setattr(capture_pair, "in_place", forgetful)
    function = HandWritten(sorted_into_a_freed_block)
    check(function, random)
    (recording,) = function.recordings
    assert recording.log.nodes["memcpy"] >= 1 and "copy" not in recording.log.slots


def test_writes_behind_an_output_are_noticed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Were what others write there taken for the output's, verification would see what it leads to."""
    monkeypatch.setattr(capture_pair, "in_place", _whoever_was_there(in_place))
    function = HandWritten(sorted_into_a_freed_block)
    check(function, random)  # the answers stay right: with copies in the graph
    assert function.recordings[0].log.nodes["memcpy"] == 2
    assert "writes behind an output; outputs that operators allocate are copied" in caplog.text


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("nbytes", "copies"), [(64 * 64 * 4, 0), (64 * 64 * 4 + 512, 1), (1 << 21, 0)])
def test_an_operator_that_returns_memory_where_its_workspace_was(
    nbytes: int, copies: int, native: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where that was larger than the output, its words would reach beyond it: nothing is tried, and it is copied.

    Two megabytes come from other segments.
    """
    driver = SimulatedDriver()
    driver.faults.workspace = lambda operator: nbytes if operator == "aten.sin.default" else 0

    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        doubled = namespace["empty_strided_cpu"](SIZE, STRIDE, F32)
        namespace["cpp_fused_0"](doubled, x)
        return [torch.ops.aten.sin.default(doubled)]

    function = HandWritten(body, driver, native=native)
    check(function, random)
    (recording,) = function.recordings
    assert recording.log.nodes.get("memcpy", 0) == copies and "copy" not in recording.log.slots
    assert not caplog.records


def test_a_workspace_that_is_larger_by_less_than_blocks_are_rounded_to_has_its_output_alone_copied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It writes behind the output, which is nobody's memory there, but is watched while the graph is verified."""
    driver = SimulatedDriver()
    driver.faults.workspace = lambda operator: 512 if operator == "aten.sin.default" else 0

    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        doubled = namespace["empty_strided_cpu"]((5, 5), (5, 1), F32)
        namespace["cpp_fused_0"](doubled, x)
        return torch.ops.aten.sin.default(doubled), torch.ops.aten.cos.default(doubled)

    function = HandWritten(body, driver)
    check(function, random)
    (recording,) = function.recordings
    assert recording.log.nodes["memcpy"] == 1 and "copy" not in recording.log.slots
    assert not caplog.records


def test_an_operator_that_drops_what_was_there_before_it_and_returns_memory_where_that_was(
    small: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel of its own still reads it. Told to look where the output goes, it would not find what was written.

    In one pool the second capture's output is elsewhere, which tells them apart.
    """
    driver = SimulatedDriver()

    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        kept = [namespace["empty_strided_cpu"](SIZE, STRIDE, F32)]
        namespace["cpp_fused_0"](kept[0], x)
        doubled = namespace["empty_strided_cpu"](SIZE, STRIDE, F32)
        namespace["cpp_fused_0"](doubled, x)

        def inside(operator: str) -> int:
            if kept and operator == "aten.sin.default":
                namespace["cpp_fused_0"](doubled, kept.pop())
            return 0

        driver.faults.workspace = inside
        if not driver.is_capturing():
            inside("aten.sin.default")
        return [torch.ops.aten.sin.default(doubled)]

    function = HandWritten(body, driver)
    check(function, random)
    (recording,) = function.recordings
    assert recording.log.nodes.get("memcpy", 0) == (0 if small is None else 1)
    assert "copy" not in recording.log.slots and not caplog.records


def test_where_the_allocator_tells_nothing_outputs_of_operators_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not where the user has it keep its history."""
    monkeypatch.setattr(ArenaLog, "events", lambda self: None)
    function = HandWritten(sorted_into_a_freed_block)
    check(function, random)
    (recording,) = function.recordings
    assert recording.log.nodes["memcpy"] == 2 and "copy" not in recording.log.slots


def test_who_made_a_storage_is_known_whoever_wrote_to_it() -> None:
    counted = iter(range(100))
    operators = Operators(lambda: next(counted), ArenaLog())
    with operators.watched():
        made = torch.ops.aten.sin.default(torch.zeros(4))
        torch.ops.aten.mul_.Tensor(made, made)
        first = operators.began(made)
        seen = set()
        for _ in range(20):  # the identity of one that died is nobody else's
            other = torch.ops.aten.sin.default(made)
            seen.add(operators.began(other))
            del other
    assert first is not None and operators.began(made) == first
    assert len(seen) == 20 and first not in seen


def sorted_rows(namespace: dict[str, Any], x: torch.Tensor) -> Any:
    return [tensor for row in range(4) for tensor in torch.ops.aten.sort.default(x[row])]


def recorded(driver: SimulatedDriver, columns: int) -> HandWritten:
    function = HandWritten(sorted_rows, driver)
    check(function, lambda: (torch.randn(4, columns),))
    assert len(function.recordings) == 1 and "memcpy" not in function.recordings[0].log.nodes
    return function


def test_a_pool_holds_what_operators_allocate_once() -> None:
    driver = SimulatedDriver()
    columns = 1 << 19
    function = recorded(driver, columns)
    gc.collect()
    outputs = 4 * columns * (4 + 8)
    assert outputs <= driver.arena.reserved_bytes < 1.8 * outputs
    assert function.recordings[0].pool.nbytes() == driver.arena.reserved_bytes
    assert driver.arena.allocated_bytes == 0


def test_without_memory_for_two_captures_apart_they_share_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_pair, "SMALL", 0)
    driver = SimulatedDriver()
    captures = []

    def too_small(*arguments: Any) -> Any:
        captures.append(1)
        if len(captures) == 2:
            raise torch.OutOfMemoryError("of the second capture")
        return SimulatedDriver.capture(driver, *arguments)

    monkeypatch.setattr(driver, "capture", too_small)
    recorded(driver, 64)
    assert len(captures) >= 4


def test_what_an_operator_keeps_from_a_capture_lives_as_long_as_the_graph() -> None:
    """As workspaces that are made once per stream: the stream of captures is first seen in the first of them."""
    driver = SimulatedDriver()
    workspaces: dict[bool, torch.Tensor] = {}

    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        if driver.is_capturing() not in workspaces:
            workspaces[driver.is_capturing()] = torch.empty_like(x)
        torch.ops.aten.sin.out(x, out=workspaces[driver.is_capturing()])
        return list(torch.ops.aten.sort.default(workspaces[driver.is_capturing()]))

    function = HandWritten(body, driver)
    check(function, random)
    gc.collect()
    reserved = driver.arena.reserved_bytes
    workspaces.clear()  # it needs a larger one, or frees them: not its business any more, replays write there
    gc.collect()
    assert driver.arena.reserved_bytes == reserved
    x = torch.randn(SIZE)
    assert torch.equal(function(x)[0], x.sin().sort()[0])
    assert function.log.replays == 5
    del function
    gc.collect()
    assert driver.arena.reserved_bytes == 0


def test_what_an_operator_drops_in_the_second_capture_lives_as_long_as_the_graph(small: int | None) -> None:
    driver = SimulatedDriver()
    workspaces: list[torch.Tensor] = []

    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        workspace = workspaces.pop() if workspaces else torch.empty_like(x)
        torch.ops.aten.sin.out(x, out=workspace)
        result = list(torch.ops.aten.sort.default(workspace))
        if driver.is_capturing() and not seen:
            workspaces.append(workspace)
            seen.append(1)
        return result

    seen: list[int] = []
    function = HandWritten(body, driver)
    check(function, random)
    gc.collect()
    assert seen and not workspaces
    if small is not None:  # else all is in the pool
        assert driver.arena.reserved_bytes > function.recordings[0].pool.nbytes()
    x = torch.randn(SIZE)
    assert torch.equal(function(x)[0], x.sin().sort()[0])


def test_where_captures_apart_tell_nothing_they_share_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_pair, "SMALL", 0)
    original, answers = capture_pair.find_bindings, []

    def find(*arguments: Any) -> Found:
        found = original(*arguments)
        answers.append(found)
        return Found(found.by_slot, "an intermediate moved like an input") if len(answers) == 1 else found

    monkeypatch.setattr(capture_pair, "find_bindings", find)
    function = recorded(SimulatedDriver(), 64)
    assert len(answers) >= 2 and "copy" not in function.recordings[0].log.slots


def _whoever_was_there(original: Callable[..., Any]) -> Callable[..., Any]:
    def found(first: Any, second: Any, before: Block, after: Block) -> Any:
        return original(first, second, replace(before, first_node=0), replace(after, first_node=0))

    return found


def node(index: int, *words: int) -> Node:
    return Node(index, NodeKind.KERNEL, "kernel", tuple(Area(word.to_bytes(8, "little")) for word in words))


FIRST, SECOND = Block(4096, 512, 1, 2, True), Block(8192, 512, 1, 2, True)


def test_words_at_the_same_place_in_both_blocks_are_bound() -> None:
    first = [node(0, 1), node(1, 4096 + 64, 4096 + 512), node(2, 4096)]
    second = [node(0, 1), node(1, 8192 + 64, 8192 + 512), node(2, 8192)]
    own = in_place(first, second, FIRST, SECOND)
    assert own is not None and [(one.node, one.area, one.addend) for one in own] == [(1, 0, 64)]


def test_words_of_who_had_the_block_before_are_left_alone() -> None:
    first = [node(0, 4096), node(1, 4096), node(2, 4096)]
    second = [node(0, 8192), node(1, 8192), node(2, 8192)]
    own = in_place(first, second, FIRST, SECOND)
    assert own is not None and [(one.node, one.area, one.addend) for one in own] == [(1, 0, 0)]


def test_a_block_written_from_another_node_on_is_left_alone() -> None:
    nodes = [node(0, 1), node(1, 4096), node(2, 4096)]
    assert in_place(nodes, nodes, FIRST, replace(FIRST, first_node=0)) is None


def test_a_workspace_that_lay_there_in_one_capture_is_told_from_the_output_by_the_other() -> None:
    first = [node(0, 1), node(1, 4096, 9999), node(2, 4096)]
    second = [node(0, 1), node(1, 8192, 8192), node(2, 8192)]  # the second word is a workspace's
    crowded = replace(SECOND, alone=False)
    own = in_place(first, second, FIRST, crowded)
    assert own is not None and [(one.node, one.area, one.addend) for one in own] == [(1, 0, 0)]
    assert in_place(second, second, crowded, crowded) is None


def given(address: int, nbytes: int) -> BlockEvent:
    return BlockEvent(address, nbytes, given=True)


def taken(address: int, nbytes: int) -> BlockEvent:
    return BlockEvent(address, nbytes, given=False)


OUTPUT = given(4096, 500)


@pytest.mark.parametrize(
    ("events", "alone"),
    [
        ([OUTPUT], True),
        ([given(1024, 512), OUTPUT, given(8192, 512), taken(1024, 512), taken(9216, 512)], True),
        ([given(4096, 256), given(4352, 244), taken(4352, 244), taken(4096, 256), OUTPUT], True),  # scraps that fit
        ([given(4096, 512), taken(4096, 512), OUTPUT], False),
        ([given(4096, 1024), taken(4096, 1024), OUTPUT], False),
        ([given(3584, 1024), taken(3584, 1024), OUTPUT], False),
        ([given(4500, 1024), taken(4500, 1024), OUTPUT], False),
        ([taken(4096, 512), OUTPUT], False),  # that one was there before the call
        ([taken(3584, 4096), OUTPUT], False),
        ([given(4096, 512), taken(4352, 256), taken(4096, 512), OUTPUT], False),
        ([given(1024, 512)], False),  # the output was there before the call
        ([], False),
    ],
)
def test_alone_is_an_output_whose_block_held_nothing_else_that_is_older_or_reaches_beyond_it(
    events: list[BlockEvent], alone: bool
) -> None:
    assert is_alone(events, 4096, 500) is alone
