"""The choices of one function: what is known about a size class, what has to be measured, what came of it.

`recording.function` asks it before it records, and once it has recorded; nothing here is on the way of a replay.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

import torch

from pygraph_inductor.driver.protocol import Driver
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.replay import native
from pygraph_inductor.reporting.facts import DecisionFacts, ExpectedFacts, FunctionFacts, VariantFacts
from pygraph_inductor.selection.calibration import coefficients
from pygraph_inductor.selection.classes import size_class
from pygraph_inductor.selection.drift import Watch
from pygraph_inductor.selection.judge import Measured, Rules, Variant, Verdict, saved_ns
from pygraph_inductor.selection.measuring import Measurement, Turn
from pygraph_inductor.selection.prediction import Prediction
from pygraph_inductor.selection.store import Key, Store, Stored

_ALONE = "nothing is decided on one of {} ranks alone"
CHOICES = frozenset(variant.value for variant in Variant)


@dataclass(frozen=True)
class Choice:
    """How the calls of a size class are answered. `cost_ns` is 0 where nothing was measured.

    `gain_ns` is what a call saves against the plain one; None where that is not known.
    """

    variant: Variant
    reason: str
    origin: str
    cost_ns: float = 0.0
    table: tuple[Measured, ...] = ()
    gain_ns: float | None = None

    @property
    def is_plain(self) -> bool:
        return self.variant is Variant.PLAIN


class Selector:
    """Chooses between the plain call and graphs for one function."""

    def __init__(self, facts: Facts, driver: Driver, log: FunctionFacts) -> None:
        self._facts = facts
        self._driver = driver
        self._log = log
        self._rules = Rules(facts.settings.objective, facts.settings.min_gain)
        self._choices: dict[str, Choice] = {}
        self._decisions: dict[str, DecisionFacts] = {}
        # Classes whose choice is taken again, by how often; what was chosen before.
        self._examinations: dict[str, int] = {}
        self._incumbents: dict[str, Variant] = {}
        self._uncounted_ns = facts.compile_ns  # of the time to the steady state; the first measurement's
        self._lock = threading.Lock()
        if self._store() is not None:
            # Milliseconds, once, which no call has to wait for: compiling takes seconds.
            _versions()
            driver.identity()

    def known(self, call_key: tuple[Hashable, ...]) -> Choice | None:
        """The choice for calls of this key, if this process or an earlier one has made it."""
        if not self._facts.settings.selection or _ranks() > 1:
            return None
        sizes = size_class(call_key)
        with self._lock:
            choice = self._choices.get(sizes)
            if choice is None and sizes not in self._examinations and (found := self._stored(sizes)) is not None:
                choice = self._choices[sizes] = found
                self._note(sizes, choice)
            return choice

    def measures(self) -> bool:
        """Whether it is found out what graphs save. Where it is not, there is nothing to hold against their cost."""
        return self._facts.settings.selection and _ranks() == 1 and self._driver.stopwatch() is not None

    def begin(
        self,
        call_key: tuple[Hashable, ...],
        recording_ns: int,
        pool_bytes: Callable[[], int],
        prediction: Prediction | None = None,
        recorded: Variant = Variant.GRAPH,
    ) -> Measurement | Choice | None:
        """For a recording: a measurement, or the choice where there is nothing to measure; None: not our business.

        `recording_ns` is how long it took to record, `pool_bytes` tells what its pool has taken from the device, and
        `recorded` which variant this is. With a prediction there may be one variant more to measure.
        """
        settings = self._facts.settings
        if not settings.selection:
            return None
        sizes = size_class(call_key)
        if (ranks := _ranks()) > 1:
            return self._unmeasured(sizes, _ALONE.format(ranks))
        if settings.max_graph_memory and (taken := pool_bytes()) > settings.max_graph_memory:
            limit = f"config.max_graph_memory allows {settings.max_graph_memory}"
            return Choice(Variant.PLAIN, f"with it graphs would take {taken} bytes, {limit}", "not measured")
        if prediction is not None:
            with self._lock:
                _note_expected(self._decision(sizes), prediction)
        if (choice := self.known(call_key)) is not None:
            return choice
        if self._driver.stopwatch() is None:
            return self._unmeasured(sizes, "the device has no clock")
        if prediction is not None and prediction.hopeless is not None:
            return self._predicted(sizes, prediction.hopeless)
        with self._lock:
            self._decision(sizes)
            budget = settings.measure_budget * (recording_ns + self._uncounted_ns)
            self._uncounted_ns = 0
            copies = prediction is not None and prediction.may_win_by_copies and settings.engine == "auto"
            variants = (recorded, *([Variant.COPY] if copies else []), Variant.PLAIN)
            incumbent = self._incumbents.get(sizes)
            return Measurement(self._driver, variants, self._rules, budget, incumbent, pool_bytes())

    def next(self, call_key: tuple[Hashable, ...], measurement: Measurement) -> Turn | Choice:
        """How the next call of a key that is being measured is answered, or the choice."""
        sizes = size_class(call_key)
        with self._lock:
            choice = self._choices.get(sizes)  # by another key of the class
        if choice is not None:
            return choice
        if (ranks := _ranks()) > 1:
            return self._unmeasured(sizes, _ALONE.format(ranks))
        turn = measurement.next()
        if isinstance(turn, Verdict):
            return self._conclude(sizes, turn)
        if turn.variant is Variant.PLAIN and self._driver.free_bytes() < measurement.pool_bytes:
            measurement.lost(turn)
            return self._unmeasured(sizes, "there is no memory for a plain call beside the graph")
        return turn

    def watch(self, choice: Choice, call_key: tuple[Hashable, ...]) -> Watch | None:
        """What looks back at a choice; None where it cannot change."""
        if choice.origin in ("pinned", "not measured", "predicted") or self._driver.stopwatch() is None:
            return None
        with self._lock:
            examinations = self._examinations.get(size_class(call_key), 0)
        return Watch(self._driver, self._rules.objective, choice.cost_ns, examinations)

    def examine_again(self, call_key: tuple[Hashable, ...]) -> bool:
        """Calls of this key have come to cost something else: what was chosen counts no more than a little.

        Says whether anything may be measured now.
        """
        if _ranks() > 1:
            return False
        sizes = size_class(call_key)
        with self._lock:
            before = self._choices.pop(sizes, None)
            if before is not None:
                self._incumbents[sizes] = before.variant
                self._examinations[sizes] = self._examinations.get(sizes, 0) + 1
                decision = self._decision(sizes)
                decision.examinations = self._examinations[sizes]
                decision.chosen, decision.reason = "", "being measured again"
        return True

    def show(self, call_key: tuple[Hashable, ...], measurement: Measurement) -> None:
        """Bring what is reported about a measurement under way up to date."""
        with self._lock:
            self._decision(size_class(call_key)).variants = _shown(measurement.table())

    def _unmeasured(self, sizes: str, reason: str) -> Choice:
        choice = Choice(Variant.GRAPH, reason, "not measured")
        with self._lock:
            self._note(sizes, choice)
        return choice

    def _predicted(self, sizes: str, reason: str) -> Choice:
        """The graph cannot win. Known again as soon as it is recorded, so it is not kept on disk."""
        choice = Choice(Variant.PLAIN, reason, "predicted")
        with self._lock:
            self._choices[sizes] = choice
            self._note(sizes, choice)
        return choice

    def _conclude(self, sizes: str, verdict: Verdict) -> Choice:
        gain = saved_ns(verdict.table, verdict.chosen, self._rules.min_gain)
        choice = Choice(verdict.chosen, verdict.reason, "measured", verdict.cost.median, verdict.table, gain)
        with self._lock:
            if sizes in self._choices:  # another thread was faster
                return self._choices[sizes]
            self._choices[sizes] = choice
            self._note(sizes, choice)
        store, key = self._store(), self._key(sizes)
        if store is not None and key is not None:
            store.write(
                Stored(key, self._facts.name, choice.variant.value, choice.reason, choice.cost_ns, gain_ns=gain)
            )
        return choice

    # -- what is reported; these need the lock

    def _decision(self, sizes: str) -> DecisionFacts:
        if sizes not in self._decisions:
            self._decisions[sizes] = DecisionFacts(_brief(sizes))
            self._log.decisions.append(self._decisions[sizes])
        return self._decisions[sizes]

    def _note(self, sizes: str, choice: Choice) -> None:
        decision = self._decision(sizes)
        decision.chosen, decision.reason, decision.origin = choice.variant.value, choice.reason, choice.origin
        if choice.table:
            decision.variants = _shown(choice.table)
        key = (
            self._key(sizes)
            if choice.origin not in ("not measured", "predicted") and self._store() is not None
            else None
        )
        decision.digest = key.digest if key is not None else ""

    # -- what is kept

    def _store(self) -> Store | None:
        folder = self._facts.decisions_folder
        return Store(Path(folder), CHOICES) if folder is not None and self._facts.graph_hash is not None else None

    def _key(self, sizes: str) -> Key | None:
        if self._facts.graph_hash is None:
            return None
        settings = self._facts.settings
        return Key(
            {
                "graph": self._facts.graph_hash,
                "sizes": sizes,
                **self._driver.identity(),
                **_versions(),
                "launcher": "C" if native.module() is not None else "Python",
                "engine": settings.engine,
                "objective": settings.objective,
                "min_gain": repr(settings.min_gain),
                "max_kept_bytes": str(settings.max_kept_bytes),
                "coefficients": self._plans(),
            }
        )

    def _plans(self) -> str:
        """Names what the plan of a recording is made by: what was measured is one plan, and another may be better."""
        if self._facts.settings.engine != "auto":
            return ""
        known = coefficients(self._driver, self._facts.decisions_folder).to_dict()
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]

    def _stored(self, sizes: str) -> Choice | None:
        store, key = self._store(), self._key(sizes)
        found = store.read(key) if store is not None and key is not None else None
        if found is None:
            return None
        origin = "pinned" if found.pinned else "stored"
        return Choice(Variant(found.chosen), found.reason, origin, found.cost_ns, gain_ns=found.gain_ns)


def _brief(sizes: str) -> str:
    """The first inputs of a size class."""
    parts = sizes.split("; ")
    return sizes if len(parts) <= 4 else "; ".join([*parts[:4], f"… {len(parts)} inputs"])


def _note_expected(decision: DecisionFacts, prediction: Prediction) -> None:
    decision.expected = [
        ExpectedFacts(one.variant.value, round(one.host, 2), round(one.added, 2)) for one in prediction.expected
    ]
    decision.plain_host_at_most_us = round(prediction.launching, 2)


def _shown(table: tuple[Measured, ...]) -> list[VariantFacts]:
    return [
        VariantFacts(
            name=one.variant.value,
            rounds=one.cost.count,
            host_us=round(one.host.median / 1e3, 2),
            device_us=round(one.device.median / 1e3, 2),
            cost_us=round(one.cost.median / 1e3, 2),
            spread_us=round(one.cost.deviation / 1e3, 2),
        )
        for one in table
    ]


def _ranks() -> int:
    """How many processes work on one program: what one of them measures is no ground for all."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return distributed.get_world_size()


@functools.cache
def _versions() -> dict[str, str]:
    found = {"torch": str(torch.__version__)}
    for package in ("triton", "cuda-bindings", "pygraph_inductor"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = ""
    return found
