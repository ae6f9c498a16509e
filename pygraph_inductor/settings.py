"""The knobs as they were when a function was compiled: one frozen value that travels with the function.

`seams` reads it from `config` and puts it into `Facts`; `recording` and `replay` read it from there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pygraph_inductor import config, environment

logger = logging.getLogger("pygraph_inductor")
_refused: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Settings:
    """One field per knob that a compiled function needs; the names and meanings are those of `config.py`."""

    engine: str = "auto"
    max_recordings: int = 64
    free_recordings: int = 8
    max_verify_bytes: int = 32 << 30
    max_kept_bytes: int = 512 << 20
    strict: bool = False
    selection: bool = True
    objective: str = "auto"
    min_gain: float = 0.02
    measure_budget: float = 0.02
    max_graph_memory: int = 0
    max_mirror_bytes: int = 256 << 20


def current() -> Settings:
    """What `config` says now, in this thread."""
    return Settings(
        engine=_word("engine", "auto"),
        max_recordings=config.max_recordings,
        free_recordings=config.free_recordings,
        max_verify_bytes=config.max_verify_bytes,
        max_kept_bytes=config.max_kept_bytes,
        strict=config.strict,
        selection=config.selection,
        objective=_word("objective", "auto"),
        min_gain=config.min_gain,
        measure_budget=config.measure_budget,
        max_graph_memory=config.max_graph_memory,
        max_mirror_bytes=config.max_mirror_bytes,
    )


def rewrites() -> frozenset[str]:
    """The rewrites that `config` turns on now, in this thread, by their names without `transform_`."""
    knobs = [knob for knob in config.get_config_copy() if knob.startswith("transform_")]
    return frozenset(knob.removeprefix("transform_") for knob in knobs if config.transform and getattr(config, knob))


def graph_manager() -> str:
    """What `config.graph_manager` says now, in this thread."""
    return _word("graph_manager", "borrowed")


def _word(knob: str, default: str) -> str:
    """The value of a knob that takes a few words; another value counts as the default, with one warning."""
    value = getattr(config, knob)
    words = environment.CHOICES[knob]
    if value in words:
        return value
    if (knob, repr(value)) not in _refused:
        _refused.add((knob, repr(value)))
        logger.warning(
            "pygraph_inductor.config.%s = %r is not one of %s; taking %r.", knob, value, ", ".join(words), default
        )
    return default
