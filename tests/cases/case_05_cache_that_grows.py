"""A key-value cache that grows by concatenation and is fed back on every step.

Seen: a crash on the second step. Expected: every step of every sequence equals eager. A length is replayed from the
third time it comes up, so three sequences are decoded.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field

SEQUENCES, STEPS = 4, 5


class Attend(torch.nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.project = torch.nn.Linear(width, width)

    def forward(self, token: torch.Tensor, cache: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        entry = self.project(token)
        cache = entry if cache is None else torch.cat([cache, entry], dim=1)
        weights = torch.softmax(token @ cache.transpose(1, 2), dim=-1)
        return weights @ cache, cache


def check(field: Field) -> None:
    model = Attend().to(field.device).eval()
    call = field.compiled(model)
    with torch.no_grad():
        for sequence in range(SEQUENCES):
            cache = wanted_cache = None
            for step in range(STEPS):
                torch.compiler.cudagraph_mark_step_begin()
                token, where = field.randn(2, 1, 32), f"sequence {sequence}, step {step}"
                wanted, wanted_cache = model(token, wanted_cache)
                got, cache = call(token, cache)
                field.same((got, cache), (wanted, wanted_cache), where)
    field.expect_replays(STEPS)
