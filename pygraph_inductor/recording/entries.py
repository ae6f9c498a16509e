"""What a function knows of each key: called once, recorded, or not to be; the least recently used are forgotten."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from pygraph_inductor.recording.inputs import Refusal
from pygraph_inductor.recording.record import Recording
from pygraph_inductor.reporting import FunctionFacts

CROWDED = "more shapes come in turn than config.max_recordings allows recordings"
ATTEMPTS = 3  # at recording one key, where the failure may pass (memory, writes found late)
KEYS_PER_RECORDING = 8  # how many keys are remembered for each recording that may be kept
_WORTHWHILE = 32  # replays that make up for a recording, also where it is lost later


@dataclass
class Seen:
    """A key that was called plainly; `failures` counts attempts to record it, and recordings lost before they paid.

    `asked`: it was looked up whether there is a choice for it.
    """

    failures: int = 0
    calls: int = 1
    asked: bool = False


@dataclass(frozen=True)
class Chosen(Refusal):
    """A key whose graph does not pay."""


Entry = Seen | Recording | Refusal


class Entries:
    """Everything here needs `lock`, except where it says otherwise.

    No other lock is taken while it is held; a pool's lock may be held when it is taken.
    """

    def __init__(self, max_recordings: int, log: FunctionFacts) -> None:
        self.lock = threading.Lock()
        # The launchers in front of the function, where there are any.
        self.front: Callable[[], Any | None] = lambda: None
        self.retired: list[Recording] = []  # to be closed
        self.replays_of_retired = 0
        self._gains_of_retired = [0, 0.0]  # replays of graphs that were not given up for being slow; ns they saved
        self._max_recordings = max(max_recordings, 0)
        self._log = log
        self._by_key: OrderedDict[Hashable, Entry] = OrderedDict()

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: Hashable) -> Entry | None:
        """What is known of a key."""
        return self._by_key.get(key)

    def use(self, key: Hashable) -> Entry | None:
        """The same, for a call that has this key."""
        entry = self._by_key.get(key)
        if entry is not None:
            self._by_key.move_to_end(key)
        return entry

    def recordings(self) -> dict[Hashable, Recording]:
        """The keys that are recorded."""
        return {key: entry for key, entry in self._by_key.items() if isinstance(entry, Recording)}

    def gains(self) -> list[tuple[int, float]]:
        """For each recording, and at last for those retired: replays, and what each saved, in ns."""
        found = [(one.count(), one.gain_ns) for one in self.recordings().values()]
        replays, saved = self._gains_of_retired
        return [*found, (int(replays), saved / replays)] if replays else found

    def remember(self, key: Hashable, entry: Entry) -> None:
        """Store an entry, and forget the least recently used beyond the caps."""
        if self._by_key.get(key) is not entry:
            self.retire(key)  # threads with streams of their own may record the same key at the same time
        self._by_key[key] = entry
        self._by_key.move_to_end(key)
        if isinstance(entry, Recording):
            self._lose_least_used()
        while len(self._by_key) > max(self._max_recordings, 1) * KEYS_PER_RECORDING:
            self.retire(next(iter(self._by_key)))

    def _lose_least_used(self) -> None:
        recorded = sorted(
            (value.last_used(), number, old) for number, (old, value) in enumerate(self.recordings().items())
        )
        for _, _, old in recorded[: max(len(recorded) - self._max_recordings, 0)]:
            self.lose(old, CROWDED)

    def lose(self, key: Hashable, why: str) -> None:
        """Retire a recording; a key that keeps losing its recordings early stays plain."""
        recording = self._by_key.get(key)
        if not isinstance(recording, Recording):  # another thread was faster
            return
        failures = recording.failures + 1 if recording.count() < _WORTHWHILE else 0
        self.retire(key)
        self._by_key[key] = Seen(failures) if failures < ATTEMPTS else Refusal(why)

    def retire(self, key: Hashable) -> None:
        """Forget an entry."""
        entry = self._by_key.pop(key, None)
        if isinstance(entry, Recording):
            self.retire_copying(entry)
            self.retired.append(entry)
            self.replays_of_retired += entry.count()
            if entry.gain_ns:
                self._gains_of_retired[0] += entry.count()
                self._gains_of_retired[1] += entry.count() * entry.gain_ns
            front = self.front()
            if front is not None and entry.launcher is not None:
                front.remove(entry.launcher)
            self._log.retired += 1
            with contextlib.suppress(ValueError):
                self._log.recordings.remove(entry.log)

    def retire_copying(self, recording: Recording) -> None:
        """Forget the variant with copies, which is in front of nothing."""
        if recording.copying is not None:
            self.retired.append(recording.copying)
            self.replays_of_retired += recording.copying.count()
            recording.copying = None

    def retire_chosen(self) -> None:
        """Forget which keys' graphs do not pay."""
        for key in [key for key, entry in self._by_key.items() if isinstance(entry, Chosen)]:
            self.retire(key)

    def forget_kept(self) -> None:
        """Give back what recordings keep for their next calls. Takes the lock itself."""
        with self.lock:
            recordings = self.recordings()
        for recording in recordings.values():
            for one in (recording, recording.copying):
                if one is not None and one.launcher is not None:
                    one.launcher.forget()

    def close_retired(self) -> None:
        """Close what was retired. No lock may be held, not even this one: closing waits for other threads. Nor may this
        thread capture: destroying a graph breaks that, whoever's it is.
        """
        with self.lock:
            retired, self.retired = self.retired, []
        later = [recording for recording in retired if not recording.close_unless_busy()]
        if later:
            with self.lock:
                self.retired += later
