"""Why something failed, short enough for a table and the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LONGEST = 400
_ROOT = f"{Path(__file__).resolve().parent.parent.parent}/"
# What PyTorch adds to every error, whatever it is about; what follows it is advice as well, or a trace.
_ADVICE = re.compile(r"\s*(?:Set TORCHDYNAMO_VERBOSE=1|Search for `cuda|Stack trace: File).*")
_RAISED = re.compile(r"[\w.]*(?:Error|Exception|Unsupported|Interrupt)\b")


def brief(text: str) -> str:
    """On one line, with paths from the checkout on, without advice that belongs to no error in particular."""
    line = " ".join(text.replace(_ROOT, "").split())
    return (_ADVICE.sub("", line) or line)[:LONGEST]


def last_words(lines: Sequence[str], raised: bool) -> str:
    """What the log of a dead process ends with; of one that ended by an exception, the exception."""
    said = [line.strip() for line in lines if line.strip()]
    if raised:
        found = next((line for line in reversed(said) if _RAISED.match(line)), None)
        if found is not None:
            return brief(found)
    return brief(said[-1]) if said else "no output"


def reason_of(error: Exception) -> str:
    """What was raised, and what it says."""
    return brief(f"{type(error).__name__}: {error}")


def or_reason(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `measure` gives, or why it gives nothing, as `failed`: for what must not cost anything else its numbers."""
    try:
        return measure()
    except Exception as error:
        return {"failed": reason_of(error)}
