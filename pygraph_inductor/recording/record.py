"""From a callable to a recording that is trusted: trial, captures, bindings, plan, verification.

Called once per key; the trial's answer is the call's answer whatever becomes of the recording.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pygraph_inductor.driver.protocol import TWIN, Driver, Graph, NodeKind, UpdateRefused
from pygraph_inductor.recording.alignment import indifferent, needed
from pygraph_inductor.recording.bindings import Found
from pygraph_inductor.recording.capture import Captured, Place, Work, buffers_of
from pygraph_inductor.recording.capture_pair import captured_twice
from pygraph_inductor.recording.copying import Inside, can_be_copied
from pygraph_inductor.recording.digested import answer_again, let_go
from pygraph_inductor.recording.engines import wanted
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.fixed_nodes import fixed_slots, with_copies, with_fixed
from pygraph_inductor.recording.indirection import Indirection, Prepared, Watching, prepare
from pygraph_inductor.recording.inputs import Call, Refusal, examine, overlaps
from pygraph_inductor.recording.keeping import Share, to_keep
from pygraph_inductor.recording.outputs import made_as_returned, returned_values, returns_kind
from pygraph_inductor.recording.plain import is_misaligned, run_plainly
from pygraph_inductor.recording.pools import Pool
from pygraph_inductor.recording.trial import NotSeen, NotTried, Trial, constants_of, run_trial
from pygraph_inductor.recording.verify import Mismatch, storages_of, verify
from pygraph_inductor.replay.plan import Allocation, Engine, FromInput, Layout, Plan, Slot
from pygraph_inductor.replay.player import Player, ReplayFailed, aligned_buffer, guarded
from pygraph_inductor.reporting import RecordingFacts
from pygraph_inductor.reporting.facts import warn_once
from pygraph_inductor.selection.drift import Watch
from pygraph_inductor.selection.judge import Variant
from pygraph_inductor.selection.measuring import Measurement

_INDIRECT = ("auto", Engine.INDIRECT.value)
_BORROWING = (Engine.PATCH, Engine.INDIRECT)
_WITHOUT_TABLE = "its kernels are given addresses, not a table of them or of copies"
_COPIED = "outputs that operators allocate are copied in each replay"
_STAGED = "its tensors are staged through fixed buffers"
_PATCH = "pygraph_inductor.config.engine = 'patch' does not try"


@dataclass
class Recording:
    """A verified graph with everything that keeps it alive."""

    player: Player
    graph: Graph
    pool: Pool
    generators: tuple[torch.Generator, ...]
    log: RecordingFacts
    launcher: Any | None = None
    # A callable in front of the launcher alone, for calls that are timed.
    alone: Callable[[list[Any]], Any] | None = None
    # While it is not decided whether it pays; afterwards what looks back at the decision.
    measurement: Measurement | None = None
    watch: Watch | None = None
    took_ns: int = 0  # to record it
    gain_ns: float = 0.0  # what a replay saves, as far as it is known
    variant: Variant = Variant.GRAPH
    copying: Recording | None = None  # the same call with copies of all tensors, while both are measured
    share: Share | None = None  # of the memory for what is kept
    indirection: Prepared | None = None  # the graph runs kernels of modules that go when their twins go
    closed: bool = False
    failures: int = 0  # of its key, before
    python_replays: int = 0
    python_used: int = field(default_factory=time.monotonic_ns)

    def close(self) -> None:
        """Give the graph and its share of the pool back, once nobody replays it."""
        with self.pool.lock:
            self.closed = True
            if self.launcher is not None:
                self.launcher.close()
            if self.share is not None:
                self.share.end()
            self.graph.close()

    def close_unless_busy(self) -> bool:
        """Close it, where this thread is not amidst a call of its pool: a finalizer may have come here from there."""
        with self.pool.turn() as ours:
            if ours:
                self.close()
            return ours

    def replayed_in_python(self) -> None:
        """Count a replay that the launcher did not make."""
        self.python_replays += 1
        self.python_used = time.monotonic_ns()

    def last_used(self) -> int:
        """When it served last, in ns of the monotonic clock."""
        native_used = self.launcher.counts()[2] if self.launcher is not None else 0
        return max(native_used, self.python_used)

    def count(self) -> int:
        """Bring the log up to date; returns the replays so far."""
        calls, updates, _ = self.launcher.counts() if self.launcher is not None else (0, 0, 0)
        self.log.replays = self.python_replays + calls
        self.log.updates = self.player.updates + updates
        self.log.staged = self.player.staged
        return self.log.replays


@dataclass
class Attempt:
    """What came of one attempt to record: always the call's result; a recording or why there is none."""

    result: Any
    recording: Recording | None = None
    refusal: Refusal | None = None
    undeclared_writes: frozenset[int] = frozenset()
    notes: tuple[tuple[str, str], ...] = ()  # what happened, and what was done instead


@dataclass(frozen=True)
class Request:
    """A call whose inputs shall be recorded."""

    run: Callable[[list[Any]], Any]
    facts: Facts
    driver: Driver
    pool: Pool
    inputs: Sequence[Any]
    call: Call
    checked: Sequence[int]
    written: Collection[int]


@dataclass(frozen=True)
class Failure:
    """Why a graph is given up, and the places that should be staged instead.

    `in_place`: it told outputs of operators where to be.
    """

    reason: str
    to_stage: frozenset[int]
    in_place: bool = False


def record(request: Request) -> Attempt:
    """Run the call and try to record it. Only exceptions of the function itself pass through, and interrupts."""
    unwatched: NotTried | NotSeen
    try:
        needed, budget = _bytes_needed_and_allowed(request)
        if needed > budget:
            refusal = Refusal(f"verifying it needs {needed} bytes, {budget} are allowed")
            return Attempt(_plain_call(request)(), refusal=refusal)
        trial = _trial(request)
    except (NotTried, NotSeen) as error:
        unwatched = error
    else:
        return _after_trial(trial, request, needed, budget)
    cause = unwatched.__cause__ or unwatched
    if request.facts.settings.strict:
        raise cause
    attempt = Attempt(None, refusal=Refusal(f"the call could not be watched: {_first_line(cause)}", passing=True))
    if was_tried := isinstance(unwatched, NotSeen):
        attempt.result = unwatched.result
    # They hold what was allocated until then, which a plain call may need, and this frame with the caller's tensors.
    del unwatched, cause
    request.driver.release_cached()
    if not was_tried:
        attempt.result = _plain_call(request)()
    return attempt


def _bytes_needed_and_allowed(request: Request) -> tuple[int, int]:
    """For copies of the write set. Raises `NotTried`."""
    try:
        allowed = min(request.facts.settings.max_verify_bytes, request.driver.free_bytes() // 2)
    except Exception as error:
        raise NotTried from error
    return 2 * sum(Layout.of(request.inputs[p]).span for p in request.call.slots if p in request.written), allowed


def _after_trial(trial: Trial, request: Request, needed: int, budget: int) -> Attempt:
    attempt = Attempt(trial.result, undeclared_writes=trial.undeclared_writes)
    try:
        attempt.refusal = _not_to_be_captured(trial, request)
        if attempt.refusal is None:
            _record_within(trial, request, attempt, needed, budget)
    except torch.OutOfMemoryError as error:
        request.driver.release_cached()
        attempt.refusal = Refusal(f"out of memory while recording: {_first_line(error)}", passing=True)
    except Exception as error:
        if request.facts.settings.strict:
            raise
        attempt.refusal = Refusal(_first_line(error))
    if trial.digests is not None:
        give_up = functools.partial(_give_up, attempt)
        attempt.result = answer_again(trial, _plain_call(request), request.driver, request.inputs, give_up)
    return attempt


def _record_within(trial: Trial, request: Request, attempt: Attempt, needed: int, budget: int) -> None:
    """Outputs of the trial beside those of a replay, if that fits; else one after the other."""
    # A replay makes none of what the caller has already: forwards return the parameters that backwards need.
    known = storages_of(request.inputs).keys() | constants_of(request.facts).keys()
    made = [nbytes for key, nbytes in storages_of(trial.returned).items() if key not in known]
    beside = needed + sum(map(guarded, made))
    if beside - sum(made) > budget:
        attempt.refusal = Refusal(f"verifying it needs {beside} bytes, {budget} are allowed")
        return
    if beside > budget:
        let_go(trial, request.driver, known)
        attempt.result = None
        request.driver.release_cached()  # a capture takes new memory, and cannot give back what is free
    _record_after(trial, request, attempt, budget - needed)


def _give_up(attempt: Attempt, error: Exception) -> None:
    """Close the graph, beside which a plain call did not come to an end."""
    if attempt.recording is not None:
        attempt.recording.close()
        attempt.recording = None
        attempt.refusal = Refusal(f"beside its graph a plain call failed: {_first_line(error)}", passing=True)


def _not_to_be_captured(trial: Trial, request: Request) -> Refusal | None:
    """Why not, now that the trial has shown what a call does."""
    if trial.replaced_inputs:
        # Happens on the host, where no replay repeats it; and memory of the graph would become the caller's.
        return Refusal(f"it gives input {trial.replaced_inputs[0]} other storage (set_ or resize_)")
    seen_again = examine(request.inputs, request.driver)
    if isinstance(seen_again, Refusal) or seen_again.key != request.call.key:
        # A capture would do it once more, on the caller's own tensor.
        return Refusal("it writes to an input on the host")
    if trial.undeclared_writes:
        # They were not kept, so this call cannot be repeated; the next one can.
        return Refusal("it writes to inputs that were not declared as written", passing=True)
    return None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _trial(request: Request) -> Trial:
    with request.pool.running():
        return run_trial(
            request.run,
            request.facts,
            request.driver,
            request.inputs,
            request.call,
            request.checked,
            request.written,
        )


def _plain_call(request: Request) -> Callable[[], Any]:
    def call() -> Any:
        with request.pool.running():
            seeds = request.facts.attention_seeds
            return run_plainly(request.run, list(request.inputs), request.checked, request.written, seeds)

    return call


def _record_after(trial: Trial, request: Request, attempt: Attempt, room: int) -> None:
    """Capture and verify; a mismatch first copies outputs of operators instead of telling them where to be. Then it
    moves all slots to the copy engine, where the graph copies first and then the player, and the last one gives up.
    """
    buffers = buffers_of(trial)
    work = Work(
        request.run,
        request.facts,
        request.driver,
        request.pool,
        request.inputs,
        request.call.generators,
        trial,
        _places(request, buffers),
        buffers,
    )
    notes: dict[str, str] = {}
    engine = request.facts.settings.engine
    copied = _to_be_copied(work, request) if engine == Engine.COPY.value else frozenset()
    staged = frozenset(range(len(work.places))) - copied if engine == Engine.COPY.value else frozenset()
    if engine == Engine.COPY.value and _writes_to_aliases(request):
        attempt.refusal = Refusal("it writes to inputs that alias each other, which cannot be staged")
        return
    twins = request.facts.twins or request.driver.twins(request.facts.namespace)
    indirection: Watching | Prepared | None = Watching(twins) if twins and engine in _INDIRECT else None
    # Graphs that are given up stay until the end: without them, the next capture would go to new memory.
    with contextlib.ExitStack() as earlier:
        while True:
            try:
                outcome = _try_with(work, request, staged, copied, indirection, room, earlier)
            except Exception as error:
                if request.facts.settings.strict or not isinstance(indirection, Prepared):
                    raise
                outcome = Failure(_first_line(error), frozenset())
            if isinstance(outcome, Recording):
                attempt.recording, attempt.notes = outcome, tuple(notes.items())
                return
            if isinstance(outcome, Prepared):
                indirection = outcome
                continue
            if outcome.in_place:
                notes[outcome.reason] = _COPIED
                work = replace(work, in_place=False)
                continue
            if isinstance(indirection, Prepared):  # first without twins, then without patching
                warn_once(request.facts, outcome.reason, _WITHOUT_TABLE, _PATCH)
                indirection = None
                continue
            notes[outcome.reason] = _STAGED
            if outcome.to_stage <= staged or _writes_to_aliases(request):
                attempt.refusal = Refusal(outcome.reason)
                return
            able = _to_be_copied(work, request) & outcome.to_stage
            if able <= copied:
                staged, copied = staged | outcome.to_stage, copied - outcome.to_stage
            else:  # by nodes of the graph first, which the launcher in C can serve
                copied = copied | able
                staged = staged | (outcome.to_stage - copied)


def _to_be_copied(work: Work, request: Request) -> frozenset[int]:
    """The places that a graph can copy itself."""
    return frozenset(
        number
        for number, place in enumerate(work.places)
        if can_be_copied(place.layout, not place.is_output and place.source in request.written)
    )


def _writes_to_aliases(request: Request) -> bool:
    """Whether staging would come between an input that is written and another one that sees the write."""
    return any(position in request.written for position in _aliased(request))


def _aliased(request: Request) -> set[int]:
    """The inputs that overlap others."""
    slots = [request.inputs[position] for position in request.call.slots]
    pairs = overlaps([tensor.data_ptr() for tensor in slots], [Layout.of(tensor).span for tensor in slots])
    return {request.call.slots[index] for first, second, _ in pairs for index in (first, second)}


def _places(request: Request, buffers: Sequence[Any]) -> list[Place]:
    places = []
    alignment = request.driver.alignment
    for position in request.call.slots:
        tensor = request.inputs[position]
        residue = tensor.data_ptr() % alignment
        if position in request.checked and is_misaligned(tensor):
            residue = 0  # its kernels were compiled for aligned tensors; this one is staged
        places.append(Place(position, False, Layout.of(tensor), residue))
    for number, buffer in enumerate(buffers):
        if buffer.layout.span:
            places.append(Place(number, True, buffer.layout, 0))
    return places


def _try_with(
    work: Work,
    request: Request,
    staged: frozenset[int],
    copied: frozenset[int],
    indirection: Watching | Prepared | None,
    room: int,
    earlier: contextlib.ExitStack,
) -> Recording | Prepared | Failure:
    """A recording that copies `staged` before it launches its graph, whose nodes copy `copied`; or a failure.

    Or, while launches were only watched, or twins are not enough for an inner graph, how it should be captured again.
    `earlier` closes the graphs that are given up.
    """
    prepared = indirection if isinstance(indirection, Prepared) else None
    during: Indirection | None = indirection.steering if isinstance(indirection, Prepared) else indirection
    inside = _buffers(work, prepared.copied if prepared else copied)
    work = replace(
        work,
        indirection=during,
        copied={number: _inside(work, request, number, buffer) for number, buffer in inside.items()},
    )
    all_places = frozenset(range(len(work.places)))
    staging = _buffers(work, staged)
    with captured_twice(work, staging) as pair:
        captured = pair.captured
        unexplained = pair.found.unexplained or _unknown_host_work(captured)
        if unexplained is not None:
            earlier.callback(captured.graph.close)
            return Failure(unexplained, all_places)
        fixed = fixed_slots(pair.found, captured.graph.nodes)
        if indirection is not None and (prepared is None or fixed):
            try:
                again = _twins_for(work, request, pair.found, indirection, staged, fixed)
            except BaseException:
                captured.graph.close()
                raise
            if again is not None:
                earlier.callback(captured.graph.close)
                return again
        if fixed:
            earlier.callback(captured.graph.close)
            names = ", ".join(sorted(set(fixed.values())))
            return Failure(f"nodes of graphs inside it hold addresses of tensors: {names}", frozenset(fixed))
        indirect = prepared.places if prepared else frozenset()
        plan = _plan(work, request, captured, pair.found, staged, indirect)
        player = Player(plan, captured.graph, work.driver, staging, inside)
        borrowed = [position for position, entry in enumerate(plan.returned) if isinstance(entry, FromInput)]
        tensors = [value for value in work.inputs if isinstance(value, torch.Tensor)]
        try:
            held = player.rebase(work.inputs)
            captured.graph.instantiate()
            del held  # verification needs the memory
            for node in pair.needless:
                captured.graph.disable(captured.graph.nodes[node])
            replay = functools.partial(_guarded_replay, player, captured, work.inputs)
            verify(work.trial, replay, _plain_call(request), work.driver, borrowed, tensors, room)
        except (Mismatch, ReplayFailed, UpdateRefused) as error:
            earlier.callback(captured.graph.close)
            return Failure(str(error), all_places, bool(pair.needless))
        except BaseException:
            captured.graph.close()
            raise
    log = _log(work, plan, captured, len(pair.needless))
    if indirection is not None:
        watched = indirection.watched if isinstance(indirection, Prepared) else indirection
        _log_engines(log, work, plan, watched)
    share = Share(work.facts.device, log.bytes_kept) if log.bytes_kept else None
    return Recording(
        player, captured.graph, request.pool, tuple(work.generators), log, share=share, indirection=prepared
    )


def _buffers(work: Work, numbers: Collection[int]) -> dict[int, torch.Tensor]:
    """Memory for these places at which the graph finds them in every replay."""
    assert isinstance(work.pool, Pool)
    with torch.inference_mode(False):  # as for stand-ins: inference tensors have no versions
        buffers = {
            number: aligned_buffer(work.driver, work.places[number].layout, work.places[number].residue)
            for number in sorted(numbers)
        }
    for buffer in buffers.values():
        work.pool.note_buffer(buffer)
    return buffers


def _inside(work: Work, request: Request, number: int, buffer: torch.Tensor) -> Inside:
    place = work.places[number]
    return Inside(buffer, not place.is_output, place.is_output or place.source in request.written)


def _twins_for(
    work: Work,
    request: Request,
    found: Found,
    indirection: Watching | Prepared,
    staged: frozenset[int],
    fixed: Collection[int],
) -> Prepared | None:
    """The twins and copies that the plan asks for; None if it asks for none or no others, or they cannot be had."""
    forced = request.facts.settings.engine == Engine.INDIRECT.value
    aliased = _aliased(request)
    alone = [n for n, place in enumerate(work.places) if not place.is_output and place.source not in aliased]
    copyable = _to_be_copied(work, request) if fixed and not _writes_to_aliases(request) else frozenset()
    try:
        if isinstance(indirection, Prepared):
            return with_copies(indirection, copyable.intersection(fixed), work.driver)
        asked = wanted(forced, work, request.written, found, staged, alone)
        if fixed:
            asked = with_fixed(asked, fixed, indirection, copyable)
        indirection.asked = asked
        return prepare(indirection, asked.places, asked.copied, work.driver)
    except Exception as error:
        if request.facts.settings.strict:
            raise
        warn_once(request.facts, _first_line(error), _WITHOUT_TABLE, _PATCH)
        return None


def _guarded_replay(player: Player, captured: Captured, inputs: Sequence[Any], filled: int) -> Any:
    """A replay whose outputs are filled with a byte first: they cannot be right by accident, left over from the call
    before. Nothing may be written behind them, as by an intermediate that had been in the place of an output and was
    larger. Nor may what an earlier replay wrote to stand-ins be right in this one.
    """
    if captured.stand_ins is not None:
        captured.stand_ins.refill()
    fresh, guards = player.guarded_outputs(filled)
    result = player.launch(inputs, player.prepare(inputs, fresh))
    if not all(bool((guard == filled).all()) for guard in guards):
        raise Mismatch("the replay writes behind an output")
    return result


def _unknown_host_work(captured: Captured) -> str | None:
    host = [node for node in captured.graph.nodes if node.kind is NodeKind.OTHER and "host" in node.name]
    return f"a {host[0].name} node cannot be executed an extra time to verify it" if host else None


def _plan(
    work: Work,
    request: Request,
    captured: Captured,
    found: Found,
    staged: Collection[int],
    indirect: Collection[int],
) -> Plan:
    slots = []
    slot_of_buffer: dict[int, int] = {}
    kernels = indifferent(captured.graph.nodes, work.facts.triton_kernels)
    for number, place in enumerate(work.places):
        if number in staged or number in work.copied:
            engine = Engine.COPY
        elif number in indirect:
            engine = Engine.INDIRECT
        elif not place.is_output and place.source in work.facts.static_inputs:
            engine = Engine.STATIC
        else:
            engine = Engine.PATCH
        written = place.is_output or place.source in request.written
        if place.is_output:
            slot_of_buffer[place.source] = number
        bindings = found.by_slot[number]
        anywhere = not written and place.source in work.facts.anywhere_inputs
        aligned = needed(bindings, captured.graph.nodes, kernels, work.driver.alignment, 1 if anywhere else None)
        residue = place.residue % aligned
        slots.append(Slot(place.source, place.is_output, place.layout, engine, aligned, residue, written, bindings))
    returned, layouts = made_as_returned(returned_values(work, captured), [buffer.layout for buffer in work.buffers])
    kept = to_keep(work.facts, returned, layouts)
    return Plan(
        slots=tuple(slots),
        allocations=tuple(
            Allocation(layout, slot_of_buffer.get(number), number in kept) for number, layout in enumerate(layouts)
        ),
        returned=returned,
        returns=returns_kind(captured.result),
        version_bumps=captured.version_bumps,
    )


def _log(work: Work, plan: Plan, captured: Captured, disabled: int) -> RecordingFacts:
    kinds = collections.Counter(node.kind.value for node in captured.graph.nodes)
    kinds[NodeKind.MEMCPY.value] -= disabled  # the only kind that is ever switched off
    inputs = [slot for slot in plan.slots if not slot.is_output]
    shapes = ", ".join("x".join(map(str, slot.layout.size)) or "scalar" for slot in inputs[:4])
    return RecordingFacts(
        twins=sum(node.name.endswith(TWIN) for node in captured.graph.nodes),
        key=shapes + (", …" if len(inputs) > 4 else ""),
        nodes={kind: count for kind, count in kinds.items() if count},
        kernels=kinds[NodeKind.KERNEL.value],
        slots=dict(collections.Counter(slot.engine.value for slot in plan.slots)),
        bindings=sum(len(slot.bindings) for slot in plan.slots),
        bytes_borrowed=sum(slot.layout.span for slot in inputs if slot.engine in _BORROWING),
        bytes_kept=sum(made.layout.span for made in plan.allocations if made.keep),
        verdict="verified",
    )


def _log_engines(log: RecordingFacts, work: Work, plan: Plan, watched: Watching) -> None:
    """Why slots have the engines they have."""
    asked = watched.asked
    if asked is None:
        return
    log.engine_costs = {engine: round(cost, 3) for engine, cost in asked.costs.items()}
    log.why = asked.why
    log.without_twins = dict(watched.refusals)
    for number, costs in asked.slots.items():
        place = work.places[number]
        name = f"{'output' if place.is_output else 'input'} {place.source}"
        log.slot_costs[name] = {"engine": plan.slots[number].engine.value, **costs}
