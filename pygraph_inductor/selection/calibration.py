"""What the cost model's coefficients are on this machine: read from disk, where `pygraph calibrate` has put them.

Without a file the defaults hold. Measuring is in `calibrating.py`: it records and replays, which nothing should do
behind a user's back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock

from pygraph_inductor.driver.protocol import Driver
from pygraph_inductor.selection import json_file
from pygraph_inductor.selection.cost_model import Coefficients

LOGGER = logging.getLogger("pygraph_inductor")
FORMAT = 3  # what cases that took turns differed by
_PATIENCE = 5.0  # seconds to wait for another process that writes
_lock = threading.RLock()  # finalizers and signal handlers come here, too
_known: dict[tuple[str | None, str], Coefficients] = {}


def coefficients(driver: Driver, folder: str | None = None) -> Coefficients:
    """The coefficients for a device, looked up once per process. `folder`: where decisions are kept, or None."""
    key = (folder, json.dumps(driver.identity(), sort_keys=True))
    with _lock:
        if key not in _known:
            _known[key] = (read(driver, folder) if folder is not None else None) or Coefficients()
        return _known[key]


def file_of(driver: Driver, folder: str) -> Path:
    """Where a device's coefficients are, whether or not they have been measured."""
    text = json.dumps(driver.identity(), sort_keys=True)
    return Path(folder) / "engines" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def read(driver: Driver, folder: str) -> Coefficients | None:
    """What was measured on this very device, driver and clocks; None if nothing was, or the file is not to be read."""
    path = file_of(driver, folder)
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT or content["identity"] != driver.identity():
            return None
        return _checked(content["coefficients"])
    except FileNotFoundError:
        return None
    except (OSError, ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
        LOGGER.warning("%s holds no coefficients (%s); the defaults are used.", path, type(error).__name__)
        return None


def write(driver: Driver, folder: str, measured: Coefficients) -> Path:
    """Keep what was measured, and use it from now on. Raises OSError or filelock.Timeout."""
    path = file_of(driver, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"format": FORMAT, "identity": driver.identity(), "coefficients": measured.to_dict()}
    with filelock.FileLock(str(path.parent / ".lock"), timeout=_PATIENCE):
        json_file.replace(path, content)
    with _lock:
        _known.clear()
    return path


def _checked(found: Mapping[str, Any]) -> Coefficients:
    """Coefficients from what a file says. Raises ValueError, KeyError or TypeError."""
    values = {}
    for field in dataclasses.fields(Coefficients):
        number = found[field.name]
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise TypeError(field.name)
        if not (math.isfinite(number) and number >= 0) or (field.name == "bytes_per_us" and not number):
            raise ValueError(field.name)
        values[field.name] = float(number)
    return Coefficients(**values)
