"""What the patches have to add to PyTorch, read from the package: the rows of its seam table and its hook texts.

Reading them must not import torch, so the package's `__init__`, which would, is left out.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from .places import ROOT

PACKAGE = "pygraph_inductor"


def _module(name: str) -> ModuleType:
    if PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE)
        package.__path__ = [str(ROOT / PACKAGE)]
        sys.modules[PACKAGE] = package
    return importlib.import_module(f"{PACKAGE}.{name}")


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
