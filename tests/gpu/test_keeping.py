"""Activations that serve the next step again, on a GPU: never while a stream, a graph or a person still has them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from pygraph_inductor import config
from tests.gpu.comparing import DEVICE, Counting, agree, compiled

STEPS = 8


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * torch.sigmoid(x) + torch.nn.functional.layer_norm(x, (64,))
        return x


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE)


def gradients(model: torch.nn.Module) -> list[Any]:
    return [parameter.grad for parameter in model.parameters()]


def kept(counting: Counting) -> int:
    return sum(one.bytes_kept for function in counting.functions for one in function.recordings)


@pytest.mark.parametrize("pattern", ["usual", "two at once", "retained", "side streams", "hooks", "late"])
def test_training_agrees_with_the_plain_call(pattern: str) -> None:
    model = Layers().to(DEVICE)
    call = compiled(model)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    turn = iter(range(1000))

    def step(x: torch.Tensor, other: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        number = next(turn)
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t)
        stream = streams[number % 2]
        with contextlib.ExitStack() as around:
            if pattern == "side streams":
                stream.wait_stream(torch.cuda.current_stream())
                around.enter_context(torch.cuda.stream(stream))
            if pattern == "hooks" and number % 2:
                around.enter_context(hooks)
            loss = call(x).square().mean()
            if pattern in ("two at once", "late"):
                second = call(other).square().mean()
                for one in (loss, second) if pattern == "late" else (second, loss):
                    one.backward()
            else:
                loss.backward(retain_graph=pattern == "retained")
                if pattern == "retained":
                    loss.backward()
        if pattern == "side streams":
            torch.cuda.current_stream().wait_stream(stream)
        return [loss.detach(), *gradients(model)]

    with torch._functorch.config.patch(donated_buffer=pattern != "retained"):
        agreement = agree(step, lambda _: (randn(16, 64), randn(16, 64)), calls=STEPS, replays=STEPS)
    assert kept(agreement.counting), agreement.counting


def test_another_stream_never_finds_an_activation_overwritten() -> None:
    """The backward of one step is still running on its stream when the next forward starts on another one."""
    model = Layers().to(DEVICE)
    call = compiled(model)
    counting = Counting()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    x = randn(16, 64)
    model.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    wanted = [one.clone() for one in gradients(model)]
    torch.cuda.synchronize()
    found = []
    for number in range(3 * STEPS):
        with torch.cuda.stream(streams[number % 2]):
            model.zero_grad(set_to_none=True)
            loss = call(x).square().mean()
            torch.cuda._sleep(200_000)  # the host runs ahead of the backward
            loss.backward()
            found.append([one.clone() for one in gradients(model)])
    torch.cuda.synchronize()
    for number, one in enumerate(found):
        for got, want in zip(one, wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4, msg=lambda text, n=number: f"step {n}: {text}")
    assert kept(counting), counting


def updates_per_step(steps: int = 6) -> tuple[float, int]:
    """Nodes that a forward is told per step, while the allocator has other things to do; bytes kept."""
    model = Layers().to(DEVICE)
    call = compiled(model)
    counting = Counting()
    x, junk = randn(16, 64), []

    def step() -> None:
        model.zero_grad(set_to_none=True)
        call(x).square().mean().backward()
        junk.extend(torch.empty(16 * 64 * (1 + n % 3), device=DEVICE) for n in range(40))

    for _ in range(6):
        step()
        torch.cuda.synchronize()
    before = forward_updates(counting)
    for _ in range(steps):
        step()
    return (forward_updates(counting) - before) / steps, kept(counting)


def forward_updates(counting: Counting) -> int:
    return sum(
        one.updates for function in counting.functions if function.kind == "forward" for one in function.recordings
    )


def test_nodes_know_where_activations_are() -> None:
    with config.patch(selection=False):
        told, bytes_kept = updates_per_step()
        torch._dynamo.reset()
        with config.patch(max_kept_bytes=0):
            told_without, nothing = updates_per_step()
    assert bytes_kept and not nothing
    assert told < told_without / 2, (told, told_without)
