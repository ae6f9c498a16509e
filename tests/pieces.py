"""A function in many pieces, for tests with and without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def broken_up(count: int) -> Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor]:
    """A function of a tensor and `count` weights that Dynamo has to break into as many graphs.

    Written out line by line: Dynamo does not compile loops with breaks in them.
    """
    lines = [f"    x = torch.tanh(x @ weights[{number}]) + x" for number in range(count)]
    text = "def function(x, weights):\n" + "\n    torch._dynamo.graph_break()\n".join(lines) + "\n    return x\n"
    names: dict[str, Callable[..., torch.Tensor]] = {}
    exec(text, {"torch": torch}, names)
    return names["function"]
