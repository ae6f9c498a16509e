"""Kernels in bodies of conditional nodes: what the driver tells about them, and how slots reach them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import pygraph_inductor
from pygraph_inductor.driver.captured_nodes import nodes_of
from pygraph_inductor.driver.conditional_bodies import Conditional, conditionals_of
from pygraph_inductor.driver.libcuda import bindings, checked
from pygraph_inductor.driver.protocol import TABLE_WRITER, NodeKind
from pygraph_inductor.recording.indirection import Steering, Watching
from pygraph_inductor.recording.record import Recording
from pygraph_inductor.replay.plan import Engine
from pygraph_inductor.settings import Settings
from tests.gpu.child_graphs import child_graph
from tests.gpu.comparing import CALLS, agree, compiled
from tests.gpu.conditional_graphs import add_conditional, captured_into, conditional_body
from tests.gpu.device_conditions import DECIDES, body_if, do_if, is_set, new_flag
from tests.gpu.test_indirect import expect_twins, is_twin, launch_inside, names, randn, recorded_functions, recordings
from tests.gpu.test_recorded_function import Generated, bf, bits

if not hasattr(bindings(), "cuGraphConditionalHandleCreate"):
    pytest.skip("needs CUDA 12.3", allow_module_level=True)

pytestmark = pytest.mark.timeout(300)

# -- what the driver tells


@contextlib.contextmanager
def a_graph() -> Iterator[Any]:
    graph = checked(bindings().cuGraphCreate(0))
    try:
        yield graph
    finally:
        checked(bindings().cuGraphDestroy(graph))


def handles_of(graph: Any) -> tuple[int, ...]:
    nodes, count = checked(bindings().cuGraphGetNodes(graph, 64))
    return tuple(sorted(map(int, nodes[:count])))


def in_order(found: dict[int, Conditional]) -> dict[int, Conditional]:
    return {
        handle: Conditional(one.kind, tuple(tuple(sorted(body)) for body in one.bodies))
        for handle, one in found.items()
    }


@pytest.mark.parametrize(("kind", "count"), [("IF", 1), ("IF", 2), ("WHILE", 1), ("SWITCH", 3)])
def test_bodies_are_known_as_they_are_or_not_at_all(kind: str, count: int) -> None:
    if not hasattr(bindings().CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{kind}"):
        pytest.skip("needs CUDA 12.8")
    x, y = torch.randn(64, device="cuda"), torch.empty(64, device="cuda")
    torch.mul(x, 2, out=y)
    with a_graph() as graph:
        node, bodies = add_conditional(graph, kind, count)
        assert len(bodies) == count
        for number, body in enumerate(bodies):
            with captured_into(body) as stream, torch.cuda.stream(stream):
                for _ in range(number + 1):
                    torch.mul(x, 2, out=y)
        right = {int(node): Conditional(kind, tuple(map(handles_of, bodies)))}
        found = in_order(conditionals_of(graph))
        assert found == right or (kind != "IF" and not found)


def test_what_else_may_be_in_a_body_is_known_as_it_is_or_not_at_all() -> None:
    """Fills, copies, empty nodes, bodies of bodies, child graphs."""
    x, y = torch.randn(1 << 16, device="cuda"), torch.empty(1 << 16, device="cuda")
    torch.mul(x, 2, out=y)
    fills: list[Callable[[Any], Any]] = [
        lambda graph: checked(bindings().cuGraphAddEmptyNode(graph, None, 0)),
        lambda graph: captured(graph, lambda: y.zero_()),
        lambda graph: captured(graph, lambda: y.copy_(x)),
        lambda graph: captured(graph, lambda: in_a_child_graph(lambda: torch.mul(x, 2, out=y))),
    ]
    for fill in fills:
        with a_graph() as graph:
            node, (body,) = add_conditional(graph)
            fill(body)
            right = {int(node): Conditional("IF", (handles_of(body),))}
            assert in_order(conditionals_of(graph)) in ({}, right)
    with a_graph() as graph:
        node, (body,) = add_conditional(graph)
        inner, (innermost,) = add_conditional(body)
        captured(innermost, lambda: torch.mul(x, 2, out=y))
        right = {
            int(node): Conditional("IF", ((int(inner),),)),
            int(inner): Conditional("IF", (handles_of(innermost),)),
        }
        assert in_order(conditionals_of(graph)) in ({}, right)


def captured(graph: Any, work: Callable[[], Any]) -> None:
    with captured_into(graph) as stream, torch.cuda.stream(stream):
        work()


def in_a_child_graph(work: Callable[[], Any]) -> None:
    with child_graph() as stream, torch.cuda.stream(stream):
        work()


# -- how slots reach them


@pytest.fixture(params=["indirect", "auto"])
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    with pygraph_inductor.config.patch(engine=request.param, selection=False, strict=True), torch.no_grad():
        yield


def compiled_inside(graph: Callable[[], Any], function: Callable[..., Any], *first: torch.Tensor) -> Any:
    """The function, called once with these tensors, and its kernels inside such a graph from its next call on."""
    call = compiled(function)
    before = recorded_functions()
    call(*first)
    (newest,) = (one for one in recorded_functions() if not any(one is old for old in before))
    launch_inside(graph, newest)
    return newest, call


def only_with_a_conditional_node() -> Recording:
    has_one = lambda nodes: any(node.kind in (NodeKind.CONDITIONAL, NodeKind.OTHER) for node in nodes)
    (recording,) = [one for one in recordings() if has_one(one.graph.nodes)]
    return recording


def expect_twins_in_the_body(recording: Recording) -> None:
    assert {slot.engine for slot in recording.player.plan.slots} == {Engine.INDIRECT}
    kernels = [node for node in recording.graph.nodes if node.kind is NodeKind.KERNEL]
    assert [node.updatable for node in kernels] == [True] + [False] * (len(kernels) - 1)
    assert [node.conditional for node in kernels] == [not node.updatable for node in kernels]
    assert recording.player.staged == 0 and "memcpy" not in recording.log.nodes


def test_kernels_in_a_body_read_the_table(engine: None) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, 1) + y, torch.relu(x)

    _, call = compiled_inside(conditional_body, function, randn(300, 300), randn(300, 300))
    agree(call, lambda _: (randn(300, 300), randn(300, 300)), replays=CALLS - 2)
    expect_twins()
    expect_twins_in_the_body(only_with_a_conditional_node())


def test_kernels_in_a_body_that_is_not_entered_read_the_table_and_write_nothing(engine: None) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> None:
        x.mul_(y)

    recorded, call = compiled_inside(lambda: conditional_body(0), function, randn(300), randn(300))
    captures = recorded._run

    def run(inputs: list[Any]) -> Any:
        """A plain call does not go into the body, either."""
        if torch.cuda.is_current_stream_capturing():
            return captures(inputs)
        inputs.clear()
        return ()

    recorded._run = run
    kept = []
    for _ in range(CALLS):
        x, y = randn(300), randn(300)
        before = x.clone()
        call(x, y)
        kept.append((x, y, before))
    assert all(torch.equal(x, before) for x, _, before in kept)
    recording = only_with_a_conditional_node()
    assert recording.count() >= CALLS - 2
    expect_twins()
    expect_twins_in_the_body(recording)


def test_operator_beside_kernels_of_a_body_lets_all_slots_be_copied(engine: None) -> None:
    noise, other = randn(300), randn(300)
    torch.sin(noise, out=other)

    @contextlib.contextmanager
    def body() -> Iterator[torch.cuda.Stream]:
        with conditional_body() as stream:
            yield stream
            with torch.cuda.stream(stream):
                torch.sin(noise, out=other)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 1) + y

    _, call = compiled_inside(body, function, randn(300, 300), randn(300, 300))
    agree(call, lambda _: (randn(300, 300), randn(300, 300)), replays=CALLS - 2)
    recording = only_with_a_conditional_node()
    assert {slot.engine for slot in recording.player.plan.slots} == {Engine.COPY}
    assert recording.player.staged == 0 and not any(map(is_twin, names(recording)))


@pytest.mark.parametrize("entered", [True, False])
def test_operator_in_a_body_lets_all_slots_be_copied(entered: bool) -> None:
    inside = torch.sin(bf(64, 64))  # a kernel that was never launched is not loaded, which a capture does not survive

    def body(empty: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        if torch.cuda.is_current_stream_capturing():
            with conditional_body(int(entered)) as stream, torch.cuda.stream(stream):
                torch.sin(x, out=inside)
        elif entered:
            torch.sin(x, out=inside)
        out = empty((64, 64), (64, 1), torch.bfloat16)
        torch.add(inside, y, out=out)
        return (out,)

    generated = Generated(body)
    kept = [(bf(64, 64), bf(64, 64)) for _ in range(6)]
    for x, y in kept:
        before = torch.sin(x) if entered else inside.clone()
        (got,) = generated.call([x, y])
        torch.testing.assert_close(got, before + y, rtol=0, atol=0)
    (recording,) = generated.recordings
    assert [slot.engine for slot in recording.player.plan.slots] == [Engine.COPY] * 3
    assert recording.log.nodes["memcpy"] == 3 and recording.player.staged == 0


# -- where the device decides in each replay whether they are executed

# By call. Hand-written functions are recorded on the second one.
FLAGS = pytest.mark.parametrize(
    "flags",
    [
        pytest.param((1, 1, 0, 0, 1, 0, 1, 1, 0), id="entered when recorded"),
        pytest.param((0, 0, 1, 1, 0, 1, 0, 0, 1), id="not entered when recorded"),
        pytest.param((1, 0, 1, 0, 0, 1, 1, 0, 0), id="entered before, not when recorded"),
    ],
)
ENGINES = pytest.mark.parametrize("setting", ["indirect", "auto"])


def test_kernel_that_sets_the_condition_changes_nothing_in_what_is_known_of_bodies() -> None:
    """And it does set the condition: this is the test of the kernel, before anything of ours replays it."""
    x, y, flag = torch.randn(64, device="cuda"), torch.empty(64, device="cuda"), new_flag(0)
    doubled = torch.mul(x, 2, out=y).clone()
    assert not is_set(flag)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        do_if(flag, lambda: torch.mul(x, 2, out=y))
    decides, conditional, inside = [read.node for read in nodes_of(graph.raw_cuda_graph())]
    assert decides.name == DECIDES and decides.updatable and not decides.conditional
    assert [area.size for area in decides.areas] == [8, 8] and decides.areas[1].word(0) == flag.data_ptr()
    assert (conditional.kind, conditional.identity) == (NodeKind.CONDITIONAL, ("IF", 1))
    assert inside.kind is NodeKind.KERNEL and inside.conditional and not inside.updatable
    graph.instantiate()
    for value in (1, 0, 0, 1, 1, 0):
        y.zero_()
        flag.fill_(value)
        graph.replay()
        assert torch.equal(y, doubled if value else torch.zeros_like(x)), value


def decided(
    flags: Sequence[int], body: Callable[..., Any], plain: Callable[..., Any], setting: str, **facts: Any
) -> Recording:
    """The recording of a function of two tensors and the flag that decides, after calls with these flags, which gave
    and wrote (to the first tensor) what `plain` does. Each call has tensors of its own.
    """
    generated = Generated(body, settings=Settings(engine=setting, strict=True), **facts)
    calls = []
    for value in flags:  # before the first call: what captures launch must have been launched
        x, y = bf(64, 64), bf(64, 64)
        changed = x.clone()
        calls.append((x, y, new_flag(value), changed, plain(changed, y, value)))
    for number, (x, y, flag, changed, want) in enumerate(calls):
        (got,) = generated.call([x, y, flag])
        assert torch.equal(bits(got), bits(want)), f"call {number}"
        assert torch.equal(bits(x), bits(changed)), f"call {number}"
    # Nor did a later call write to them.
    assert all(torch.equal(bits(x), bits(changed)) for x, _, _, changed, _ in calls)
    (recording,) = generated.recordings
    assert recording.count() == len(flags) - 2, generated.log.reasons
    expect_copies(recording)
    return recording


def expect_copies(recording: Recording) -> None:
    assert {slot.engine for slot in recording.player.plan.slots} == {Engine.COPY} and recording.player.staged == 0
    assert not any(map(is_twin, names(recording))) and names(recording).count(DECIDES) == 1
    kinds = [node.kind for node in recording.graph.nodes]
    # What the driver prints of copies beside it may be unknown.
    assert kinds.count(NodeKind.CONDITIONAL) + kinds.count(NodeKind.OTHER) == 1
    # Of the kernels, none is told another address.
    bound = {binding.node for slot in recording.player.plan.slots for binding in slot.bindings}
    assert {kinds[node] for node in bound} == {NodeKind.MEMCPY}


@FLAGS
@ENGINES
def test_body_is_executed_in_those_replays_whose_flag_says_so(setting: str, flags: Sequence[int]) -> None:
    between = bf(64, 64)

    def body(empty: Callable[..., Any], x: torch.Tensor, y: torch.Tensor, flag: torch.Tensor) -> Any:
        torch.cos(y, out=between)
        do_if(flag, lambda: torch.sin(x, out=between))
        out = empty((64, 64), (64, 1), torch.bfloat16)
        torch.add(between, y, out=out)
        return (out,)

    def plain(x: torch.Tensor, y: torch.Tensor, value: int) -> torch.Tensor:
        return (torch.sin(x) if value else torch.cos(y)) + y

    assert decided(flags, body, plain, setting).log.nodes["memcpy"] == 4


@FLAGS
@ENGINES
def test_body_writes_to_an_input_in_those_replays_whose_flag_says_so(setting: str, flags: Sequence[int]) -> None:
    def body(empty: Callable[..., Any], x: torch.Tensor, y: torch.Tensor, flag: torch.Tensor) -> Any:
        do_if(flag, lambda: x.mul_(y))
        out = empty((64, 64), (64, 1), torch.bfloat16)
        torch.add(x, y, out=out)
        return (out,)

    def plain(x: torch.Tensor, y: torch.Tensor, value: int) -> torch.Tensor:
        return (x.mul_(y) if value else x) + y

    # The three inputs to buffers, and from there the one that is written and the output.
    assert decided(flags, body, plain, setting, mutated_inputs=frozenset({0})).log.nodes["memcpy"] == 5


def generated_kernels_in_a_body_if(flag: torch.Tensor, flags: Sequence[int]) -> Recording:
    """The recording of a compiled function whose kernels are there, after calls with these flags, each with tensors of
    its own. The first of them is the one that is recorded.
    """

    def function(x: torch.Tensor, y: torch.Tensor) -> None:
        x.mul_(y)

    recorded, call = compiled_inside(lambda: body_if(flag), function, randn(300), randn(300))
    runs = recorded._run

    def run(inputs: list[Any]) -> Any:
        if torch.cuda.is_current_stream_capturing() or is_set(flag):
            return runs(inputs)
        inputs.clear()
        return ()

    recorded._run = run
    kept = []
    for value in flags:
        x, y = randn(300), randn(300)
        want = x * y if value else x.clone()
        flag.fill_(value)
        call(x, y)
        kept.append((x, y, want))
    assert [torch.equal(x, want) for x, _, want in kept] == [True] * len(flags)
    (recording,) = recorded._entries.recordings().values()
    assert recording.count() >= len(flags) - 2
    return recording


@FLAGS
def test_generated_kernels_in_a_body_that_somebody_elses_kernel_decides_about_are_given_copies(
    engine: None, flags: Sequence[int]
) -> None:
    expect_copies(generated_kernels_in_a_body_if(new_flag(0), flags[1:]))


@FLAGS
def test_twins_in_a_body_read_the_table_of_those_replays_that_enter_it(
    engine: None, flags: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the kernel that decides were known to have all its addresses among its parameters, which it has."""
    for indirection in (Watching, Steering):
        known = indirection.open_kernels
        monkeypatch.setattr(indirection, "open_kernels", lambda self, known=known: known(self) | {DECIDES})
    recording = generated_kernels_in_a_body_if(new_flag(0), flags[1:])
    assert {slot.engine for slot in recording.player.plan.slots} == {Engine.INDIRECT}
    kernels = [node for node in recording.graph.nodes if node.kind is NodeKind.KERNEL]
    assert [node.name for node in kernels[:2]] == [TABLE_WRITER, DECIDES]
    assert kernels[2:] and all(node.conditional and is_twin(node.name) for node in kernels[2:])
    assert recording.player.staged == 0 and "memcpy" not in recording.log.nodes
