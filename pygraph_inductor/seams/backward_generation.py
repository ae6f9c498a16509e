"""Replaces torch._inductor.output_code.maybe_handle_backward_generation.

Stock tells its tree manager about a backward that runs without a graph, and insists that there is a manager. With
borrowed addresses there is no tree whose state could be wrong, and none is made.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from pygraph_inductor.seams.compilation import current


def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    """Our function around the stock one."""

    @functools.wraps(original)
    def maybe_handle_backward_generation(compiled_graph: Any, boxed_forward_device_index: Any) -> None:
        compilation = current()
        if not compilation.borrowed or compilation.declined is not None or _has_tree(boxed_forward_device_index):
            original(compiled_graph, boxed_forward_device_index)

    return maybe_handle_backward_generation


def _has_tree(boxed_forward_device_index: Any) -> bool:
    """Whether the forward ran under stock's tree manager: made by somebody who uses both."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    device = getattr(boxed_forward_device_index, "value", None)
    if trees is None or device is None:
        return False
    return trees.get_manager(device, create_if_none_exists=False) is not None
