"""CUDA graphs for torch.compile that borrow addresses: importing this package installs it into torch.

From here on `torch.compile(..., mode="reduce-overhead")` records graphs that own no tensor. PYGRAPH_DISABLE=1 makes
the import do nothing.
"""

from __future__ import annotations

import time as _time

import torch as _torch  # not counted below: it is there, or would be imported anyway

_start = _time.perf_counter()

from typing import TYPE_CHECKING  # noqa: E402

from pygraph_inductor import config, environment  # noqa: E402
from pygraph_inductor.seams import declines as _declines  # noqa: E402
from pygraph_inductor.seams import install as _install  # noqa: E402

if TYPE_CHECKING:
    from types import ModuleType

    from pygraph_inductor import decisions
    from pygraph_inductor.reporting import Report

__all__ = ["config", "decisions", "disable", "enable", "enabled", "import_seconds", "report"]


def __getattr__(name: str) -> ModuleType:
    if name == "decisions":  # imported when it is asked for: most programs never do
        import importlib

        return importlib.import_module("pygraph_inductor.decisions")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def enable() -> bool:
    """Install into torch. Returns False, with one warning, if this torch is left untouched. May be called again."""
    return _install.install()


def disable() -> None:
    """Put every original back. Functions that were compiled before stay as they are. May be called again."""
    _install.remove()


def enabled() -> bool:
    """Whether compilations are ours from now on."""
    return _install.is_installed()


def report() -> Report:
    """What happened to each compiled function and why, as data; `str()` of it is a table."""
    from pygraph_inductor.reporting.facts import Report, graphs, snapshot

    return Report(
        functions=snapshot(),
        installed={**_install.facts(), "import seconds": round(import_seconds, 3)},
        declined=_declines.lines(),
        graphs=graphs(),
    )


environment.warn_about_unknown(config.get_config_copy())
if not config.disable:
    enable()

# How long importing the package took, without torch.
import_seconds: float = _time.perf_counter() - _start
del _torch
