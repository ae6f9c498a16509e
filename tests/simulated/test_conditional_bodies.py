"""Kernels in bodies of conditional nodes: a table, where all kernels of the graph are ours, else copies of all slots.

Whether the verified replay came to the body or not: those that come after it may do otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pygraph_inductor.driver.protocol import TABLE_WRITER, TWIN
from pygraph_inductor.driver.simulated import SimulatedDriver, SimulatedTwins
from pygraph_inductor.replay.plan import Engine
from pygraph_inductor.settings import Settings
from tests.launching import IN_C
from tests.simulated.hand_written import HandWritten, check, fused
from tests.simulated.test_child_graphs import kernel_inside, library_inside, updated
from tests.simulated.test_indirect import empty, engines, names, only, two_vectors

AUTO = Settings(engine="auto")
# By call: whether the body is executed. The second call is the one that is recorded and verified.
TAKEN = pytest.mark.parametrize(
    "taken",
    [
        pytest.param((True,) * 7, id="taken"),
        pytest.param((False,) * 7, id="not taken"),
        pytest.param((True, True, False, True, False, True, False), id="taken when recorded"),
        pytest.param((True, False, True, False, True, True, False), id="not taken when recorded"),
    ],
)


class Conditionally:
    """`body` launches, with `inside`, what is in the body of a conditional node."""

    def __init__(self, body: Callable[..., Any], inside: Callable[[str], bool], **facts: Any) -> None:
        self.driver = SimulatedDriver()
        self.driver.faults.conditional = inside
        facts = {"settings": AUTO, "mutated_inputs": frozenset({0}), **facts}
        self.function = HandWritten(lambda *args: body(self.is_entered, *args), self.driver, **facts)
        self.function.namespace["cpp_fused_1"] = fused

    def is_entered(self) -> bool:
        return self.driver.is_capturing() or self.driver.faults.taken

    def check(self, taken: Sequence[bool]) -> None:
        """Calls, in each of which the condition is another one, and the plain call's answer."""
        conditions = iter(taken)

        def make() -> Sequence[torch.Tensor]:
            self.driver.faults.taken = next(conditions)
            return two_vectors()

        check(self.function, make, calls=len(taken))


def kernel_in_body(is_entered: Callable[[], bool], namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    """The kernel in the body writes to `x`, which has another value otherwise."""
    out = empty(namespace, 8)
    if is_entered():
        namespace["cpp_fused_1"](x, x, y)
    namespace["cpp_fused_0"](out, x)
    return (out,)


def operator_in_body(
    is_entered: Callable[[], bool], namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor
) -> Any:
    out = empty(namespace, 8)
    if is_entered():
        torch.ops.aten.sin_.default(x)
        namespace["cpp_fused_1"](x, x, y)
    namespace["cpp_fused_0"](out, x)
    return (out,)


def in_body(name: str) -> bool:
    return kernel_inside(name) or name == "aten.sin_.default"


@TAKEN
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("engine", ["auto", "indirect"])
def test_twins_in_a_body_read_the_table(engine: str, native: bool, taken: Sequence[bool]) -> None:
    conditionally = Conditionally(kernel_in_body, in_body, settings=Settings(engine=engine), native=native)
    conditionally.check(taken)
    recording = only(conditionally.function)
    other = Engine.INDIRECT if engine == "indirect" else Engine.PATCH
    assert engines(recording) == [Engine.INDIRECT, Engine.INDIRECT, other]
    assert names(recording)[:2] == [TABLE_WRITER, "cpp_fused_1" + TWIN]
    assert all(recording.graph.nodes[node].updatable for node in updated(recording))
    assert recording.player.staged == 0 and "memcpy" not in recording.log.nodes
    assert (recording.python_replays == 0) is (native and IN_C)


@TAKEN
@pytest.mark.parametrize("engine", ["auto", "indirect", "patch"])
@pytest.mark.parametrize("hides", [False, True])
def test_operator_in_a_body_lets_all_slots_be_copied(
    engine: str, hides: bool, taken: Sequence[bool], caplog: pytest.LogCaptureFixture
) -> None:
    """It may have addresses where nobody sees them, and where it was not executed, nobody would have noticed."""
    conditionally = Conditionally(operator_in_body, in_body, settings=Settings(engine=engine))
    conditionally.driver.faults.hides = lambda name, argument: hides and name == "aten.sin_.default"
    conditionally.check(taken)
    recording = only(conditionally.function)
    assert engines(recording) == [Engine.COPY] * 3 and recording.player.staged == 0
    assert "in the body of a conditional node" in caplog.text


@TAKEN
@pytest.mark.parametrize("body", [kernel_in_body, operator_in_body])
@pytest.mark.parametrize("engine", ["auto", "indirect"])
def test_body_that_is_not_known_lets_all_slots_be_copied(
    engine: str, body: Callable[..., Any], taken: Sequence[bool]
) -> None:
    conditionally = Conditionally(body, in_body, settings=Settings(engine=engine))
    conditionally.driver.faults.unknown = in_body
    conditionally.check(taken)
    recording = only(conditionally.function)
    assert engines(recording) == [Engine.COPY] * 3 and recording.player.staged == 0


@TAKEN
def test_kernel_without_a_twin_in_a_body_lets_all_slots_be_copied(
    taken: Sequence[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedTwins, "prepare", lambda self, kernel, arguments: "no" if "_1" in kernel else None)
    conditionally = Conditionally(kernel_in_body, in_body)
    conditionally.check(taken)
    assert engines(only(conditionally.function)) == [Engine.COPY] * 3


@TAKEN
def test_kernels_are_not_rewritten_in_a_body_where_nothing_has_twins(taken: Sequence[bool]) -> None:
    conditionally = Conditionally(kernel_in_body, in_body, settings=Settings(engine="patch"))
    conditionally.check(taken)
    assert engines(only(conditionally.function)) == [Engine.COPY] * 3


@TAKEN
def test_view_that_begins_inside_a_slot_is_copied_beside_a_twin(taken: Sequence[bool]) -> None:
    def body(is_entered: Callable[[], bool], namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        out = empty(namespace, 8)
        if is_entered():
            namespace["cpp_fused_1"](x, y[4:], x)
        namespace["cpp_fused_0"](out, x, y)
        return (out,)

    conditionally = Conditionally(body, in_body)
    conditionally.check(taken)
    recording = only(conditionally.function)
    assert engines(recording)[:2] == [Engine.INDIRECT, Engine.COPY] and recording.player.staged == 0


@TAKEN
def test_output_of_an_operator_that_a_body_writes_to_is_copied(taken: Sequence[bool]) -> None:
    """Nothing in there can be told where the output shall be."""

    def body(is_entered: Callable[[], bool], namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        out = torch.ops.aten.cos.default(y)
        if is_entered():
            namespace["cpp_fused_1"](out, x)
        return (out, torch.ops.aten.exp.default(y))

    conditionally = Conditionally(body, in_body, mutated_inputs=frozenset())
    conditionally.check(taken)
    recording = only(conditionally.function)
    # Both inputs to buffers, both outputs to buffers, and both from there to where they shall be.
    assert recording.log.nodes["memcpy"] == 6 and recording.player.staged == 0


@pytest.mark.parametrize("engine", ["auto", "indirect"])
def test_operator_in_front_of_a_body_lets_all_slots_be_copied(engine: str) -> None:
    """It may have decided whether the body is executed, by addresses that nobody sees."""

    def body(is_entered: Callable[[], bool], namespace: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        out = empty(namespace, 8)
        namespace["cpp_fused_0"](out, torch.ops.aten.sin.default(x))
        if is_entered():
            namespace["cpp_fused_1"](x, x, y)
        return (out,)

    is_inside = lambda name: in_body(name) and not library_inside(name)
    conditionally = Conditionally(body, is_inside, settings=Settings(engine=engine))
    conditionally.check((True, False, True, True, False))
    assert engines(only(conditionally.function)) == [Engine.COPY] * 3
