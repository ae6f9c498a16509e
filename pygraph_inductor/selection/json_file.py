"""One JSON file, written at once or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def replace(path: Path, content: Mapping[str, Any]) -> None:
    """Give the file a new content; readers find the old or the new one. Raises OSError. The folder must exist."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".new")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
