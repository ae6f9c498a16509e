"""The comparison that the GPU tests stand on finds what a wrong replay would do; no compiler and no GPU is involved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.gpu import comparing
from tests.gpu.comparing import agree


def make(_: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(16),)


def either(plain: Callable[..., Any], replayed: Callable[..., Any]) -> Callable[..., Any]:
    """A step that does one thing where the plain call is asked for and another where a graph may be used."""
    return lambda *args: (plain if comparing._plain else replayed)(*args)


def disagree(plain: Callable[..., Any], replayed: Callable[..., Any], match: str, **options: Any) -> None:
    with pytest.raises(AssertionError, match=match):
        agree(either(plain, replayed), make, replays=0, **options)


def test_equal_results_agree():
    agree(either(lambda x: (x * 2, x.sum()), lambda x: (x + x, x.sum())), make, replays=0)


def test_other_value_is_found():
    disagree(lambda x: x * 2, lambda x: x * 2 + 1e-6, "result 0 differs")


def test_other_whole_number_is_found():
    disagree(lambda x: (x > 0).long(), lambda x: (x >= -1).long(), "result 0 differs")


def test_noise_of_the_plain_call_is_allowed_and_no_more():
    noisy = lambda x: x + 1e-6 * torch.rand(16, generator=generator)
    generator = torch.Generator().manual_seed(1)
    agree(either(noisy, noisy), make, replays=0)
    disagree(noisy, lambda x: x + 1e-4, "plain calls by")


def test_other_strides_are_found():
    disagree(lambda x: x.view(4, 4).t().clone(), lambda x: x.view(4, 4).t().contiguous(), "strides")


def test_copy_in_place_of_the_input_itself_is_found():
    disagree(lambda x: x, lambda x: x.clone(), "identity")


def test_memory_shared_between_results_is_found():
    def shared(x: torch.Tensor) -> Any:
        y = torch.cat([x, x])
        return y[:16], y[16:]

    def apart(x: torch.Tensor) -> Any:
        return shared(x)[0], shared(x)[1]

    disagree(shared, apart, "identity or sharing")


def test_argument_left_unchanged_is_found():
    disagree(lambda x: x.add_(1).sum(), lambda x: (x + 1).sum(), "argument 0 afterwards differs")


def test_version_counter_left_unchanged_is_found():
    def hidden(x: torch.Tensor) -> torch.Tensor:
        x.data.add_(1)
        return x.sum()

    disagree(lambda x: x.add_(1).sum(), hidden, "version counters")


def test_state_is_put_back_before_each_run_and_compared():
    total = torch.zeros(())
    agree(lambda x: total.add_(x.sum()).clone(), make, state=[total], replays=0)
    disagree(lambda x: total.add_(x.sum()).clone(), lambda x: total + x.sum(), "state 0 afterwards", state=[total])


def test_result_that_a_later_call_overwrites_is_found():
    buffer = torch.empty(16)
    disagree(lambda x: x * 2, lambda x: torch.mul(x, 2, out=buffer), "changed in a later call")


def test_too_few_replays_are_found():
    with pytest.raises(AssertionError, match="0 replays, expected 3"):
        agree(lambda x: x * 2, make, replays=3)
