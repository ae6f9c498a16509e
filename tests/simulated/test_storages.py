"""Inputs that are given other memory by the function: what the caller sees is what the plain program shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.simulated.two_ways import check, compiled
from tests.storages import BETWEEN_GRAPHS

Inputs = list[torch.Tensor]


def program(function: Callable[..., torch.Tensor], make: Callable[[], Inputs]):
    """`function` on fresh inputs, showing its result, the inputs, and which of them are in one memory afterwards."""

    def prepare():
        call = compiled(function)

        def step(number: int):
            inputs = make()
            with torch.no_grad():
                result = call(*inputs)
            shown = [result, *inputs]
            memories = [one.untyped_storage().data_ptr() for one in shown]
            return [*shown, *(memories.index(memory) for memory in memories), *(one._version for one in inputs)]

        return step

    return prepare


def square() -> torch.Tensor:
    return torch.randn(4, 4)


@pytest.mark.parametrize("function", BETWEEN_GRAPHS)
def test_set_and_resize_are_left_to_the_program_between_graphs(function):
    """Dynamo leaves both outside of what it compiles."""
    facts = check(program(function, lambda: [square(), square()]), functions=None)
    assert facts and all(one.verdict == "replayed" for one in facts), [(one.verdict, one.reasons) for one in facts]


def test_input_with_other_data_runs_plainly_and_says_why():
    def function(x, y):
        x.data = y * 2
        return x + 1

    [facts] = check(program(function, lambda: [square(), square()]), functions=None)
    assert facts.replays == 0
    assert facts.reasons == ["it gives input 1 other storage (set_ or resize_)"], facts.reasons


def test_storage_resized_within_a_function_runs_plainly_and_says_why():
    def function(x, y):
        x.untyped_storage().resize_(64)
        x.copy_(y)
        return x + 1

    def make() -> Inputs:
        emptied = square()
        emptied.untyped_storage().resize_(0)
        return [emptied, square()]

    facts = check(program(function, make), functions=None)
    assert facts and not any(one.replays for one in facts), [(one.verdict, one.replays) for one in facts]
    assert all(one.reasons for one in facts), facts
