"""The function forks work to another stream and joins it with events.

Seen: the capture failed. Expected: the right values and no error; in a graph, in parts of one, or with a reason.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field


def check(field: Field) -> None:
    side, forked, joined = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        forked.record()
        with torch.cuda.stream(side):
            forked.wait()
            doubled = 2 * x
            joined.record()
        joined.wait()
        return y + doubled

    call = field.compiled(function)
    for number in range(6):
        x, y = field.randn(256, 256), field.randn(256, 256)
        got = call(x, y)
        torch.cuda.synchronize()
        field.same(got, 2 * x + y, f"call {number}")
    field.expect_replays_or_a_reason("stream", "event", "wait", "record")
