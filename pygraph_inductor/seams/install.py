"""Puts our functions in place of torch's and back: all rows of the table, or none.

Importing the package comes here. Inductor is not imported for it; if it is not there yet, the check and the
replacement happen the moment it has been, before anybody can call it. A torch that has our patches is left as it is:
ours is registered with its hooks.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from pygraph_inductor import config
from pygraph_inductor.seams import declines, hooks
from pygraph_inductor.seams.table import ENTRY, MINORS, ROWS, Row, differences, is_being_imported, minor_of

logger = logging.getLogger("pygraph_inductor")


@dataclass(frozen=True)
class _Replaced:
    """A name that carries our function now."""

    row: Row
    owner: Any
    attribute: str
    original: Any
    ours: Any

    def put_back(self) -> None:
        # Somebody may have wrapped ours since. Then it stays inside their function and calls the stock one.
        if self.owner.__dict__.get(self.attribute) is self.ours:
            setattr(self.owner, self.attribute, self.original)


@dataclass(frozen=True)
class _Hooked:
    """A function of a patched torch that runs ours now."""

    row: Row
    hook: hooks.Hook
    ours: Any

    def put_back(self) -> None:
        self.hook.give_back(self.ours)


_lock = threading.RLock()
_replaced: list[_Replaced | _Hooked] = []
_waiting: _Finder | None = None


def install() -> bool:
    """Install into torch, now or as soon as Inductor is imported. Says whether that is so."""
    global _waiting
    with _lock:
        if _replaced or (_waiting is not None and not _is_imported(ENTRY)):
            return True
        if (reason := declines.of_build()) is not None:
            declines.note(reason)
        if minor_of(torch.__version__) not in MINORS and not config.force:
            _refuse(f"torch {torch.__version__} is not a version this package knows ({', '.join(MINORS)})")
            return False
        if _is_imported(ENTRY):
            return _apply()
        _waiting = _Finder()
        sys.meta_path.insert(0, _waiting)
    return True


def remove() -> None:
    """Put everything back. Functions compiled before keep working as they are."""
    with _lock:
        if _waiting is not None:
            _stop_waiting()
        if not _replaced:
            return
        _put_back()
        from pygraph_inductor.codegen import registration

        registration.match(frozenset())


def is_installed() -> bool:
    """Whether our functions are in place, or will be when Inductor is imported."""
    return bool(_replaced) or _waiting is not None


def is_applied() -> bool:
    """Whether our functions are in place."""
    return bool(_replaced)


def facts() -> dict[str, Any]:
    """What the report says about the installation."""
    from pygraph_inductor.codegen import registration

    answer: dict[str, Any] = {"enabled": is_installed(), "torch": str(torch.__version__)}
    if _waiting is not None:
        answer["seams"] = "waiting for torch._inductor to be imported"
    if _replaced:
        answer["seams"] = ", ".join(replaced.row.full_name for replaced in _replaced)
        answer["installed by"] = _way()
        answer["code generation"] = ", ".join(registration.registered()) or "from the first compilation on"
    return answer


def _way() -> str:
    """Which of the two ways in was taken, and where a patched torch lacks a hook."""
    without = [replaced.row.full_name for replaced in _replaced if isinstance(replaced, _Replaced)]
    if len(without) == len(_replaced):
        return "replacing functions of torch in this process"
    if not without:
        return "hooks of a patched torch"
    return f"hooks of a patched torch, and replacing what its patches do not know: {', '.join(without)}"


def _is_imported(name: str) -> bool:
    return name in sys.modules and not is_being_imported(name)


def _stop_waiting() -> None:
    global _waiting
    if _waiting in sys.meta_path:
        sys.meta_path.remove(_waiting)
    _waiting = None


def _apply() -> bool:
    """Check the whole table, then replace. With `config.force`, what is there is replaced whatever it looks like."""
    if _waiting is not None:
        _stop_waiting()
    found = list(differences(torch.__version__))
    if found and not config.force:
        _refuse("; ".join(map(str, found)))
        return False
    if found:
        logger.warning("torch %s: installed by force although %s.", torch.__version__, "; ".join(map(str, found)))
    gone = {difference.row.full_name for difference in found if difference.found is None}
    for row in ROWS:
        if row.replacement is not None and row.full_name not in gone:
            _replaced.append(_replace(row))
    return bool(_replaced)


def _replace(row: Row) -> _Replaced | _Hooked:
    module, _, function = str(row.replacement).partition(":")
    make: Callable[[Any], Any] = getattr(importlib.import_module(module), function)
    if (hook := hooks.of(row.full_name)) is not None:
        ours = make(hook.stock)
        hook.take_over(ours)
        return _Hooked(row, hook, ours)
    owner, attribute = row.owner_and_attribute()
    original = owner.__dict__[attribute]
    ours = _switchable(original, make(original))
    setattr(owner, attribute, ours)
    return _Replaced(row, owner, attribute, original, ours)


def _put_back() -> None:
    for replaced in reversed(_replaced):
        replaced.put_back()
    _replaced.clear()


def _switchable(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Ours while we are installed, else the stock function: callers may have kept a reference."""

    @functools.wraps(original)
    def seam(*args: Any, **kwargs: Any) -> Any:
        return (ours if _replaced else original)(*args, **kwargs)

    return seam


def _refuse(reason: str) -> None:
    """The one warning of a torch that is left untouched."""
    declines.note(
        f"torch {torch.__version__} is left untouched: {reason} (pygraph_inductor.config.force or PYGRAPH_FORCE=1 "
        "installs all the same)"
    )


class _Finder(importlib.abc.MetaPathFinder):
    """Waits on `sys.meta_path` for Inductor's entry to be imported, and installs right after."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != ENTRY:
            return None
        spec = self._found_by_others(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._install_after(spec.loader)
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None

    def _install_after(self, loader: Any) -> None:
        """Only this module's loader is touched, and only until it has loaded."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._imported()

        loader.exec_module = exec_module

    def _imported(self) -> None:
        with _lock:
            if _waiting is not self:  # disabled meanwhile
                return
            _stop_waiting()
            try:
                _apply()
            except Exception as error:  # importing torch must not fail because of us
                _put_back()
                _refuse(f"{type(error).__name__}: {error}")


def _fresh_lock() -> None:
    global _lock
    _lock = threading.RLock()


# Another thread may hold the lock at the moment of a fork; in the child nobody would ever release it.
os.register_at_fork(after_in_child=_fresh_lock)
