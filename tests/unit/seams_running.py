"""What runs behind a seam now: on a patched torch the function stays the same, and its hook decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygraph_inductor.seams import hooks, table


def running(row: table.Row) -> Callable[..., Any]:
    """The function that a call ends up in: stock or ours."""
    hook = hooks.of(row.full_name)
    return row.found() if hook is None else hook.instead.get(hook.name, hook.stock)


def stock_runs() -> bool:
    """Whether every seam runs torch's own function."""
    functions = [running(row) for row in table.ROWS if row.replacement]
    return all(
        function.__code__.co_filename.endswith(f"{function.__module__.replace('.', '/')}.py")
        and function.__module__.startswith("torch.")
        for function in functions
    )
