"""What a second reader tried in order to break recording and replay, kept as tests."""

from __future__ import annotations

import pytest
import torch

from tests.simulated.hand_written import HandWritten


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request):
    return request.param


@pytest.mark.parametrize("lazy", [torch._neg_view, lambda x: torch._efficientzerotensor(x.size())], ids=["neg", "zero"])
def test_tensors_that_mean_something_else_than_their_memory_are_not_replayed(native, lazy):
    """Aligned and laid out as when recorded: nothing but its dispatch keys tells such a tensor apart."""
    function = HandWritten(lambda names, x: (x * 2,), native=native)
    for _ in range(3):
        function(torch.randn(64))
    x = lazy(torch.randn(64))
    assert torch.equal(function(x)[0], x * 2)
    assert function.log.replays == 1
