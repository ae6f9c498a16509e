"""Which outputs of a compiled graph the user sees, as opposed to activations saved for the backward.

AOTAutograd lets a forward graph return what the user gets first and what it saves behind that.
"""

from __future__ import annotations

from typing import Any

from torch._guards import TracingContext


def forward_returns() -> int | None:
    """How many outputs the forward of the function being compiled returns before the saved ones; None: not known.

    Part of our cache key: the same graph may stand for a function that returns more of it and saves less.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return None
    return metadata.num_forward + len(metadata.tokens)


def visible_count(graph: Any, outputs: int) -> int:
    """How many of the first outputs of `graph` (a GraphLowering) are visible."""
    if graph.is_inference or graph.is_backward:
        return outputs
    returns = forward_returns()
    return outputs if returns is None else min(returns, outputs)
