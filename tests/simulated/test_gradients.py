"""Gradients of convolutions, which Inductor computes channels-last on the CPU, too: autograd takes them over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pygraph_inductor import config
from tests.simulated.two_ways import check, compiled


class Training:
    """Steps of a small network. `copied`: parameters whose gradients autograd did not take over but copied."""

    def __init__(self, half: bool) -> None:
        self.half = half
        self.copied: list[set[str]] = []

    def __call__(self) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.Conv2d(8, 8, 1, bias=False),
            torch.nn.ReLU(),
            torch.nn.Conv2d(8, 8, 3),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(8, 4),
        )
        call = compiled(model)
        came: dict[str, int] = {}
        for name, parameter in model.named_parameters():
            parameter.register_hook(lambda gradient, name=name: came.__setitem__(name, gradient.data_ptr()))

        def step(number: int) -> list[torch.Tensor]:
            model.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
                loss = call(torch.randn(2, 3, 8, 8)).float().square().mean()
            loss.backward()
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
            self.copied.append({name for name, one in gradients.items() if one.data_ptr() != came[name]})
            return [loss, *gradients.values()]

        return step


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_gradients_are_the_same_and_none_is_copied(half):
    steps = {}
    for on in (False, True):
        with config.patch(transform_gradients=on):
            steps[on] = Training(half)
            check(steps[on], functions=2)
    assert all(one == {"0.weight", "5.weight"} for one in steps[False].copied)
    plain, recorded = steps[True].copied[:6], steps[True].copied[6:]
    assert all(plain) and not any(recorded)  # without a graph of ours, Inductor lays them out as ever
