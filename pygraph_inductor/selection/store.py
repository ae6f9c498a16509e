"""Decisions that outlive the process: one JSON file per key in one folder, beside the compiler's cache.

A file is believed only if it says for which key it is, word for word. What cannot be read or written is ignored with
one warning: then the process measures for itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from pygraph_inductor.selection import json_file

LOGGER = logging.getLogger("pygraph_inductor")
FORMAT = 1
_PATIENCE = 2.0  # seconds to wait for another process that writes
_warned: set[str] = set()


@dataclass(frozen=True)
class Key:
    """What a decision holds for: graph, size class, device, versions, knobs; as text, so that people can read it."""

    fields: Mapping[str, str]

    @property
    def digest(self) -> str:
        text = json.dumps(dict(self.fields), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Stored:
    """A decision on disk. `chosen` is a variant's name; `cost_ns` is 0 where nothing was measured.

    `gain_ns` is what a call saves against the plain one, None where that is not known.
    """

    key: Key
    name: str  # of the function, for people
    chosen: str
    reason: str
    cost_ns: float = 0.0
    pinned: bool = False
    gain_ns: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """What the file says."""
        return {
            "format": FORMAT,
            "key": dict(self.key.fields),
            "name": self.name,
            "chosen": self.chosen,
            "reason": self.reason,
            "cost_ns": self.cost_ns,
            "gain_ns": self.gain_ns,
            "pinned": self.pinned,
        }


class Store:
    """The folder of decisions. No method raises because of what the disk holds or refuses."""

    def __init__(self, folder: Path, choices: frozenset[str]) -> None:
        """`choices`: the names that a decision may choose."""
        self._folder = folder
        self._choices = choices

    def read(self, key: Key) -> Stored | None:
        """The decision for a key. Takes no lock: files are replaced as a whole."""
        found = self._load(self._path(key.digest))
        if found is not None and dict(found.key.fields) != dict(key.fields):
            _warn(self._folder, f"{self._path(key.digest).name} is for another key")
            return None
        return found

    def write(self, stored: Stored) -> bool:
        """Keep a decision, unless the user pinned another one; whether it is on disk now."""
        try:
            with self._locked():
                before = self._load(self._path(stored.key.digest))
                if before is not None and before.pinned and not stored.pinned:
                    return False
                json_file.replace(self._path(stored.key.digest), stored.to_dict())
                return True
        except (OSError, filelock.Timeout) as error:
            _warn(self._folder, f"decisions cannot be written ({_brief(error)})")
            return False

    def forget(self, digest: str) -> bool:
        """Delete a decision; whether there was one."""
        try:
            with self._locked():
                self._path(digest).unlink()
                return True
        except FileNotFoundError:
            return False
        except (OSError, filelock.Timeout) as error:
            _warn(self._folder, f"a decision cannot be deleted ({_brief(error)})")
            return False

    def all(self) -> Iterator[tuple[str, Stored]]:
        """Every decision that can be read, with its digest."""
        try:
            paths = sorted(self._folder.glob("*.json"))
        except OSError:
            return
        for path in paths:
            found = self._load(path)
            if found is not None:
                yield path.stem, found

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.json"

    def _locked(self) -> Any:
        self._folder.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(str(self._folder / ".lock"), timeout=_PATIENCE)

    def _load(self, path: Path) -> Stored | None:
        try:
            content = json.loads(path.read_text())
            return _checked(content, self._choices)
        except FileNotFoundError:
            return None
        except (OSError, ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
            _warn(self._folder, f"{path.name} is no decision ({_brief(error)})")
            return None


def _checked(content: Any, choices: frozenset[str]) -> Stored:
    """A decision from what a file says. Raises ValueError, KeyError or TypeError if it is not one."""
    if not isinstance(content, dict) or content["format"] != FORMAT:
        raise ValueError("another format")
    fields, chosen, cost = content["key"], content["chosen"], content["cost_ns"]
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise ValueError("no key")
    if chosen not in choices or not isinstance(content["pinned"], bool) or isinstance(cost, bool):
        raise ValueError("no choice")
    if not isinstance(cost, (int, float)) or not 0 <= cost < float("inf"):
        raise ValueError("no cost")
    gain = content.get("gain_ns")
    if gain is not None and (
        isinstance(gain, bool) or not isinstance(gain, (int, float)) or not 0 <= gain < float("inf")
    ):
        raise ValueError("no gain")
    name, reason = content["name"], content["reason"]
    if not isinstance(name, str) or not isinstance(reason, str):
        raise ValueError("no text")
    return Stored(
        Key(fields), name, chosen, reason, float(cost), content["pinned"], None if gain is None else float(gain)
    )


def _brief(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _warn(folder: Path, what: str) -> None:
    """One warning per folder: a store that is broken is broken in many places."""
    if str(folder) not in _warned:
        _warned.add(str(folder))
        LOGGER.warning("decisions in %s: %s; such ones are ignored, and measured anew.", folder, what)
