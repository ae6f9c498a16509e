"""Inputs that are given other memory by the function: what the caller sees is what the plain call shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.gpu.comparing import DEVICE, agree, compiled
from tests.storages import BETWEEN_GRAPHS


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def squares(_: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 16, device=DEVICE), torch.randn(16, 16, device=DEVICE)


@pytest.mark.parametrize("function", BETWEEN_GRAPHS)
def test_set_and_resize_are_left_to_the_program_between_graphs(function: Callable[..., torch.Tensor]) -> None:
    """Dynamo leaves both outside of what it compiles."""
    agree(compiled(function), squares, replays=3)


def test_input_with_other_data_runs_plainly_and_says_why() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.data = y * 2
        return x + 1

    counting = agree(compiled(function), squares, replays=0, every=False).counting
    assert counting.replays == 0, counting
    assert any("other storage (set_ or resize_)" in reason for reason in counting.reasons), counting
