"""A model runs one branch on a side stream and waits for it (`wait_stream`).

Seen: the capture broke. Expected: the right values and no error; in a graph, in parts of one, or with a reason.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field


class Branches(torch.nn.Module):
    def __init__(self, side: torch.cuda.Stream) -> None:
        super().__init__()
        self.side = side
        self.left, self.right = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        here = torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            left = torch.relu(self.left(x))
        right = torch.tanh(self.right(x))
        here.wait_stream(self.side)
        return left + right


def check(field: Field) -> None:
    model = Branches(torch.cuda.Stream()).to(field.device).eval()
    call = field.compiled(model)
    with torch.no_grad():
        for number in range(6):
            x = field.randn(8, 32)
            got = call(x)
            torch.cuda.synchronize()
            field.same(got, torch.relu(model.left(x)) + torch.tanh(model.right(x)), f"call {number}")
    field.expect_replays_or_a_reason("stream", "event", "wait", "record")
