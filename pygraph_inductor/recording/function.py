"""One compiled function over its life: plain call, recording, replays; and every way back to the plain call.

What the seam at `cudagraphify` returns. A key is recorded on its second call and replayed from then on.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pygraph_inductor.driver.protocol import Driver
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.inputs import Call, Overlaps, Refusal, examine, overlaps
from pygraph_inductor.recording.plain import run_plainly
from pygraph_inductor.recording.pools import Pool, pool_for
from pygraph_inductor.recording.record import Attempt, Recording, Request, record
from pygraph_inductor.replay import native
from pygraph_inductor.replay.plan import Layout
from pygraph_inductor.replay.player import ReplayFailed
from pygraph_inductor.reporting import FunctionFacts
from pygraph_inductor.reporting.facts import register, warn_once

_STRICT = "pygraph_inductor.config.strict = True raises instead"
_CROWDED = "more shapes come in turn than config.max_recordings allows recordings"
_NO_MEMORY = "out of memory for what a replay allocates"
_ATTEMPTS = 3  # at recording one key, where the failure may pass (memory, writes found late)
_WORTHWHILE = 32  # replays that make up for a recording, also where it is lost later
_KEYS_PER_RECORDING = 8  # how many keys are remembered for each recording that may be kept


@dataclass
class _Seen:
    """A key that was called plainly; `failures` counts attempts to record it, and recordings lost before they paid."""

    failures: int = 0


_Entry = _Seen | Recording | Refusal


class RecordedFunction:
    """Calls a compiled function through a graph where that is proven right, plainly where not."""

    def __init__(self, run: Callable[[list[Any]], Any], facts: Facts, driver: Driver) -> None:
        """`run` takes a list of inputs, which it consumes, as generated code does."""
        self._run = run
        self._facts = facts
        self._driver = driver
        self._log = register(FunctionFacts(facts.name, facts.kind, facts.source, str(facts.device)), self.refresh)
        self._front: Callable[[], Any | None] = lambda: None
        self._replays_of_retired = 0
        # Guards the entries. No other lock is taken while it is held; a pool's lock may be held when it is taken.
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._retired: list[Recording] = []
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
        self._front = weakref.ref(front)  # it holds this function; a cycle would keep graphs until the next collection
        return front

    def refresh(self) -> None:
        """Bring the reported counts up to date."""
        with self._lock:
            recordings = [entry for entry in self._entries.values() if isinstance(entry, Recording)]
            self._log.replays = self._replays_of_retired + sum(recording.count() for recording in recordings)
            self._log.calls = self._log.plain_calls + self._log.replays

    def __del__(self) -> None:
        try:
            self.refresh()
        except Exception:  # at interpreter exit anything may be gone
            return

    def __call__(self, inputs: list[Any]) -> Any:
        """One call; consumes `inputs`. Raises what the function raises."""
        if self._refusal is not None:
            return self._plain(inputs, self._refusal)
        with self._driver.guard():
            try:
                return self._call(inputs)
            finally:
                if self._retired:
                    self._close_retired()

    def _call(self, inputs: list[Any]) -> Any:
        if self._driver.is_capturing():
            return self._plain(inputs, Refusal("the current stream is being captured by somebody else"))
        try:
            key = self._key(inputs)
        except Exception as error:
            return self._after_error(inputs, error)
        if isinstance(key, Refusal):
            return self._plain(inputs, key)
        if self._has_seeds_on_host(inputs):
            self._ran_with_seeds_on_host = True
            return self._plain(inputs)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            elif self._may_be_recorded(inputs):
                self._remember(key, _Seen())
                # Those calls had another key only because of where the seeds were.
                entry = self._entries[key] if self._ran_with_seeds_on_host else None
            else:
                entry = Refusal("Inductor's options exclude it: cudagraph_skip_dynamic_graphs, cudagraph_capture_sizes")
        if isinstance(entry, Recording):
            return self._replay(inputs, key, entry)
        if isinstance(entry, _Seen):
            return self._record(inputs, key)
        if entry is not None and entry.reason == _CROWDED:
            knob = "raise pygraph_inductor.config.max_recordings"
            warn_once(self._facts, _CROWDED, "some of them run without a graph", knob)
        return self._plain(inputs, entry)

    def _has_seeds_on_host(self, inputs: Sequence[Any]) -> bool:
        """Whether the forward was plain: a capture would take the host's memory for the device's."""
        seeds = [inputs[seed] for seed, _ in self._facts.attention_seeds]
        return any(isinstance(seed, torch.Tensor) and not self._driver.owns(seed) for seed in seeds)

    # -- keys

    def _key(self, inputs: Sequence[Any]) -> Hashable | Refusal:
        call = examine(inputs, self._driver)
        if isinstance(call, Refusal):
            return call
        found = _overlaps_of(inputs, call)
        return call.key, found, self._residues_of(inputs, call, found)

    def _residues_of(self, inputs: Sequence[Any], call: Call, found: Overlaps) -> tuple[int, ...]:
        """Inputs that alias cannot be staged one by one if they come less aligned: another alignment, another key."""
        aliased = sorted({index for first, second, _ in found for index in (first, second)})
        return tuple(inputs[call.slots[index]].data_ptr() % self._driver.alignment for index in aliased)

    def _may_be_recorded(self, inputs: Sequence[Any]) -> bool:
        """Inductor's options about dynamic shapes: which values of its int inputs a function is recorded for."""
        numbers = tuple(value for value in inputs if type(value) is int)
        if not numbers:
            return True
        if self._facts.skip_dynamic:
            return False
        sizes = self._facts.capture_sizes
        return sizes is None or numbers in sizes or (len(numbers) == 1 and numbers[0] in sizes)

    def _remember(self, key: Hashable, entry: _Entry) -> None:
        """Store an entry, and forget the least recently used beyond the caps."""
        if self._entries.get(key) is not entry:
            self._retire(key)  # threads with streams of their own may record the same key at the same time
        self._entries[key] = entry
        self._entries.move_to_end(key)
        cap = max(self._facts.settings.max_recordings, 0)
        recorded = [(value.last_used(), old) for old, value in self._entries.items() if isinstance(value, Recording)]
        recorded.sort(key=lambda pair: pair[0])
        for _, old in recorded[: max(len(recorded) - cap, 0)]:
            self._lose(old, _CROWDED)
        while len(self._entries) > max(cap, 1) * _KEYS_PER_RECORDING:
            self._retire(next(iter(self._entries)))

    def _lose(self, key: Hashable, why: str) -> None:
        """Retire a recording; a key that keeps losing its recordings early stays plain. Needs the lock."""
        recording = self._entries.get(key)
        if not isinstance(recording, Recording):  # another thread was faster
            return
        failures = recording.failures + 1 if recording.count() < _WORTHWHILE else 0
        self._retire(key)
        self._entries[key] = _Seen(failures) if failures < _ATTEMPTS else Refusal(why)

    def _retire(self, key: Hashable) -> None:
        """Forget an entry. Needs the lock."""
        entry = self._entries.pop(key, None)
        if isinstance(entry, Recording):
            self._retired.append(entry)
            self._replays_of_retired += entry.count()
            front = self._front()
            if front is not None and entry.launcher is not None:
                front.remove(entry.launcher)
            self._log.retired += 1
            with contextlib.suppress(ValueError):
                self._log.recordings.remove(entry.log)

    def _close_retired(self) -> None:
        """Close what was retired. No lock may be held: closing waits for a replay in another thread."""
        with self._lock:
            retired, self._retired = self._retired, []
        for recording in retired:
            recording.close()

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
                    with self._lock:
                        self._lose(key, f"{type(error).__name__}: {error}")
                return self._after_error(inputs, error)
            result = player.launch(inputs, prepared)
            recording.replayed_in_python()
        front = self._front()
        if front is not None and recording.launcher is not None and not front.holds(recording.launcher):
            front.add(recording.launcher)  # the next such call need not come here
        inputs.clear()
        return result

    def _record(self, inputs: list[Any], key: Hashable) -> Any:
        call = examine(inputs, self._driver)
        if isinstance(call, Refusal):
            return self._plain(inputs, call)
        pool = pool_for(self._driver)
        with pool.turn() as ours:
            with self._lock:
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
        checked = sorted(self._positions_to_align(inputs))
        request = Request(self._run, self._facts, self._driver, pool, tuple(inputs), call, checked, self._written)
        inputs.clear()
        attempt = record(request)
        if attempt.recording is not None and self._front() is not None:
            self._give_launcher(attempt.recording, request)
        self._settle(key, attempt)
        return attempt.result

    def _give_launcher(self, recording: Recording, request: Request) -> None:
        try:
            recording.launcher = native.launcher_for(
                recording.player,
                recording.graph,
                self._driver,
                request.inputs,
                bool(_overlaps_of(request.inputs, request.call)),
                recording.pool,
            )
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            warn_once(self._facts, reason, "its replays go through Python, which is slower")
        front = self._front()
        if recording.launcher is not None and front is not None:
            front.add(recording.launcher)

    def _settle(self, key: Hashable, attempt: Attempt) -> None:
        self._log.plain_calls += 1
        surprise = attempt.undeclared_writes - self._written
        self._written |= surprise
        with self._lock:
            if surprise:  # recordings made before take those inputs as read only, and would not copy them back
                for old in [old for old, entry in self._entries.items() if isinstance(entry, Recording)]:
                    self._retire(old)
            if attempt.recording is not None:
                entry = self._entries.get(key)
                attempt.recording.failures = entry.failures if isinstance(entry, _Seen) else 0
                self._log.recordings.append(attempt.recording.log)
                self._remember(key, attempt.recording)
            else:
                again = self._note_failure(key, attempt.refusal)
        for note in attempt.notes:
            warn_once(self._facts, note, "its tensors are staged through fixed buffers")
        if attempt.refusal is not None:
            self._log.add_reason(attempt.refusal.reason)
            if not again:
                warn_once(self._facts, attempt.refusal.reason, "it runs without a graph", _STRICT)

    def _note_failure(self, key: Hashable, refusal: Refusal | None) -> bool:
        """Remember that a key could not be recorded; whether it will be tried again. Needs the lock."""
        entry = self._entries.get(key)
        if isinstance(entry, Recording):  # another thread succeeded meanwhile
            return True
        failures = entry.failures + 1 if isinstance(entry, _Seen) else 1
        again = refusal is not None and refusal.passing and failures < _ATTEMPTS
        self._remember(key, _Seen(failures) if again or refusal is None else refusal)
        return again

    def _after_error(self, inputs: list[Any], error: Exception) -> Any:
        """Nothing was launched: answer plainly, say so once."""
        if self._facts.settings.strict:
            raise error
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, torch.OutOfMemoryError):
            self._driver.release_cached()
            reason = _NO_MEMORY  # torch's own text has another number in every call
        warn_once(self._facts, reason, "this call ran without a graph", _STRICT)
        return self._plain(inputs, Refusal(reason))

    def _positions_to_align(self, inputs: Sequence[Any]) -> frozenset[int]:
        if self._checked is None:
            checked = self._facts.checked_inputs
            self._checked = frozenset(checked(inputs) if callable(checked) else checked)
        return self._checked


def _overlaps_of(inputs: Sequence[Any], call: Call) -> Overlaps:
    tensors = [inputs[position] for position in call.slots]
    return overlaps([tensor.data_ptr() for tensor in tensors], [Layout.of(tensor).span for tensor in tensors])


_drivers: dict[torch.device, Driver] = {}
_drivers_lock = threading.Lock()


def driver_for(device: torch.device) -> Driver:
    """The driver of a device, made on first use. CPU tensors have the simulated one."""
    with _drivers_lock:
        if device not in _drivers:
            if device.type == "cuda":
                from pygraph_inductor.driver.cuda import CudaDriver

                _drivers[device] = CudaDriver(device)
            else:
                from pygraph_inductor.driver.simulated import SimulatedDriver

                _drivers[device] = SimulatedDriver()
        return _drivers[device]
