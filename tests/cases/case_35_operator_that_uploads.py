"""An operator takes a CPU tensor and returns a tensor on the device.

Seen: captured, so that every replay uploaded the first content, or the memory pool complained. Expected: the content
of this call. A whole CPU tensor is an input that no graph can be given, so a reason will do.
"""

from __future__ import annotations

import torch

from tests.cases.field import Field


@torch.library.custom_op("pygraph_tests_field::upload", mutates_args=())
def upload(host: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return 2 * host.to(like.device)


@upload.register_fake
def _(host: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(host, device=like.device)


def function(host: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.ops.pygraph_tests_field.upload(host, g)) + g @ g


def check(field: Field) -> None:
    call = field.compiled(function)
    for number in range(6):
        host, g = torch.full((16, 16), float(number)), field.randn(16, 16)
        field.same(call(host, g), function(host, g), f"call {number}")
    field.expect_replays_or_a_reason("cpu", "host")
