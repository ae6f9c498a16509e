"""The hooks of a patched torch: what the patches add to PyTorch, and how `install.py` uses it instead of replacing.

The single source of the patch set: `scripts/refresh_patches.py` makes every series from the texts here and from the
rows of `table.py` that have a replacement.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

# A file of PyTorch's own that imports nothing of Inductor, so that every other file can import it.
MODULE = "torch._inductor.hooks"
DECORATOR = "pygraph_hook"
STOCK = "pygraph_stock"
INSTEAD = "pygraph_instead"

# Added to MODULE: its import, and the text at its end. Without this package nothing ever fills INSTEAD.
IMPORTS = "functools"
TEXT = f"""

# Functions of Inductor that a package may take over, and what runs instead of them, both by full name.
{STOCK}: dict[str, Callable[..., object]] = {{}}
{INSTEAD}: dict[str, Callable[..., object]] = {{}}


def {DECORATOR}(function):
    name = f"{{function.__module__}}.{{function.__qualname__}}"
    {STOCK}[name] = function

    @functools.wraps(function)
    def hook(*args, **kwargs):
        return {INSTEAD}.get(name, function)(*args, **kwargs)

    return hook
"""

# Added to every file with a function that the table replaces; the decorator goes above all others.
IMPORT = f"from .{MODULE.rpartition('.')[2]} import {DECORATOR}"


@dataclass(frozen=True)
class Hook:
    """One hooked function of the torch that is running."""

    name: str
    stock: Callable[..., Any]
    instead: dict[str, Callable[..., Any]]

    def take_over(self, ours: Callable[..., Any]) -> None:
        """From now on every call runs ours, whoever kept a reference to the function."""
        self.instead[self.name] = ours

    def give_back(self, ours: Callable[..., Any]) -> None:
        """Calls run the stock function again, unless somebody else took over since."""
        if self.instead.get(self.name) is ours:
            del self.instead[self.name]


def of(full_name: str) -> Hook | None:
    """The hook that a patched torch has there. Its module must have been imported."""
    module: ModuleType | None = sys.modules.get(MODULE)
    stock = getattr(module, STOCK, {}).get(full_name)
    return None if stock is None else Hook(full_name, stock, getattr(module, INSTEAD))
