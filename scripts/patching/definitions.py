"""What the patches have to add to PyTorch, read from the package: the rows of its seam table and its hook texts.

Reading them must not import torch, so the package's `__init__`, which would, is left out: the two modules, which need
the standard library only, are loaded under another name.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from .places import ROOT

_package = ModuleType("pygraph_inductor_definitions")
_package.__path__ = [str(ROOT / "pygraph_inductor")]
sys.modules[_package.__name__] = _package


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{_package.__name__}.{name}")


table = _module("seams.table")
hooks = _module("seams.hooks")

# The file that gets the registry and the decorator.
REGISTRY_FILE = hooks.MODULE.replace(".", "/") + ".py"


def hooked() -> dict[str, tuple[str, ...]]:
    """The functions to decorate ("CompiledFxGraph.post_compile") of each file ("torch/_inductor/output_code.py")."""
    files: dict[str, tuple[str, ...]] = {}
    for row in table.ROWS:
        if row.replacement is not None:
            path = row.module.replace(".", "/") + ".py"
            files[path] = (*files.get(path, ()), row.name)
    return files
