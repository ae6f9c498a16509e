"""What makes a generated function the same one in another process, and where decisions about it are kept."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
# What decides how fast a replay is.
_FOLDERS = ("codegen", "driver", "recording", "replay", "transform")


def graph_hash(source_code: str | None, function: str, kind: str, static_inputs: Sequence[int]) -> str | None:
    """A name for one function of generated code; None without its text.

    Comments are left out: they hold paths and lines of the user's code.
    """
    if source_code is None:
        return None
    lines = [line for line in source_code.splitlines() if not line.lstrip().startswith("#")]
    described = [_our_code(), function, kind, repr(list(static_inputs)), *lines]
    return hashlib.sha256("\n".join(described).encode()).hexdigest()[:32]


def decisions_folder() -> str | None:
    """Beside Inductor's cache, as it is set now; None where caches are switched off."""
    from torch._inductor import config as inductor_config
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    if inductor_config.force_disable_caches:
        return None
    return str(Path(cache_dir()) / "pygraph" / "decisions")


@functools.cache
def _our_code() -> str:
    """A name for what we are, since a change of ours may change what a replay costs."""
    found = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted((_PACKAGE / folder).glob("*.[cp]*")):
            if path.suffix in (".py", ".c"):
                found.update(path.read_bytes())
    return found.hexdigest()
