"""The indirect engine: kernels that find their tensors in a table, which the graph's first node writes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import pygraph_inductor
from pygraph_inductor.driver import simulated
from pygraph_inductor.driver.protocol import TABLE_WRITER, TWIN
from pygraph_inductor.driver.simulated import SimulatedTable, SimulatedTwins
from pygraph_inductor.recording import engines as planning
from pygraph_inductor.recording.record import Recording
from pygraph_inductor.replay.plan import Engine
from pygraph_inductor.selection.cost_model import Coefficients
from tests.simulated import two_ways
from tests.simulated.hand_written import F32, HandWritten, check


@pytest.fixture(autouse=True)
def indirectly() -> Any:
    with pygraph_inductor.config.patch(engine="indirect"):
        yield


def empty(namespace: dict[str, Any], *size: int) -> torch.Tensor:
    return namespace["empty_strided_cpu"](size, torch.empty(size, device="meta").stride(), F32)


def two_kernels(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    between, out = empty(namespace, 8), empty(namespace, 8)
    namespace["cpp_fused_0"](between, x, y)
    namespace["cpp_fused_0"](out, between, x)
    return (out,)


def two_vectors() -> Sequence[torch.Tensor]:
    return torch.randn(8), torch.randn(8)


def names(recording: Recording) -> list[str]:
    return [node.name for node in recording.graph.nodes]


def engines(recording: Recording) -> list[Engine]:
    return [slot.engine for slot in recording.player.plan.slots]


def only(function: HandWritten) -> Recording:
    (recording,) = function.recordings
    return recording


def consumed_by(count: int) -> Callable[..., Any]:
    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        out = empty(namespace, 8)
        namespace["cpp_fused_0"](out, x)
        for _ in range(count - 1):
            namespace["cpp_fused_0"](out, out, x)
        return (out,)

    return body


@pytest.mark.parametrize("native", [True, False])
def test_kernels_of_the_replayed_graph_read_addresses_from_the_table(native: bool) -> None:
    function = HandWritten(two_kernels, native=native)
    check(function, two_vectors)
    recording = only(function)
    assert names(recording) == [TABLE_WRITER, "cpp_fused_0" + TWIN, "cpp_fused_0" + TWIN]
    assert engines(recording) == [Engine.INDIRECT] * 3
    assert {binding.node for slot in recording.player.plan.slots for binding in slot.bindings} == {0}


def test_one_node_is_updated_however_many_kernels_use_a_slot() -> None:
    function = HandWritten(consumed_by(20))
    check(function, lambda: (torch.randn(8),), calls=8)
    assert function.log.recordings[0].replays == 6
    # Verification told the graph about the inputs of the recorded call; every replay moved both slots.
    assert function.log.recordings[0].updates == 7


def test_patching_updates_every_kernel() -> None:
    with pygraph_inductor.config.patch(engine="patch"):
        function = HandWritten(consumed_by(20))
    check(function, lambda: (torch.randn(8),), calls=8)
    assert names(only(function)) == ["cpp_fused_0"] * 20
    assert function.log.recordings[0].updates == 7 * 20


def test_operators_of_a_slot_in_the_table_are_patched() -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor, w: torch.Tensor) -> Any:
        out = empty(namespace, 4, 4)
        namespace["cpp_fused_0"](out, x)
        return (torch.mm(out, w), torch.mm(x, out))

    function = HandWritten(body)
    check(function, lambda: (torch.randn(4, 4), torch.randn(4, 4)))
    recording = only(function)
    assert names(recording)[0] == TABLE_WRITER
    slot = {slot.source: slot for slot in recording.player.plan.slots if not slot.is_output}
    assert slot[0].engine is Engine.INDIRECT
    assert {names(recording)[binding.node] for binding in slot[0].bindings} == {TABLE_WRITER, "aten.mm.default"}
    assert slot[1].engine is Engine.PATCH


def test_view_that_begins_inside_a_slot_is_patched() -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        out = empty(namespace, 4)
        namespace["cpp_fused_0"](out, namespace["reinterpret_tensor"](x, (4,), (1,), 4))
        return (out,)

    function = HandWritten(body)
    check(function, lambda: (torch.randn(8),))
    assert engines(only(function)) == [Engine.PATCH, Engine.INDIRECT]
    assert [binding.addend for binding in only(function).player.plan.slots[0].bindings] == [16]


def test_written_inputs_and_one_tensor_given_twice_go_through_the_table() -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        out = empty(namespace, 8)
        namespace["cpp_fused_0"](x, x, y)
        namespace["cpp_fused_0"](out, x, x)
        return (out, x)

    function = HandWritten(body, mutated_inputs=frozenset({0}))
    check(function, two_vectors)
    assert names(only(function)) == [TABLE_WRITER, "cpp_fused_0" + TWIN, "cpp_fused_0" + TWIN]


def test_parameters_go_through_the_table_if_it_is_forced() -> None:
    weight = torch.randn(8)
    function = HandWritten(two_kernels, static_inputs=frozenset({1}))
    check(function, lambda: (torch.randn(8), weight))
    assert engines(only(function)) == [Engine.INDIRECT] * 3


def test_graph_without_kernels_has_no_table() -> None:
    function = HandWritten(lambda namespace, x: (torch.mm(x, x),))
    check(function, lambda: (torch.randn(4, 4),))
    assert TABLE_WRITER not in names(only(function))


original = simulated.write_table


def test_table_that_mixes_slots_up_is_caught(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def mixed_up(entries: torch.Tensor, *tensors: torch.Tensor) -> None:
        first, second, out = tensors
        original(entries, second, first, out)

    monkeypatch.setattr(simulated, "write_table", mixed_up)
    function = HandWritten(two_kernels)
    check(function, two_vectors)
    assert engines(only(function)) == [Engine.PATCH] * 3
    assert "given addresses, not a table of them" in caplog.text


def test_table_that_keeps_the_addresses_of_the_capture_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: SimulatedTable, tensors: Sequence[torch.Tensor]) -> None:
        original(self.entries, *tensors)  # now, on the host: no node does it again

    monkeypatch.setattr(SimulatedTable, "write", write)
    function = HandWritten(two_kernels)
    check(function, two_vectors)
    assert engines(only(function)) == [Engine.PATCH] * 3


def test_kernel_without_a_twin_is_patched_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        between, out = empty(namespace, 8), empty(namespace, 8)
        namespace["cpp_fused_0"](between, x)
        namespace["cpp_fused_1"](out, between, x)
        return (out,)

    function = HandWritten(body)
    function.namespace["cpp_fused_1"] = function.namespace["cpp_fused_0"]
    monkeypatch.setattr(SimulatedTwins, "prepare", lambda self, kernel, arguments: "no" if "1" in kernel else None)
    check(function, lambda: (torch.randn(8),))
    assert names(only(function)) == [TABLE_WRITER, "cpp_fused_0" + TWIN, "cpp_fused_1"]


@pytest.mark.parametrize("problem", ["prepare", "new_table"])
def test_slots_are_patched_if_making_twins_fails(monkeypatch: pytest.MonkeyPatch, caplog: Any, problem: str) -> None:
    function = HandWritten(two_kernels)

    def fail(*args: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(function.driver if problem == "new_table" else SimulatedTwins, problem, fail)
    check(function, two_vectors)
    assert engines(only(function)) == [Engine.PATCH] * 3
    assert "RuntimeError: no; its kernels are given addresses" in caplog.text


def test_captures_of_one_recording_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device, what the last graph of a pool leaves is given to no capture before the caches are emptied."""
    function = HandWritten(two_kernels)
    pools: list[Any] = []
    graphs: list[Any] = []
    new_pool, capture = function.driver.new_pool, function.driver.capture

    def noted_pool() -> Any:
        pools.append(new_pool())
        return pools[-1]

    def noted_capture(*args: Any) -> Any:
        graph, result = capture(*args)
        graphs.append(graph)
        return graph, result

    monkeypatch.setattr(function.driver, "new_pool", noted_pool)
    monkeypatch.setattr(function.driver, "capture", noted_capture)
    # So that verification fails: the slots are mixed up.
    monkeypatch.setattr(simulated, "write_table", lambda entries, x, y, out: original(entries, y, x, out))
    check(function, two_vectors)
    assert engines(only(function)) == [Engine.PATCH] * 3
    assert len(graphs) == 6 and len(pools) == 1
    assert [graph for graph in graphs if not graph.closed] == [only(function).graph]


def costing(**microseconds: float) -> Callable[..., Coefficients]:
    return lambda driver, folder: Coefficients(**microseconds)


@pytest.mark.parametrize(("load", "chosen"), [(0.001, True), (1.0, False)])
def test_auto_takes_the_table_where_the_model_says_that_it_is_cheaper(
    monkeypatch: pytest.MonkeyPatch, load: float, chosen: bool
) -> None:
    monkeypatch.setattr(planning, "coefficients", costing(indirect_load=load))
    with pygraph_inductor.config.patch(engine="auto"):
        function = HandWritten(consumed_by(100))
    check(function, lambda: (torch.randn(8),))
    assert (Engine.INDIRECT in engines(only(function))) is chosen
    assert (TABLE_WRITER in names(only(function))) is chosen


def test_auto_does_not_compile_twins_that_never_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table saves 30 - 2 - 20 µs a call; each of two twins takes a third of a second to compile."""
    monkeypatch.setattr(planning, "coefficients", costing(node_update=0.3, indirect_load=0.2, table_node=1.7))
    monkeypatch.setattr(planning, "PAID_BACK", 50_000)
    with pygraph_inductor.config.patch(engine="auto"):
        function = HandWritten(consumed_by(100))
    check(function, lambda: (torch.randn(8),))
    assert engines(only(function)) == [Engine.PATCH] * 2
    log = only(function).log
    assert log.engine_costs["indirect"] < log.engine_costs["patch"] == log.engine_costs["chosen"]
    assert "compiling 2 twins takes too long for that" in log.why
    monkeypatch.setattr(planning, "PAID_BACK", 100_000)
    with pygraph_inductor.config.patch(engine="auto"):
        function = HandWritten(consumed_by(100))
    check(function, lambda: (torch.randn(8),))
    assert engines(only(function)) == [Engine.INDIRECT] * 2


def test_auto_leaves_parameters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "coefficients", costing(indirect_load=0.0, table_node=0.0, node_update=100.0))
    weight = torch.randn(8)
    with pygraph_inductor.config.patch(engine="auto"):
        function = HandWritten(two_kernels, static_inputs=frozenset({1}))
    check(function, lambda: (torch.randn(8), weight))
    assert engines(only(function)) == [Engine.INDIRECT, Engine.STATIC, Engine.INDIRECT]


def test_many_slots_share_a_table() -> None:
    def body(namespace: dict[str, Any], *inputs: torch.Tensor) -> Any:
        out = empty(namespace, 8)
        namespace["cpp_fused_0"](out, *inputs)
        return (out,)

    function = HandWritten(body)
    check(function, lambda: [torch.randn(8) for _ in range(40)])
    (entry,) = {binding.node for slot in only(function).player.plan.slots for binding in slot.bindings}
    assert names(only(function))[entry] == TABLE_WRITER


def test_compiled_program_runs_from_twins() -> None:
    def program() -> Callable[[int], Any]:
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
        step = two_ways.compiled(model)

        def run(number: int) -> Any:
            x = torch.randn(4, 8, requires_grad=True)
            y = step(x)
            y.square().sum().backward()
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            model.zero_grad()
            return y, x.grad, *gradients

        return run

    facts = two_ways.check(program, functions=2)
    assert all(one.recordings[-1].slots.get("indirect") for one in facts)
    assert [one.kind for one in facts] == ["forward", "backward"]


def test_addresses_that_come_back_need_no_update() -> None:
    function = HandWritten(two_kernels)
    pairs = [two_vectors(), two_vectors()]
    kept = [function(*pair) for pair in itertools.islice(itertools.cycle(pairs), 6)]
    wanted = [function.run(list(pair)) for pair in itertools.islice(itertools.cycle(pairs), 6)]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(kept, wanted, strict=True))


def test_report_says_what_engines_would_have_cost_and_why_one_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    known = costing(node_update=0.5, indirect_load=0.25, table_node=4.0, table_update=0.3, copy_launch=2.1)
    monkeypatch.setattr(planning, "coefficients", known)
    with pygraph_inductor.config.patch(engine="auto"):
        function = HandWritten(consumed_by(10))
    check(function, lambda: (torch.randn(8),))
    log = only(function).log
    assert log.engine_costs == {"patch": 5.0, "indirect": 2.5 + 4.0 + 0.3, "copy": 5.0 + 2.6, "chosen": 5.0}
    assert log.why == "patching 10 nodes costs 5.0 µs a call; a table 6.8 µs, copies 7.6 µs"
    assert log.twins == 0
    assert log.slot_costs["input 0"]["engine"] == "patch"
    assert log.slot_costs["input 0"]["patch"] == 5.0
    assert log.slot_costs["input 0"]["indirect"] == 2.5 + 4.3 / 2
    assert log.slot_costs["input 0"]["copy"] == 2.1 + 0.5
    assert "copy" not in log.slot_costs["output 0"]
    assert log.why in str(pygraph_inductor.report())


def test_report_says_which_kernels_have_no_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = lambda self, kernel, arguments: "it is written by the user" if len(arguments) > 2 else None
    monkeypatch.setattr(SimulatedTwins, "prepare", refuses)

    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        out = empty(namespace, 8)
        namespace["cpp_fused_0"](out, x)
        namespace["cpp_fused_0"](out, x, x)
        return (out,)

    function = HandWritten(body)
    check(function, lambda: (torch.randn(8),))
    assert only(function).log.twins == 1
    text = str(pygraph_inductor.report())
    assert "1 of 3 kernels find them through a table" in text
    assert "cpp_fused_0 does not: it is written by the user" in text
