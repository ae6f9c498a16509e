"""PYGRAPH_* environment variables: the initial values of the knobs in `config.py`, and warnings about wrong ones.

Read once, when `config` is imported; nothing on the way of a call comes here.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable

PREFIX = "PYGRAPH_"

# The knobs that take one word of a few; `settings.py` checks assignments from Python against the same table.
CHOICES: dict[str, tuple[str, ...]] = {
    "engine": ("auto", "patch", "indirect", "copy"),
    "graph_manager": ("borrowed", "trees"),
    "objective": ("auto", "latency", "throughput"),
}

_TRUTH = {"1": True, "true": True, "0": False, "false": False}

logger = logging.getLogger("pygraph_inductor")


def variable(knob: str) -> str:
    """The name of the environment variable behind a knob."""
    return PREFIX + knob.upper()


def _refuse(knob: str, text: str, wanted: str, default: object) -> None:
    logger.warning("%s=%r is not %s; keeping the default, %r.", variable(knob), text, wanted, default)


def flag(knob: str, default: bool) -> bool:
    """A boolean knob: 0, 1, true or false."""
    text = os.environ.get(variable(knob))
    if text is None:
        return default
    value = _TRUTH.get(text.strip().lower())
    if value is None:
        _refuse(knob, text, "one of 0, 1, true, false", default)
        return default
    return value


def number(knob: str, default: int) -> int:
    """A knob that counts something: a whole number that is not negative."""
    text = os.environ.get(variable(knob))
    if text is None:
        return default
    try:
        value = int(text.strip())
    except ValueError:
        value = -1
    if value < 0:
        _refuse(knob, text, "a whole number of at least 0", default)
        return default
    return value


def fraction(knob: str, default: float) -> float:
    """A knob that is a part of something: from 0 to 1."""
    text = os.environ.get(variable(knob))
    if text is None:
        return default
    try:
        value = float(text.strip())
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        _refuse(knob, text, "a number from 0 to 1", default)
        return default
    return value


def word(knob: str, default: str) -> str:
    """A knob with a few named values."""
    text = os.environ.get(variable(knob))
    if text is None:
        return default
    value = text.strip().lower()
    if value not in CHOICES[knob]:
        _refuse(knob, text, "one of " + ", ".join(CHOICES[knob]), default)
        return default
    return value


def warn_about_unknown(knobs: Iterable[str]) -> list[str]:
    """One warning per PYGRAPH_* variable that is no knob, naming the nearest one. Returns the names warned about."""
    known = {variable(knob) for knob in knobs}
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    for name in unknown:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        logger.warning("%s is not a variable of pygraph_inductor and is ignored. Did you mean %s?", name, nearest)
    return unknown
