"""Where a graph comes from, for people: the user's line out of the stack traces that torch keeps with its nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import torch

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?', re.MULTILINE)
_TORCH = os.path.dirname(torch.__file__) + os.sep


def place_of(stack_traces: Iterable[str | None]) -> str:
    """ "model.py:12 in forward" from the first trace that has a frame outside of torch; "" if none has."""
    for trace in stack_traces:
        if not trace:
            continue
        frames = [frame for frame in _FRAME.finditer(trace) if not frame["file"].startswith(_TORCH)]
        if frames:
            innermost = frames[-1]
            place = f"{os.path.basename(innermost['file'])}:{innermost['line']}"
            return f"{place} in {innermost['function']}" if innermost["function"] else place
    return ""
