"""The third variant, a graph that copies all its tensors: it can win, lose, be refused, stored and looked at again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pygraph_inductor import config
from pygraph_inductor.recording.function import RecordedFunction
from pygraph_inductor.selection.judge import Variant
from pygraph_inductor.selection.prediction import Prediction
from pygraph_inductor.settings import Settings
from tests.simulated.deciding import (
    WRITES,
    body,
    called_by_threads,
    calls,
    checked_call,
    inputs,
    of_size,
    sized_call,
    stored,
    until_decided,
)
from tests.simulated.hand_written import contents, same_bits
from tests.simulated.timed import US, Clock, Timed


@pytest.fixture
def with_copies(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """It is offered, and the model does not rule it out; and the clock knows its replays."""
    monkeypatch.setattr(Prediction, "may_win_by_copies", True)
    keep = RecordedFunction._keep_copying

    def kept(self: RecordedFunction, found: Any, *rest: Any) -> None:
        if found is not None:
            clock.copying.add(found.graph)
        keep(self, found, *rest)

    monkeypatch.setattr(RecordedFunction, "_keep_copying", kept)
    with config.patch(engine="auto"):
        yield clock


@pytest.mark.parametrize("native_", [True, False])
@pytest.mark.parametrize("fast", ["plain", "graph", "copy"])
def test_any_of_three_variants_can_win(with_copies: Clock, fast: str, native_: bool) -> None:
    clock = with_copies
    clock.plain = clock.graph = clock.copy = (300 * US, 300 * US)
    setattr(clock, fast, (100 * US, 100 * US))
    function = Timed(body, clock, native=native_, **WRITES)
    kept: list[Any] = []
    made = [checked_call(function, kept) for _ in range(60)]
    assert made[:3] == ["plain", "recording", "recording"]
    assert {*made[3:15]} == {"plain", "graph", "copy"}, "all of them answered calls while it was measured"
    assert {*made[30:]} == {fast}
    assert function.decision.chosen == fast and function.decision.origin == "measured"
    assert {one.name for one in function.decision.variants} == {"plain", "graph", "copy"}
    assert function.log.replays == sum(kind in ("graph", "copy") for kind in made), "none is counted twice or lost"
    assert function.log.calls == 60
    for tensors, then in kept:
        assert all(torch.equal(contents(now), before) for now, before in zip(tensors, then, strict=True))
    open_graphs = [one.graph for one in function.recordings]
    assert all(graph.closed for graph in clock.copying if graph not in open_graphs), "what lost gave its memory back"
    assert len(open_graphs) == (0 if fast == "plain" else 1)
    if fast == "copy":
        assert set(function.log.recordings[-1].slots) == {"copy"} and len(function.log.recordings) == 1


def test_thread_that_hears_of_a_choice_late_does_not_undo_it(
    with_copies: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads may be told at once that copies won, and only one can put them in the place of the graph."""
    clock = with_copies
    clock.plain, clock.graph, clock.copy = (300 * US, 300 * US), (300 * US, 300 * US), (100 * US, 100 * US)
    function = Timed(body, clock, **WRITES)
    late: list[Any] = []
    chosen = RecordedFunction._chosen

    def heard(self: RecordedFunction, values: list[Any], *rest: Any) -> Any:
        late.append(rest)
        return chosen(self, values, *rest)

    monkeypatch.setattr(RecordedFunction, "_chosen", heard)
    kept: list[Any] = []
    for _ in range(40):
        checked_call(function, kept)
    [rest] = late
    [recording] = function.recordings
    values = list(inputs())
    want = super(Timed, function).run([value.clone() for value in values])
    assert all(map(same_bits, chosen(function.function, list(values), *rest)[:2], want[:2]))
    assert function.recordings == [recording] and not recording.closed
    assert {checked_call(function, kept) for _ in range(3)} == {"copy"}


def test_copies_have_to_save_something_to_be_chosen(with_copies: Clock) -> None:
    clock = with_copies
    clock.plain, clock.graph, clock.copy = (300 * US, 300 * US), (100 * US, 100 * US), (99 * US, 99 * US)
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    assert function.decision.chosen == "graph"


def test_variant_that_cannot_be_recorded_is_left_out(with_copies: Clock) -> None:
    """Two inputs overlap, and one is written: staging would come between them."""
    clock = with_copies
    clock.plain = (300 * US, 300 * US)
    function = Timed(body, clock, **WRITES)
    for _ in range(40):
        both = torch.randn(9)
        values = [both[:6], both[3:]]
        copies = both.clone()
        want = super(Timed, function).run([copies[:6], copies[3:]])
        got = function(*values)
        assert torch.equal(both, copies) and all(map(same_bits, got[:2], want[:2]))
    assert function.decision.chosen == "graph"
    assert {one.name for one in function.decision.variants} == {"plain", "graph"} and not clock.copying


def test_engine_that_the_user_asked_for_has_no_rival(with_copies: Clock) -> None:
    function = Timed(body, with_copies, settings=Settings(engine="patch"), **WRITES)
    until_decided(function)
    assert {one.name for one in function.decision.variants} == {"plain", "graph"}


def test_stored_choice_of_copies_is_recorded_so_at_once(with_copies: Clock, tmp_path: Any) -> None:
    clock = with_copies
    clock.plain = clock.graph = (300 * US, 300 * US)
    until_decided(Timed(body, clock, **stored(tmp_path)))
    timed = clock.started
    again = Timed(body, clock, **stored(tmp_path))
    made = calls(again, 6)
    assert made[:2] == ["plain", "recording"] and clock.started == timed
    [recording] = again.recordings
    assert recording.variant is Variant.COPY and set(recording.log.slots) == {"copy"}
    assert (again.decision.chosen, again.decision.origin) == ("copy", "stored")


def test_key_that_cannot_have_the_copies_chosen_for_its_class_is_told_addresses(
    with_copies: Clock, tmp_path: Any
) -> None:
    """Of the calls of a class, these have inputs that overlap, one of which is written."""
    clock = with_copies
    clock.plain = clock.graph = (300 * US, 300 * US)
    until_decided(Timed(body, clock, **stored(tmp_path)))
    again = Timed(body, clock, **stored(tmp_path) | {"mutated_inputs": frozenset({0, 1})})
    assert calls(again, 4)[:2] == ["plain", "recording"]
    for _ in range(6):
        both = torch.randn(9)
        copies = both.clone()
        random = torch.get_rng_state()
        want = super(Timed, again).run([copies[:6], copies[3:]])
        torch.set_rng_state(random)
        got = again(both[:6], both[3:])
        assert torch.equal(both, copies) and all(map(same_bits, got, want))
    [recording] = [one for one in again.recordings if one.variant is Variant.GRAPH]
    # After a plain call, one that copies were refused for, and its own.
    assert recording.count() == 3, again.log.reasons
    assert {one.variant for one in again.recordings} == {Variant.GRAPH, Variant.COPY}, "the others go on with copies"


def test_other_keys_of_a_class_follow_the_choice_of_copies(with_copies: Clock) -> None:
    clock = with_copies
    clock.plain = clock.graph = (300 * US, 300 * US)
    function = Timed(of_size, clock)
    for _ in range(3):
        sized_call(function, 100), sized_call(function, 120)  # both are being measured
    for _ in range(40):
        sized_call(function, 100)
    assert function.decision.chosen == "copy"
    for _ in range(6):
        sized_call(function, 120)
    assert [one.variant for one in function.recordings] == [Variant.COPY] * 2
    assert len(function.log.decisions) == 1


def test_choice_of_copies_is_taken_again_when_they_come_to_cost_more(with_copies: Clock, often: None) -> None:
    clock = with_copies
    clock.plain = clock.graph = (300 * US, 300 * US)
    function = Timed(body, clock, **WRITES)
    until_decided(function)
    assert function.decision.chosen == "copy"
    clock.copy = clock.graph = (2000 * US, 2000 * US)  # graphs recorded later are in no set
    calls(function, 150)
    assert function.decision.chosen == "plain" and function.decision.examinations == 1


def test_threads_record_the_variant_with_copies_once(with_copies: Clock) -> None:
    clock = with_copies
    clock.plain = clock.graph = (300 * US, 300 * US)

    function = called_by_threads(clock, calls=40)
    open_ = {one.graph for one in function.recordings} | {
        one.copying.graph for one in function.recordings if one.copying is not None
    }
    function(*inputs())
    assert all(graph.closed for graph in clock.copying - open_)
