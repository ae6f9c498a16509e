"""The knobs as they were when a function was compiled: one frozen value that travels with the function.

`seams` reads it from `config` and puts it into `Facts`; `recording` and `replay` read it from there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from pygraph_inductor import config, environment


@dataclass(frozen=True)
class Settings:
    """One field per knob that a compiled function needs; the names and meanings are those of `config.py`."""

    engine: str = "auto"
    max_recordings: int = 64
    max_verify_bytes: int = 8 << 30
    strict: bool = False


def current() -> Settings:
    """What `config` says now, in this thread. Raises `ValueError` for a word that a knob does not know."""
    for knob, words in environment.CHOICES.items():
        value = getattr(config, knob)
        if value not in words:
            raise ValueError(f"pygraph_inductor.config.{knob} is {value!r}; it can be one of {', '.join(words)}")
    return Settings(**{field.name: getattr(config, field.name) for field in fields(Settings)})
