"""Nodes inside child graphs, which cannot be told new addresses: a table for kernels with twins, copies for others.

What has no business there is rewritten as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pygraph_inductor.driver.protocol import TABLE_WRITER, TWIN
from pygraph_inductor.driver.simulated import SimulatedDriver, SimulatedTwins
from pygraph_inductor.recording.record import Recording
from pygraph_inductor.replay.plan import Engine
from pygraph_inductor.settings import Settings
from tests.launching import IN_C
from tests.simulated.hand_written import HandWritten, check, fused
from tests.simulated.test_indirect import empty, engines, names, only, two_vectors

AUTO = Settings(engine="auto")


def in_child_graph(body: Callable[..., Any], inside: Callable[[str], bool], **facts: Any) -> HandWritten:
    """`body` has a kernel "cpp_fused_1" besides. The nodes that are `inside`, by name, are in a child graph."""
    driver = SimulatedDriver()
    driver.faults.inside = inside
    function = HandWritten(body, driver, **{"settings": AUTO, **facts})
    function.namespace["cpp_fused_1"] = fused
    return function


def kernel_inside(name: str) -> bool:
    return name.startswith("cpp_fused_1")


def library_inside(name: str) -> bool:
    return name == "aten.sin.default"


def one_inside(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    """Of its two kernels, one is in the child graph and reads `x`."""
    between, out = empty(namespace, 8), empty(namespace, 8)
    namespace["cpp_fused_1"](between, x)
    namespace["cpp_fused_0"](out, between, y)
    return (out,)


def updated(recording: Recording) -> set[int]:
    return {binding.node for slot in recording.player.plan.slots for binding in slot.bindings}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("engine", ["auto", "indirect"])
def test_twin_in_a_child_graph_reads_the_table(engine: str, native: bool) -> None:
    """Also where the model would rather patch, were it possible."""
    function = in_child_graph(one_inside, kernel_inside, native=native, settings=Settings(engine=engine))
    check(function, two_vectors)
    recording = only(function)
    others = [Engine.INDIRECT] * 2 if engine == "indirect" else [Engine.PATCH] * 2
    assert engines(recording) == [Engine.INDIRECT, *others]
    assert names(recording)[:2] == [TABLE_WRITER, "cpp_fused_1" + TWIN] and recording.log.twins >= 1
    assert all(recording.graph.nodes[node].updatable for node in updated(recording))
    assert recording.player.staged == 0 and "memcpy" not in recording.log.nodes
    assert (recording.python_replays == 0) is (native and IN_C)


@pytest.mark.parametrize("native", [True, False])
def test_output_of_a_child_graph_is_found_in_the_table(native: bool) -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        first, second = empty(namespace, 8), empty(namespace, 8)
        namespace["cpp_fused_0"](first, x, y)
        namespace["cpp_fused_1"](second, first)
        x.add_(1)
        return (second, first)

    function = in_child_graph(body, kernel_inside, native=native, mutated_inputs=frozenset({0}))
    check(function, two_vectors)
    recording = only(function)
    by_name = dict(zip(["x", "y", "first", "second"], engines(recording), strict=True))
    assert by_name == {"x": Engine.PATCH, "y": Engine.PATCH, "first": Engine.INDIRECT, "second": Engine.INDIRECT}
    assert "memcpy" not in recording.log.nodes


def library(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    """An operator in a child graph reads `x`, and has no twin."""
    out = empty(namespace, 8)
    namespace["cpp_fused_0"](out, torch.ops.aten.sin.default(x), y)
    return (out,)


@pytest.mark.parametrize("engine", ["auto", "patch", "indirect"])
def test_what_has_no_twin_gets_a_copy_and_the_others_none(engine: str) -> None:
    function = in_child_graph(library, library_inside, settings=Settings(engine=engine))
    check(function, two_vectors)
    recording = only(function)
    other = Engine.INDIRECT if engine == "indirect" else Engine.PATCH
    assert engines(recording) == [Engine.COPY, other, other]
    assert recording.player.staged == 0 and recording.log.nodes["memcpy"] == 1


def test_both_in_one_graph(caplog: pytest.LogCaptureFixture) -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        out, second = empty(namespace, 8), empty(namespace, 8)
        namespace["cpp_fused_0"](out, torch.ops.aten.sin.default(x))
        namespace["cpp_fused_1"](second, y)
        return (out, second)

    function = in_child_graph(body, lambda name: kernel_inside(name) or library_inside(name))
    check(function, two_vectors)
    recording = only(function)
    assert engines(recording) == [Engine.COPY, Engine.INDIRECT, Engine.PATCH, Engine.INDIRECT]
    assert recording.log.nodes["memcpy"] == 1 and not caplog.records


@pytest.mark.parametrize("engine", ["auto", "indirect"])
def test_slot_that_only_some_kernels_of_a_child_graph_can_find_is_copied_and_the_others_keep_their_table(
    engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        out, second, third = empty(namespace, 8), empty(namespace, 8), empty(namespace, 8)
        namespace["cpp_fused_1"](out, torch.ops.aten.sin.default(x))
        namespace["cpp_fused_1"](second, x)
        namespace["cpp_fused_1"](third, y)
        return (out, second, third)

    inside = lambda name: kernel_inside(name) or library_inside(name)
    function = in_child_graph(body, inside, settings=Settings(engine=engine))
    check(function, two_vectors)
    recording = only(function)
    assert engines(recording) == [Engine.COPY] + [Engine.INDIRECT] * 4
    assert recording.log.nodes["memcpy"] == 1 and recording.log.twins == 3 and not caplog.records
    assert recording.log.why.endswith("; graphs inside it mention 5 of its slots, and nothing there can be patched")


@pytest.mark.parametrize("engine", ["auto", "indirect"])
def test_slot_of_a_kernel_without_a_twin_is_copied_and_the_others_keep_their_table(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        out, second = empty(namespace, 8), empty(namespace, 8)
        namespace["cpp_fused_1"](out, y)
        namespace["cpp_fused_1_without_twin"](second, x, out)
        return (out, second)

    refuses = lambda self, kernel, arguments: "no" if "without" in kernel else None
    monkeypatch.setattr(SimulatedTwins, "prepare", refuses)
    function = in_child_graph(body, kernel_inside, settings=Settings(engine=engine))
    function.namespace["cpp_fused_1_without_twin"] = fused
    check(function, two_vectors)
    recording = only(function)
    by_name = dict(zip(["x", "y", "out", "second"], engines(recording), strict=True))
    assert by_name == {"x": Engine.COPY, "y": Engine.INDIRECT, "out": Engine.COPY, "second": Engine.COPY}
    assert recording.log.nodes["memcpy"] == 3 and recording.player.staged == 0


def test_written_input_of_a_child_graph_comes_back() -> None:
    def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        torch.ops.aten.sin_.default(x)
        return (x * y,)

    function = in_child_graph(body, lambda name: name == "aten.sin_.default", mutated_inputs=frozenset({0}))
    check(function, two_vectors)
    recording = only(function)
    assert engines(recording)[:2] == [Engine.COPY, Engine.PATCH]
    assert recording.player.staged == 0 and recording.log.nodes["memcpy"] == 2


def test_written_input_that_another_one_shows_is_not_copied(caplog: pytest.LogCaptureFixture) -> None:
    """A view of it would not see what the child graph writes; so there is no graph, and a reason."""

    def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        torch.ops.aten.sin_.default(x)
        return (x * y,)

    def overlapping() -> Sequence[torch.Tensor]:
        memory = torch.randn(12)
        return memory[:8], memory[4:]

    function = in_child_graph(body, lambda name: name == "aten.sin_.default", mutated_inputs=frozenset({0}))
    for _ in range(5):
        mine = overlapping()
        other = mine[0]._base.clone()  # type: ignore[union-attr]
        (want,) = function.run([other[:8], other[4:]])
        assert torch.equal(function(*mine)[0], want) and torch.equal(mine[0]._base, other)  # type: ignore[arg-type]
    assert not function.recordings
    assert (
        "nodes of graphs inside it hold addresses of tensors: aten.sin_.default; it runs without a graph" in caplog.text
    )


def test_output_that_an_operator_allocates_and_a_child_graph_writes_is_copied(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing in there can be told where it shall be."""

    def body(namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        doubled = empty(namespace, 8)
        namespace["cpp_fused_0"](doubled, x, y)
        return (torch.ops.aten.sin.default(doubled), torch.ops.aten.cos.default(doubled))

    function = in_child_graph(body, library_inside)
    check(function, two_vectors)
    recording = only(function)
    assert engines(recording) == [Engine.PATCH] * 4 and recording.log.nodes["memcpy"] == 1
    assert not caplog.records, "it is known before a device refuses it"


def test_view_that_begins_inside_a_slot_is_copied_for_a_twin_that_was_not_asked() -> None:
    """A table has the beginning of a slot, and no kernel of a child graph can be told anything else."""

    def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
        out = empty(namespace, 8)
        namespace["cpp_fused_1"](out, x, x[4:])
        return (out,)

    function = in_child_graph(body, kernel_inside)
    check(function, lambda: (torch.randn(8),))
    recording = only(function)
    assert engines(recording)[0] is Engine.COPY and recording.player.staged == 0


def test_hidden_address_in_a_child_graph_is_noticed_as_everywhere() -> None:
    function = in_child_graph(one_inside, kernel_inside)
    function.driver.faults.hides = lambda name, argument: kernel_inside(name) and argument == 1
    check(function, two_vectors)
    assert set(engines(only(function))) == {Engine.COPY}
