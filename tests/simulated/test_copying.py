"""Slots that the graph copies itself: fixed buffers inside, one word to rewrite outside, no call served by Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pygraph_inductor
from pygraph_inductor.driver.protocol import TABLE_WRITER, TWIN, NodeKind
from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.recording import capture
from pygraph_inductor.recording import engines as planning
from pygraph_inductor.recording.record import Recording
from pygraph_inductor.replay.plan import Engine
from pygraph_inductor.selection.cost_model import Coefficients
from pygraph_inductor.settings import Settings
from tests.launching import IN_C
from tests.simulated.hand_written import HandWritten, check
from tests.simulated.test_indirect import empty, engines, names, only, two_kernels, two_vectors

COPYING = Settings(engine="copy")


def kinds(recording: Recording) -> list[NodeKind]:
    return [node.kind for node in recording.graph.nodes]


def read_by(count: int, namespace: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """So many kernels read `x`; all but the last write to memory that is no slot."""
    between, out = empty(namespace, 8), empty(namespace, 8)
    namespace["cpp_fused_0"](between, x)
    for _ in range(count - 2):
        namespace["cpp_fused_0"](between, between, x)
    namespace["cpp_fused_0"](out, between, x)
    return out


def many_readers(namespace: dict[str, Any], x: torch.Tensor) -> Any:
    return (read_by(100, namespace, x),)


@pytest.mark.parametrize("native", [True, False])
def test_copies_are_the_first_and_last_nodes_and_the_only_ones_that_are_updated(native: bool) -> None:
    function = HandWritten(two_kernels, native=native, settings=COPYING)
    check(function, two_vectors, calls=8)
    recording = only(function)
    copy, kernel = NodeKind.MEMCPY, NodeKind.KERNEL
    assert kinds(recording) == [copy, copy, kernel, kernel, copy]
    assert engines(recording) == [Engine.COPY] * 3
    assert [[binding.node for binding in slot.bindings] for slot in recording.player.plan.slots] == [[0], [1], [4]]
    assert recording.player.staged == 0
    assert (recording.python_replays == 0) is (native and IN_C)
    # Verification told the graph about the inputs of the recorded call; every replay moved all three.
    assert recording.count() == 6 and recording.log.updates == 3 * 7


def test_written_inputs_come_back_and_are_the_same_objects() -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        namespace["cpp_fused_0"](x, x, y)
        y.add_(1)
        return (x, y[2:])

    function = HandWritten(body, mutated_inputs=frozenset({0, 1}), settings=COPYING)
    check(function, two_vectors)
    assert [len(slot.bindings) for slot in only(function).player.plan.slots] == [2, 2]
    x, y = two_vectors()
    returned, view = function(x, y)
    assert returned is x and view.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    # As in the plain call: the kernel knows nothing of versions, the operator raises one, and copying raises none.
    assert (x._version, y._version) == (0, 1)
    assert only(function).player.staged == 0


@pytest.mark.parametrize("stages", [False, True])
def test_versions_rise_also_if_it_was_recorded_in_inference_mode(stages: bool) -> None:
    driver = SimulatedDriver()
    if stages:  # by the player
        driver.faults.refuses = lambda node: node.kind is NodeKind.MEMCPY

    def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        y.mul_(2)
        return (x + y,)

    function = HandWritten(body, driver, mutated_inputs=frozenset({1}), settings=COPYING)
    for inference in (True, True, True, False, False, True):
        with torch.inference_mode(inference):
            x, y = two_vectors()
            want = x + y * 2
            (got,) = function(x, y)
        assert torch.equal(got, want) and got.is_inference() == inference
        if not inference:
            assert y._version == 1
    assert function.log.replays == 4 and set(engines(only(function))) == {Engine.COPY}
    assert (only(function).player.staged > 0) is stages


def test_gaps_of_a_written_input_belong_to_somebody_else() -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        x.mul_(2)
        return (x + 1,)

    function = HandWritten(body, mutated_inputs=frozenset({0}), settings=COPYING)
    for _ in range(6):
        memory = torch.randn(4, 4)
        want = memory.clone()
        want[:, ::2] *= 2
        (got,) = function(memory[:, ::2])
        assert torch.equal(got, want[:, ::2] + 1) and torch.equal(memory, want)
    recording = only(function)
    assert recording.player.staged > 0, "the player copies elements, not bytes"
    assert [bool(slot.bindings) for slot in recording.player.plan.slots] == [False, True]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("size, stride", [((2, 2, 2), (1, 8, 4)), ((14,), (1,)), ((3, 14), (0, 1)), ((6,), (2,))])
def test_outputs_with_gaps_are_copied_with_them(inside: bool, size: Any, stride: Any) -> None:
    """By the graph and by the player; made as the one view of it is that is returned, or shown by that and another."""

    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        view = namespace["reinterpret_tensor"]
        alone, twice = (namespace["empty_strided_cpu"]((4, 2), (4, 1), torch.float32) for _ in range(2))
        for out in (alone, twice):
            namespace["cpp_fused_0"](view(out, (14,), (1,), 0), x)  # what else is in its memory
            namespace["cpp_fused_1"](out, x, x)
        return (view(alone, size, stride, 0), view(twice, size, stride, 0), twice)

    driver = SimulatedDriver()
    driver.faults.refuses = lambda node: not inside and node.kind is NodeKind.MEMCPY
    function = HandWritten(body, driver, settings=COPYING)
    function.namespace["cpp_fused_1"] = function.namespace["cpp_fused_0"]
    check(function, lambda: (torch.randn(8),))
    recording = only(function)
    assert set(engines(recording)) == {Engine.COPY} and (recording.player.staged == 0) is inside
    assert (recording.player.plan.returned[0].view is None) is (size != (6,))


@pytest.mark.parametrize("make", [lambda: torch.randn(6, 6)[1:5, ::2], lambda: torch.randn(1, 4).expand(3, 4)])
def test_inputs_with_gaps_or_overlaps_in_themselves_are_copied_if_they_are_only_read(
    make: Callable[[], torch.Tensor],
) -> None:
    function = HandWritten(lambda namespace, x: (torch.mul(x, 3),), settings=COPYING)
    kept = [make() for _ in range(6)]
    for x in kept:
        (got,) = function(x)
        assert torch.equal(got, x * 3)
    assert only(function).player.staged == 0 and (only(function).python_replays == 0) is IN_C
    assert function.log.replays == 4 and engines(only(function))[0] is Engine.COPY


def test_outputs_that_operators_allocate_and_empty_tensors() -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor, nothing: torch.Tensor) -> Any:
        values, indices = torch.sort(x)
        return (values, indices, nothing, empty(namespace, 0))

    function = HandWritten(body, settings=COPYING)
    check(function, lambda: (torch.randn(8), torch.randn(0)))
    assert set(engines(only(function))) == {Engine.COPY} and only(function).player.staged == 0


@pytest.mark.parametrize("forgotten", ["copy_in", "copy_out"])
def test_copy_that_is_not_made_is_caught(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    monkeypatch.setattr(capture, forgotten, lambda insides, stand_ins: None)
    function = HandWritten(two_kernels, settings=COPYING)
    check(function, two_vectors)
    assert only(function).player.staged > 0, "the player copies what the graph does not"


def test_graph_with_a_node_that_cannot_be_looked_into_copies_its_slots(caplog: Any) -> None:
    """A child graph, for instance: nothing in it is rewritten, so its nodes get fixed addresses."""
    driver = SimulatedDriver()
    driver.faults.unknown = lambda name: name == "cpp_fused_0"
    function = HandWritten(two_kernels, driver)
    check(function, two_vectors)
    recording = only(function)
    assert engines(recording) == [Engine.COPY] * 3
    assert (recording.player.staged, recording.python_replays == 0) == (0, IN_C)
    assert "a cpp_fused_0 node" in caplog.text and "staged through fixed buffers" in caplog.text
    assert len(caplog.records) == 1


def test_hidden_address_in_a_written_tensor_is_served_by_copies() -> None:
    driver = SimulatedDriver()
    driver.faults.hides = lambda name, argument: name == "aten.add_.Tensor" and argument == 0
    function = HandWritten(lambda names, x: (x.add_(1).sum(),), driver, mutated_inputs=frozenset({0}))
    check(function, lambda: (torch.randn(8),))
    assert set(engines(only(function))) == {Engine.COPY}
    assert (only(function).player.staged, only(function).python_replays == 0) == (0, IN_C)


def test_player_copies_if_the_graph_cannot() -> None:
    driver = SimulatedDriver()
    driver.faults.refuses = lambda node: node.kind is NodeKind.MEMCPY
    function = HandWritten(two_kernels, driver, settings=COPYING)
    check(function, two_vectors)
    assert engines(only(function)) == [Engine.COPY] * 3 and only(function).player.staged > 0


def test_misaligned_call_of_copied_slots() -> None:
    function = HandWritten(many_readers, settings=COPYING)
    check(function, lambda: (torch.randn(8),))
    for _ in range(2):
        x = torch.randn(9)[1:]
        assert torch.equal(function(x)[0], function.run([x])[0])


@pytest.fixture
def automatic() -> Any:
    with pygraph_inductor.config.patch(engine="auto"):
        yield


def costing(monkeypatch: pytest.MonkeyPatch, **microseconds: float) -> None:
    monkeypatch.setattr(planning, "coefficients", lambda driver, folder: Coefficients(**microseconds))


@pytest.mark.usefixtures("automatic")
def test_auto_copies_a_small_input_with_many_readers() -> None:
    function = HandWritten(many_readers)
    check(function, lambda: (torch.randn(8),))
    recording = only(function)
    assert engines(recording) == [Engine.COPY, Engine.PATCH]
    assert kinds(recording)[0] is NodeKind.MEMCPY and TABLE_WRITER not in names(recording)
    assert (recording.python_replays == 0) is IN_C and recording.player.staged == 0
    log = recording.log
    assert log.why.startswith("1 of 2 slots copied: 1.9 µs a call, 21.0 µs if all were patched")
    assert log.engine_costs["chosen"] == log.engine_costs["copy"] < log.engine_costs["indirect"]
    assert log.slot_costs["input 0"]["engine"] == "copy"
    assert "copy" not in log.slot_costs["output 0"], "an output is not copied whatever it costs"


@pytest.mark.usefixtures("automatic")
@pytest.mark.parametrize(("readers", "copied"), [(20, False), (40, True)])
def test_auto_copies_only_what_saves_more_than_a_little(
    monkeypatch: pytest.MonkeyPatch, readers: int, copied: bool
) -> None:
    """Of 4.0 µs for patching 1.6 would be left, or of 8.0."""
    costing(monkeypatch, node_update=0.2, copy_launch=1.2, indirect_load=1.0)
    function = HandWritten(lambda namespace, x: (read_by(readers, namespace, x),))
    check(function, lambda: (torch.randn(8),))
    assert (Engine.COPY in engines(only(function))) is copied
    assert copied or "copies 1.6 µs, and have to save 3" in only(function).log.why


@pytest.mark.usefixtures("automatic")
def test_auto_copies_where_a_table_were_better_but_takes_too_long_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    costing(monkeypatch, indirect_load=0.001)
    monkeypatch.setattr(planning, "COMPILING", 1e12)
    function = HandWritten(many_readers)
    check(function, lambda: (torch.randn(8),))
    log = only(function).log
    assert log.engine_costs["indirect"] < log.engine_costs["copy"] == log.engine_costs["chosen"]
    assert engines(only(function)) == [Engine.COPY, Engine.PATCH]
    assert "1 of 2 slots copied" in log.why and "takes too long" in log.why


@pytest.mark.usefixtures("automatic")
@pytest.mark.parametrize("reason", ["large", "dear", "written", "static"])
def test_auto_does_not_copy(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    costing(monkeypatch, indirect_load=1.0, copy_launch=30.0 if reason == "dear" else 2.0)
    if reason == "large":
        monkeypatch.setattr(planning, "MOST_COPIED", 31)
    facts: dict[str, Any] = {"mutated_inputs": frozenset({0})} if reason == "written" else {}
    if reason == "static":
        facts["static_inputs"] = frozenset({0})
    function = HandWritten(many_readers, **facts)
    check(function, lambda: (torch.randn(8),))
    assert Engine.COPY not in engines(only(function))
    log = only(function).log
    assert ("copies 30.4 µs" if reason == "dear" else "no slot is a small input that is only read") in log.why
    assert ("copy" in log.slot_costs["input 0"]) is (reason == "dear")


def written_between(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    """`x` is read before and after `y` is written, and may be the same memory."""
    before = read_by(50, namespace, x)
    namespace["cpp_fused_0"](y, y, before)
    return before, read_by(50, namespace, x)


@pytest.mark.usefixtures("automatic")
@pytest.mark.parametrize("distance", [None, 0, 4])
def test_input_that_is_written_under_another_name_is_not_copied(distance: int | None) -> None:
    function = HandWritten(written_between, mutated_inputs=frozenset({1}))
    for _ in range(6):
        memory = torch.randn(32)
        inputs, wanted = [
            (one[:8], one[16:24] if distance is None else one[distance : distance + 8])
            for one in (memory, memory.clone())
        ]
        want = function.run(list(wanted))
        got = function(*inputs)
        assert all(map(torch.equal, [*got, *inputs], [*want, *wanted]))
    assert function.log.replays >= 3
    assert engines(only(function)).count(Engine.COPY) == (distance is None), only(function).log.why


@pytest.mark.usefixtures("automatic")
def test_inputs_that_overlap_are_not_copied() -> None:
    function = HandWritten(lambda namespace, x, y: (read_by(100, namespace, x), torch.add(x, y)))
    for _ in range(6):
        memory = torch.randn(12)
        inputs = memory[:8], memory[4:]
        assert all(map(torch.equal, function(*inputs), function.run(list(inputs))))
    assert Engine.COPY not in engines(only(function)) and function.log.replays == 4


@pytest.mark.usefixtures("automatic")
def test_copies_and_a_table_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """`x` is in few kernels of its own and is copied; `y` is in kernels of others, for which a table pays."""
    costing(monkeypatch, indirect_load=0.05, node_update=1.0, table_node=1.0, bytes_per_us=10.0, copy_launch=1.0)

    def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        for _ in range(40):
            namespace["aten"].mul(x, 2)
        return (read_by(100, namespace, y),)

    function = HandWritten(body)
    function.namespace["aten"] = torch.ops.aten
    check(function, lambda: (torch.randn(2), torch.randn(1 << 10)))
    recording = only(function)
    assert engines(recording) == [Engine.COPY, Engine.INDIRECT, Engine.INDIRECT]
    assert names(recording)[0] == TABLE_WRITER and kinds(recording)[1] is NodeKind.MEMCPY
    assert sum(name.endswith(TWIN) for name in names(recording)) == 100


@pytest.mark.usefixtures("automatic")
def test_slots_are_patched_if_the_graph_cannot_copy(caplog: Any) -> None:
    driver = SimulatedDriver()
    driver.faults.refuses = lambda node: node.kind is NodeKind.MEMCPY
    function = HandWritten(many_readers, driver)
    check(function, lambda: (torch.randn(8),))
    assert engines(only(function)) == [Engine.PATCH] * 2
    assert "not a table of them or of copies" in caplog.text
