"""What a rewrite did to a graph, or why it did nothing: plain data for the report."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx


@dataclass(frozen=True)
class Outcome:
    """One rewrite at one place. `node` is where; it carries the user's line."""

    rewrite: str
    applied: bool
    what: str
    stack_trace: str | None = None

    @staticmethod
    def at(node: fx.Node, rewrite: str, applied: bool, what: str) -> Outcome:
        return Outcome(rewrite, applied, what, node.meta.get("stack_trace"))
