"""Which Python functions one call runs, by Python's own profiler: whose they are, how often they run, what they take.

The profiler counts what it costs itself into every function, several times what a short one takes. So the figures say
who is there, and who takes more than whom; what a call takes without a profiler, `host_cost.py` says.
"""

from __future__ import annotations

import cProfile
import pstats
import re
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

BURSTS = 10
_GENERATED = re.compile(r"c[a-z2-7]{51}\.py")  # what Inductor calls modules that it wrote
SHOWN = 12  # functions: those that take most


def functions(burst: Callable[[], Any], wait: Callable[[], Any], calls: int) -> list[dict[str, Any]]:
    """The functions that `burst`, which makes `calls` calls, spends most time in, with times and microseconds per call.

    `wait` comes between bursts, and is not profiled.
    """
    profile = cProfile.Profile()
    for _ in range(BURSTS):
        profile.enable()
        burst()
        profile.disable()
        wait()
    total = BURSTS * calls
    rows = [
        {"function": _name(file, line, name), "times": round(times / total, 2), "own": round(own * 1e6 / total, 2)}
        for (file, line, name), (_, times, own, _, _) in pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
        if times >= total  # the burst's own
    ]
    return sorted(rows, key=lambda row: -row["own"])[:SHOWN]


def _name(file: str, line: int, name: str) -> str:
    """Where it is, from the package's name on: machines have their packages in different places."""
    if file.startswith(("~", "<")):
        return name
    parts = PurePath(file).parts
    if "site-packages" in parts:
        parts = parts[parts.index("site-packages") + 1 :]
    starts = [number for number, part in enumerate(parts) if part in ("torch", "pygraph_inductor", "scripts", "tests")]
    where = "/".join(parts[starts[0] :]) if starts else parts[-1]
    return f"{'generated code' if _GENERATED.fullmatch(where) else where}:{line} {name}"
