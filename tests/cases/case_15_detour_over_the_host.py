"""The middle of a function computes on the host: device, host, device.

Seen: no graphs, or an error. Expected: graphs for the device's parts, and the host's part runs on every call.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field


def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    hidden = 1 + torch.tanh(x @ weight)
    peaks = 1 + 0.5 * hidden.amax(dim=0).cpu()
    return x + (hidden / peaks.to(x.device)) @ weight


def check(field: Field) -> None:
    call = field.compiled(normalized)
    weight = field.randn(32, 32)
    for number in range(6):
        x = (number + 1) * field.randn(32, 32)
        field.same(call(x, weight), normalized(x, weight), f"call {number}")
    field.expect_replays(4)
