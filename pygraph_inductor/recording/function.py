"""One compiled function over its life: plain call, recording, replays; and every way back to the plain call.

What the seam at `cudagraphify` returns. A key is recorded on its second call. Some calls are then answered in turns by
the graph and plainly (`selection`), until it is known which pays; from then on by that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pygraph_inductor.driver.protocol import Driver, Stopwatch
from pygraph_inductor.recording.allowance import ALWAYS, BEHIND, Allowance, saved
from pygraph_inductor.recording.amidst import Amidst
from pygraph_inductor.recording.entries import ATTEMPTS, CROWDED, KEYS_PER_RECORDING, Chosen, Entries, Seen
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.given_up import GivenUp
from pygraph_inductor.recording.inputs import Call, Refusal, examine
from pygraph_inductor.recording.keys import call_key, key_of, may_be_recorded
from pygraph_inductor.recording.launching import ASIDE, give_launcher
from pygraph_inductor.recording.plain import run_plainly
from pygraph_inductor.recording.pools import Pool, pool_for
from pygraph_inductor.recording.record import Attempt, Recording, Request, record
from pygraph_inductor.replay import native
from pygraph_inductor.replay.plan import Engine
from pygraph_inductor.replay.player import ReplayFailed
from pygraph_inductor.reporting import FunctionFacts
from pygraph_inductor.reporting.facts import register, warn_once
from pygraph_inductor.selection.calibration import coefficients
from pygraph_inductor.selection.classes import numbers_of
from pygraph_inductor.selection.drift import Watch
from pygraph_inductor.selection.judge import Variant, lost_ns
from pygraph_inductor.selection.measuring import Measurement, Turn
from pygraph_inductor.selection.prediction import predict
from pygraph_inductor.selection.selector import Choice, Selector

_STRICT = "pygraph_inductor.config.strict = True raises instead"
_CAPTURED = Refusal("the current stream is being captured by somebody else")
_BEHIND = Refusal(BEHIND)
_NO_MEMORY = "out of memory for what a replay allocates"


class RecordedFunction:
    """Calls a compiled function through a graph where that is proven right, plainly where not."""

    def __init__(self, run: Callable[[list[Any]], Any], facts: Facts, driver: Driver) -> None:
        """`run` takes a list of inputs, which it consumes, as generated code does."""
        self._run = run
        self._facts = facts
        self._driver = driver
        self._log = register(FunctionFacts(facts.name, facts.kind, facts.source, str(facts.device)), self.refresh)
        self._selector = Selector(facts, driver, self._log)
        # What looks back at the choice of the plain call, by the int inputs of the calls it holds for.
        self._plain_by_choice: dict[tuple[int, ...], Watch | None] = {}
        self._given_up = GivenUp()
        self._amidst = Amidst()
        # Sizes that the user has listed are all recorded.
        self._allowance = Allowance(facts.settings.free_recordings if facts.capture_sizes is None else ALWAYS)
        self._entries = Entries(facts.settings.max_recordings, self._log)
        self._ran_with_seeds_on_host = False
        self._checked: frozenset[int] | None = None
        self._written = frozenset(facts.mutated_inputs | facts.reused_inputs)
        self._refusal = Refusal(facts.refusal) if facts.refusal else None
        if facts.once_only and self._refusal is None:
            self._refusal = Refusal("it must not be executed an extra time, so it cannot be verified")
        if facts.settings.max_recordings <= 0 and self._refusal is None:
            self._refusal = Refusal("config.max_recordings allows no recording")

    def entry(self) -> Callable[[list[Any]], Any]:
        """What to call: the launcher in C in front of this function, where there is one, else the function."""
        compiled = native.module() if self._refusal is None else None
        if compiled is None:
            return self
        front = compiled.Front(self)
        # It holds this function; a cycle would keep graphs until the next collection.
        self._entries.front = weakref.ref(front)
        return front

    def refresh(self) -> None:
        """Bring the reported counts up to date, unless this thread is amidst a call."""
        if not self._amidst.is_here():
            with self._amidst:
                self._refresh()

    def _refresh(self) -> None:
        with self._entries.lock:
            by_key = self._entries.recordings()
        for key, recording in by_key.items():
            if (measurement := recording.measurement) is not None:
                self._selector.show(call_key(key), measurement)
        with self._entries.lock:
            recordings = [*by_key.values(), *(one.copying for one in by_key.values() if one.copying is not None)]
            self._log.replays = self._entries.replays_of_retired + sum(one.count() for one in recordings)
            self._log.calls = self._log.plain_calls + self._log.replays
            self._log.spent_ms = round(self._allowance.total_ns / 1e6, 3)
            self._log.saved_ms = round(saved(self._entries.gains()) / 1e6, 3)
            self._log.calls_until_recorded = self._allowance.needed

    def __del__(self) -> None:
        try:
            self.refresh()
        except Exception:  # at interpreter exit anything may be gone
            return

    def __call__(self, inputs: list[Any]) -> Any:
        """One call; consumes `inputs`. Raises what the function raises."""
        if self._refusal is not None:
            return self._plain(inputs, self._refusal)
        if self._amidst.is_here():
            return self._plain(inputs)
        if self._plain_by_choice and (numbers := numbers_of(inputs)) in self._plain_by_choice:
            return self._chosen_plain(inputs, numbers)
        if self._given_up.counts and self._given_up.skips(numbers_of(inputs)):
            return self._plain(inputs)
        if self._allowance.is_behind and self._allowance.skips(numbers_of(inputs)):
            return self._plain(inputs, _BEHIND)
        with self._driver.guard(), self._amidst:
            try:
                return self._call(inputs)
            finally:
                if self._entries.retired and not self._driver.is_capturing():
                    self._entries.close_retired()

    def _call(self, inputs: list[Any]) -> Any:
        try:
            key = _CAPTURED if self._driver.is_capturing() else key_of(inputs, self._driver)
        except Exception as error:
            return self._after_error(inputs, error)
        if key is _CAPTURED:  # for now
            return self._plain(inputs, _CAPTURED)
        if isinstance(key, Refusal):
            self._given_up.refused(numbers_of(inputs))
            return self._plain(inputs, key)
        if self._has_seeds_on_host(inputs):
            self._ran_with_seeds_on_host = True
            return self._plain(inputs)
        if self._allowance.is_old:
            self._add_up()
        with self._entries.lock:
            entry = self._entries.use(key)
            if isinstance(entry, Seen):
                entry.calls = max(entry.calls + 1, self._allowance.counted(numbers_of(inputs)))
            elif entry is None and may_be_recorded(inputs, self._facts):
                self._allowance.keys += 1
                self._entries.remember(key, seen := Seen(calls=max(1, self._allowance.counted(numbers_of(inputs)))))
                # Those calls had another key only because of where the seeds were.
                entry = seen if self._ran_with_seeds_on_host else None
            elif entry is None:
                entry = Refusal("Inductor's options exclude it: cudagraph_skip_dynamic_graphs, cudagraph_capture_sizes")
        if isinstance(entry, Refusal):
            return self._refused(inputs, entry)
        if self._given_up.counts:
            self._given_up.other(numbers_of(inputs))
        if isinstance(entry, Recording):
            if entry.measurement is not None:
                return self._measured(inputs, key, entry, entry.measurement)
            if entry.watch is not None:
                return self._replay_watched(inputs, key, entry)
            return self._replay(inputs, key, entry)
        if isinstance(entry, Seen):
            with self._entries.lock:
                early, asked = self._allowance.is_early(entry.calls), entry.asked
                entry.asked = True
            choice = self._known_choice(key) if not (early and asked) else None
            if choice is not None and choice.is_plain:
                return self._choose_plain(inputs, key, choice)
            if early and (choice is None or choice.origin != "pinned"):
                return self._plain(inputs, _BEHIND)
            return self._record(inputs, key)
        return self._plain(inputs)

    def _add_up(self) -> None:
        """Find out anew how often a key has to come before it is recorded."""
        try:
            applies = self._selector.measures()
            with self._entries.lock:
                self._allowance.add_up(self._entries.gains(), applies)
        except Exception as error:
            self._not_selected(error)

    def _refused(self, inputs: list[Any], why: Refusal) -> Any:
        if why.reason == CROWDED:
            knob = "raise pygraph_inductor.config.max_recordings"
            warn_once(self._facts, CROWDED, "some of them run without a graph", knob)
        self._given_up.refused(numbers_of(inputs))
        return self._plain(inputs, why)

    def _has_seeds_on_host(self, inputs: Sequence[Any]) -> bool:
        """Whether the forward was plain: a capture would take the host's memory for the device's."""
        seeds = [inputs[seed] for seed, _ in self._facts.attention_seeds]
        return any(isinstance(seed, torch.Tensor) and not self._driver.owns(seed) for seed in seeds)

    # -- the three ways to answer

    def _plain(self, inputs: list[Any], why: Refusal | None = None) -> Any:
        if why is not None:
            self._log.add_reason(why.reason)
        self._log.plain_calls += 1
        seeds = self._facts.attention_seeds
        return run_plainly(self._run, inputs, self._positions_to_align(inputs), self._written, seeds)

    def _replay(self, inputs: list[Any], key: Hashable, recording: Recording) -> Any:
        player = recording.player
        with recording.pool.turn() as ours:
            if not ours or recording.closed:  # closed: evicted by another thread since we looked it up
                return self._plain(inputs)
            try:
                recording.pool.enter()
                prepared = player.prepare(inputs)
            except Exception as error:
                if isinstance(error, ReplayFailed):
                    with self._entries.lock:
                        self._entries.lose(key, f"{type(error).__name__}: {error}")
                return self._after_error(inputs, error)
            result = player.launch(inputs, prepared)
            recording.replayed_in_python()
        front = self._entries.front()
        if recording.measurement is not None:
            front = None  # every call has to come here
        if front is not None and recording.launcher is not None and not front.holds(recording.launcher):
            front.add(recording.launcher)  # the next such call need not come here
        inputs.clear()
        return result

    def _record(self, inputs: list[Any], key: Hashable) -> Any:
        try:
            call = examine(inputs, self._driver)
            pool = pool_for(self._driver)
        except Exception as error:
            return self._after_error(inputs, error)
        if isinstance(call, Refusal):
            return self._plain(inputs, call)
        with pool.turn() as ours:
            with self._entries.lock:
                entry = self._entries.get(key)
            if not ours or isinstance(entry, Refusal):
                return self._plain(inputs, entry if isinstance(entry, Refusal) else None)
            if not isinstance(entry, Recording):
                return self._record_in_turn(inputs, key, call, pool)
        return self._replay(inputs, key, entry)  # another thread was faster

    def _record_in_turn(self, inputs: list[Any], key: Hashable, call: Call, pool: Pool) -> Any:
        try:
            pool.enter()
        except Exception as error:
            return self._after_error(inputs, error)
        choice = self._known_choice(key)
        with self._entries.lock:
            failed = isinstance(entry := self._entries.get(key), Seen) and entry.failures > 0
        copies = choice is not None and choice.variant is Variant.COPY and not failed
        variant = Variant.COPY if copies else Variant.GRAPH
        request = self._request(inputs, call, pool, variant)
        attempt, took_ns = self._recorded(request)
        if copies and attempt.refusal is not None:
            # Copies are chosen for its class, which this key cannot have: the next attempt tells addresses.
            attempt.refusal = replace(attempt.refusal, passing=True)
        if attempt.recording is not None:
            attempt.recording.variant = variant
            self._begin_selection(attempt, key, request, took_ns)
        if attempt.recording is not None and (front := self._entries.front()) is not None:
            give_launcher(attempt.recording, request, self._facts, self._driver, front)
        self._settle(key, attempt)
        return attempt.result

    def _recorded(self, request: Request, again: bool = False) -> tuple[Attempt, int]:
        """What came of an attempt, and how long it took. `again`: the key is recorded already."""
        clock = self._allowance.clock
        started = clock()
        attempt = record(request)
        took_ns = clock() - started
        with self._entries.lock:
            if again:
                self._allowance.spend_more(took_ns)
            else:
                self._allowance.spend(took_ns, numbers_of(request.inputs))
        return attempt, took_ns

    def _request(self, inputs: list[Any], call: Call, pool: Pool, variant: Variant) -> Request:
        """What `record` wants for a call; consumes `inputs`."""
        facts = self._facts
        if variant is Variant.COPY:
            facts = replace(facts, settings=replace(facts.settings, engine=Engine.COPY.value))
        checked = sorted(self._positions_to_align(inputs))
        request = Request(self._run, facts, self._driver, pool, tuple(inputs), call, checked, self._written)
        inputs.clear()
        return request

    def _settle(self, key: Hashable, attempt: Attempt) -> None:
        self._log.plain_calls += 1
        self._note_writes(attempt)
        with self._entries.lock:
            if attempt.recording is not None:
                entry = self._entries.get(key)
                attempt.recording.failures = entry.failures if isinstance(entry, Seen) else 0
                self._log.recordings.append(attempt.recording.log)
                self._entries.remember(key, attempt.recording)
            else:
                again = self._note_failure(key, attempt.refusal)
        for happened, done in attempt.notes:
            warn_once(self._facts, happened, done)
        if attempt.refusal is not None:
            self._log.add_reason(attempt.refusal.reason)
            if not again and not isinstance(attempt.refusal, Chosen):
                warn_once(self._facts, attempt.refusal.reason, "it runs without a graph", _STRICT)

    def _note_writes(self, attempt: Attempt) -> None:
        """Inputs turned out to be written that earlier recordings take as read only, and would not copy back."""
        surprise = attempt.undeclared_writes - self._written
        self._written |= surprise
        if surprise:
            with self._entries.lock:
                for old in self._entries.recordings():
                    self._entries.retire(old)

    def _note_failure(self, key: Hashable, refusal: Refusal | None) -> bool:
        """Remember that a key could not be recorded; whether it will be tried again. Needs the lock."""
        entry = self._entries.get(key)
        if isinstance(entry, Recording):  # another thread succeeded meanwhile
            return True
        failures, calls = (entry.failures + 1, entry.calls) if isinstance(entry, Seen) else (1, 1)
        again = refusal is not None and refusal.passing and failures < ATTEMPTS
        self._entries.remember(key, Seen(failures, calls) if again or refusal is None else refusal)
        return again

    def _after_error(self, inputs: list[Any], error: Exception) -> Any:
        """Nothing was launched: answer plainly, say so once."""
        if self._facts.settings.strict:
            raise error
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, torch.OutOfMemoryError):
            error.with_traceback(None)  # it holds what the call has allocated until then
            self._entries.forget_kept()
            self._driver.release_cached()
            reason = _NO_MEMORY  # torch's own text has another number in every call
        warn_once(self._facts, reason, "this call ran without a graph", _STRICT)
        return self._plain(inputs, Refusal(reason))

    # -- whether the graph pays

    def _begin_selection(self, attempt: Attempt, key: Hashable, request: Request, recording_ns: int) -> None:
        """A new recording is measured, unless something is known about calls like these."""
        recording = attempt.recording
        assert recording is not None
        recording.took_ns = recording_ns
        try:
            kinds = [node.kind.value for node in recording.graph.nodes]
            known = coefficients(self._driver, self._facts.decisions_folder)
            prediction = predict(recording.player.plan, kinds, known, recording.log.twins)
            found = self._selector.begin(
                call_key(key), recording_ns, recording.pool.nbytes, prediction, recording.variant
            )
            recording.gain_ns = self._allowance.expected_ns = prediction.gain_ns
            if isinstance(found, Choice) and found.gain_ns is not None:
                recording.gain_ns = found.gain_ns
            if isinstance(found, Measurement):
                recording.measurement = found
            elif found is not None and found.is_plain:
                attempt.recording, attempt.refusal = None, Chosen(found.reason)
                recording.close()
                with self._entries.lock:
                    self._prefer_plain(request.inputs, None)
            elif found is not None:
                recording.watch = self._selector.watch(found, call_key(key))
        except Exception as error:
            self._not_selected(error)

    def _known_choice(self, key: Hashable) -> Choice | None:
        try:
            return self._selector.known(call_key(key))
        except Exception as error:
            self._not_selected(error)
            return None

    def _not_selected(self, error: Exception) -> None:
        if self._facts.settings.strict:
            raise error
        warn_once(self._facts, f"{type(error).__name__}: {error}", "its graph is used without measuring", _STRICT)

    def _measured(self, inputs: list[Any], key: Hashable, recording: Recording, measurement: Measurement) -> Any:
        """A call before the choice: answered once, by the variant whose turn it is."""
        if measurement.wants(Variant.COPY) and recording.variant is not Variant.COPY and recording.copying is None:
            return self._record_copying(inputs, key, recording, measurement)
        try:
            turn = self._selector.next(call_key(key), measurement)
            if isinstance(turn, Turn) and turn.stopwatch is not None:
                turn.stopwatch.start()
        except Exception as error:
            return self._after_error(inputs, error)
        if isinstance(turn, Choice):
            return self._chosen(inputs, key, recording, turn)
        graph = recording if turn.variant is recording.variant else recording.copying
        if graph is None and turn.variant is not Variant.PLAIN:  # another thread has given it up
            measurement.lost(turn)
            return self._plain(inputs)
        try:
            if turn.variant is Variant.PLAIN or graph is None:
                result = self._plain(inputs)
            else:
                result = self._by_graph(inputs, key, graph)
        except BaseException:
            measurement.lost(turn)
            raise
        if turn.stopwatch is not None and _stopped(turn.stopwatch):
            measurement.done(turn)
        else:
            measurement.lost(turn)
        return result

    def _record_copying(self, inputs: list[Any], key: Hashable, recording: Recording, measurement: Measurement) -> Any:
        """A call that is answered while the variant with copies is recorded; without one, the others are measured."""
        try:
            call = examine(inputs, self._driver)
            pool = pool_for(self._driver)
        except Exception as error:
            return self._after_error(inputs, error)
        if isinstance(call, Refusal):
            return self._plain(inputs, call)
        with pool.turn() as ours:
            if not ours or recording.closed or recording.copying is not None:  # another thread is at it, or was
                return self._plain(inputs)
            try:
                pool.enter()
            except Exception as error:
                return self._after_error(inputs, error)
            request = self._request(inputs, call, pool, Variant.COPY)
            attempt, _ = self._recorded(request, again=True)
            self._log.plain_calls += 1
            if attempt.recording is not None:
                attempt.recording.gain_ns = recording.gain_ns
                attempt.recording.variant, attempt.recording.measurement = Variant.COPY, measurement
                if (front := self._entries.front()) is not None:
                    give_launcher(attempt.recording, request, self._facts, self._driver, front)
        self._note_writes(attempt)
        self._keep_copying(attempt.recording, key, recording, measurement)
        return attempt.result

    def _keep_copying(
        self, found: Recording | None, key: Hashable, recording: Recording, measurement: Measurement
    ) -> None:
        limit = self._facts.settings.max_graph_memory
        too_large = found is not None and limit > 0 and found.pool.nbytes() > limit
        if found is None or too_large:
            measurement.without(Variant.COPY)
        with self._entries.lock:
            if found is not None and (
                too_large or recording.copying is not None or self._entries.get(key) is not recording
            ):
                self._entries.retired.append(found)
            elif found is not None:
                recording.copying = found

    def _by_graph(self, inputs: list[Any], key: Hashable, recording: Recording) -> Any:
        """As the call will be answered once the launcher stands in front."""
        if recording.alone is not None and (result := recording.alone(inputs)) is not ASIDE:
            return result
        return self._replay(inputs, key, recording)

    def _chosen(self, inputs: list[Any], key: Hashable, recording: Recording, choice: Choice) -> Any:
        """The measurement is over."""
        if recording.measurement is not None:
            with self._entries.lock:
                self._allowance.lose(lost_ns(recording.measurement.table()))
        if choice.is_plain or choice.gain_ns is not None:
            recording.gain_ns = choice.gain_ns or 0.0
        if choice.is_plain:
            return self._choose_plain(inputs, key, choice)
        if choice.variant is not recording.variant:
            with self._entries.lock:
                ours = self._entries.get(key) is recording
                other = recording.copying if ours else None
                if other is not None and other.variant is choice.variant:
                    recording.copying, other.failures, other.took_ns = None, recording.failures, recording.took_ns
                    other.gain_ns = recording.gain_ns
                    self._log.recordings.append(other.log)
                    self._entries.remember(key, other)
                else:
                    other = None
            if not ours:  # another thread was faster, or has given it up
                return self._plain(inputs)
            if other is None:  # chosen by another key of its class
                return self._record_as_chosen(inputs, key)
            recording = other
        with self._entries.lock:
            self._entries.retire_copying(recording)
        recording.measurement = None
        try:
            self._driver.release_workspaces()  # plain calls have come to an end
        except Exception as error:
            self._not_selected(error)
        recording.watch = self._selector.watch(choice, call_key(key))
        if recording.launcher is not None and recording.watch is not None:
            recording.launcher.sample(recording.watch.every)
        return self._replay(inputs, key, recording)

    def _record_as_chosen(self, inputs: list[Any], key: Hashable) -> Any:
        """The next call records, by what is known then."""
        with self._entries.lock:
            self._entries.retire(key)
            self._entries.remember(key, Seen(calls=ALWAYS))
        return self._plain(inputs)

    def _choose_plain(self, inputs: list[Any], key: Hashable, choice: Choice) -> Any:
        """Give a recording up, if there is one, and let later calls come by here quickly."""
        refusal = Chosen(choice.reason)
        watch = self._selector.watch(choice, call_key(key))
        with self._entries.lock:
            self._entries.remember(key, refusal)
            self._prefer_plain(inputs, watch)
        return self._plain(inputs, refusal)

    def _prefer_plain(self, inputs: Sequence[Any], watch: Watch | None) -> None:
        """Answer calls with these ints plainly from now on. Needs the lock."""
        if len(self._plain_by_choice) >= max(self._facts.settings.max_recordings, 1) * KEYS_PER_RECORDING:
            self._plain_by_choice.clear()
        self._plain_by_choice[numbers_of(inputs)] = watch

    def _chosen_plain(self, inputs: list[Any], numbers: tuple[int, ...]) -> Any:
        """A call whose graph does not pay: nothing is looked at but its sizes. One in many is timed."""
        watch = self._plain_by_choice.get(numbers)
        if watch is None or not watch.is_due():
            return self._plain(inputs)
        with self._driver.guard(), self._amidst:
            stopwatch = None
            try:
                if not self._driver.is_capturing():
                    if watch.has_drifted():
                        self._examine_again(inputs, numbers)
                    elif (stopwatch := watch.stopwatch()) is not None:
                        stopwatch.start()
            except Exception as error:
                return self._after_error(inputs, error)
            result = self._plain(inputs)
            if stopwatch is not None and _stopped(stopwatch):
                watch.done(stopwatch)
            return result

    def _replay_watched(self, inputs: list[Any], key: Hashable, recording: Recording) -> Any:
        """A call that the launcher left to Python. One in many it leaves on purpose: that is timed."""
        watch = recording.watch
        launcher = recording.launcher
        if watch is None or not (launcher.sampled() if launcher is not None else watch.is_due()):
            return self._replay(inputs, key, recording)
        stopwatch = None
        try:
            if watch.has_drifted():
                self._measure_again(key, recording)
            elif (stopwatch := watch.stopwatch()) is not None:
                stopwatch.start()
        except Exception as error:
            return self._after_error(inputs, error)
        result = self._by_graph(inputs, key, recording)
        if stopwatch is not None and _stopped(stopwatch):
            watch.done(stopwatch)
        return result

    def _measure_again(self, key: Hashable, recording: Recording) -> None:
        """Replays have come to cost something else."""
        if not self._selector.examine_again(call_key(key)):
            return
        found = self._selector.begin(
            call_key(key), recording.took_ns, recording.pool.nbytes, recorded=recording.variant
        )
        if not isinstance(found, Measurement):
            return
        recording.watch, recording.measurement = None, found
        front = self._entries.front()
        if recording.launcher is not None:
            recording.launcher.sample(0)
            if front is not None:
                front.remove(recording.launcher)

    def _examine_again(self, inputs: list[Any], numbers: tuple[int, ...]) -> None:
        """Plain calls have come to cost something else: the next call records, and then it is measured."""
        key = key_of(inputs, self._driver)
        if not isinstance(key, Refusal) and not self._selector.examine_again(call_key(key)):
            return
        with self._entries.lock:
            self._plain_by_choice.pop(numbers, None)
            self._entries.retire_chosen()
            if not isinstance(key, Refusal):
                self._entries.remember(key, Seen(calls=ALWAYS))

    def _positions_to_align(self, inputs: Sequence[Any]) -> frozenset[int]:
        if self._checked is None:
            checked = self._facts.checked_inputs
            self._checked = frozenset(checked(inputs) if callable(checked) else checked)
        return self._checked


def _stopped(stopwatch: Stopwatch) -> bool:
    """Stop it; whether that worked. The call has its answer already, which must not be lost."""
    try:
        stopwatch.stop()
    except Exception:
        return False
    return True
