"""Models forward and backward, decoding into a cache, and optimizers: replays give what the plain calls give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.gpu import models
from tests.gpu.comparing import CALLS, DEVICE, agree, compiled

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in models.SLOW else []) for name in models.TRAINING]
)
def test_training(name: str) -> None:
    torch.manual_seed(0)
    work = models.TRAINING[name]()
    call = compiled(work.call)
    buffers = list(work.model.buffers())

    def step(*batch: Any) -> list[Any]:
        work.model.zero_grad(set_to_none=True)
        loss = call(*batch)
        loss.backward()
        return [loss.detach(), *(p.grad for p in work.model.parameters())]

    # T5's attention has its seed on the host until its forward is a graph: the backward is recorded a call later.
    late = 1 if name == "t5" else 0
    with torch._dynamo.config.patch(work.settings):
        agree(step, lambda _: work.inputs(), state=buffers, replays=2 * (CALLS - 2) - late)


@pytest.mark.parametrize("name", ["bert", "resnet", "unet"])
def test_inference(name: str) -> None:
    torch.manual_seed(0)
    work = models.TRAINING[name]()
    work.model.eval()
    with torch.no_grad():
        agree(compiled(work.call), lambda _: work.inputs(), replays=CALLS - 2)


def test_decoding_into_a_cache_that_is_written_in_place() -> None:
    """One cache for the whole sequence; then a sequence with a cache somewhere else."""
    torch.manual_seed(0)
    model = models.Decoder().to(DEVICE).eval()
    call = compiled(model)
    length = 7

    def decode(first: torch.Tensor, cache: torch.Tensor) -> list[torch.Tensor]:
        word, results = first, []
        for place in range(length):
            results.append(call(word, torch.tensor([place], device=DEVICE), cache))
            word = results[-1].argmax(-1)
        return results

    make = lambda _: (models.tokens(100, 3), torch.zeros(2, 2, 3, 4, 32, 16, device=DEVICE))
    with torch.no_grad():
        agree(decode, make, calls=4, replays=4 * length - 2)


# Optimizers


def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, capturable=DEVICE == "cuda")


def adam_with_lr_tensor(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    lr = torch.tensor(0.01, device=DEVICE)
    return torch.optim.AdamW(parameters, lr=lr, capturable=DEVICE == "cuda", weight_decay=0.1)


def sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


@pytest.mark.parametrize("make_optimizer", [adam, adam_with_lr_tensor, sgd], ids=lambda one: one.__name__)
def test_optimizer_step(make_optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    """Parameters and moments are written in place, gradients are somewhere else on every step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4))).to(DEVICE)
    parameters = list(model.parameters())
    optimizer = make_optimizer(parameters)

    def gradients(_: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn_like(p) for p in parameters)

    def give(fresh: tuple[torch.Tensor, ...]) -> None:
        for parameter, gradient in zip(parameters, fresh, strict=True):
            parameter.grad = gradient

    give(gradients(0))
    optimizer.step()  # moments exist from here on
    moments = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    call = compiled(lambda: optimizer.step())

    def step(*fresh: torch.Tensor) -> None:
        give(fresh)
        call()

    agree(step, gradients, state=[*(p.data for p in parameters), *moments], replays=CALLS - 2)


def test_whole_training_loop_learns_as_the_plain_one() -> None:
    """Forward, backward and optimizer step compiled, parameters updated in place, several steps without resetting."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    call, update = compiled(model), compiled(lambda: optimizer.step())

    def step(*batches: torch.Tensor) -> list[Any]:
        losses = []
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            loss = call(batch).square().mean()
            loss.backward()
            update()
            losses.append(loss.detach())
        return losses

    make = lambda _: tuple(torch.randn(8, 16, device=DEVICE) for _ in range(4))
    agree(step, make, state=[p.data for p in model.parameters()], calls=4, replays=30)
