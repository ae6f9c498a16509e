"""Stands where recording begins: keeps the facts that the seams hand over, and records nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from pygraph_inductor.driver import devices
from pygraph_inductor.recording import function
from pygraph_inductor.recording.facts import Facts


@dataclass
class Handed:
    """What recording would make of one function: here the function itself."""

    run: Any

    def entry(self) -> Any:
        return self.run


@dataclass
class Recorder:
    """The facts of every function that was handed over, and the function."""

    facts: list[Facts] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list)

    def __call__(self, run: Any, facts: Facts, driver: Any) -> Any:
        self.facts.append(facts)
        self.runs.append(run)
        return Handed(run)

    @property
    def only(self) -> Facts:
        [facts] = self.facts
        return facts


def in_place_of_recording(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(function, "RecordedFunction", recorder)
    monkeypatch.setattr(devices, "driver_for", lambda device: None)
    return recorder
