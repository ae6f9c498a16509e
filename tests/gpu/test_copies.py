"""No bytes are copied for a replay: device-to-device traffic, seen from outside by torch's profiler.

Copies of the generated code itself (a `clone` in the model) are in the plain call too, so they cancel out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.gpu.comparing import DEVICE, Counting, compiled, plainly

CALLS = 4
COPY_KERNELS = ("direct_copy", "copy_kernel", "CopyFunctor", "copy_device_to_device", "memcpy")


@dataclass(frozen=True)
class Traffic:
    """Copies within the device, per call."""

    nodes: float
    nbytes: float
    kernels: float
    names: tuple[str, ...]


def traffic(step: Callable[..., Any], batches: list[tuple], folder: Path) -> Traffic:
    """Profile one step per batch."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as measured:
        for batch in batches:
            step(*batch)
        torch.cuda.synchronize()
    trace = folder / "trace.json"
    measured.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    moves = [e for e in events if e.get("cat") == "gpu_memcpy" and "DtoD" in e["name"]]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert kernels, "the profiler saw no kernel at all"
    copies = [e["name"] for e in kernels if any(word in e["name"] for word in COPY_KERNELS)]
    return Traffic(
        len(moves) / len(batches),
        sum(e["args"]["bytes"] for e in moves) / len(batches),
        len(copies) / len(batches),
        tuple(sorted(set(copies))),
    )


def compared(
    step: Callable[..., Any], make: Callable[[], tuple], folder: Path, replays: int
) -> tuple[Traffic, Traffic]:
    """What replays copy, and what plain calls do."""
    for _ in range(4):
        step(*make())
    counting = Counting()
    with plainly():
        step(*make())
        plain = traffic(step, [make() for _ in range(CALLS)], folder)
    replayed = traffic(step, [make() for _ in range(CALLS)], folder)
    counting.expect(replays, every=False)
    return replayed, plain


def expect_no_extra(step: Callable[..., Any], make: Callable[[], tuple], folder: Path, replays: int) -> None:
    """A replay copies exactly what the plain call copies."""
    replayed, plain = compared(step, make, folder, replays)
    assert replayed == plain, f"replay {replayed}, plain call {plain}"


@pytest.fixture(scope="module", autouse=True)
def profiler_is_warm() -> None:
    """The first profile of a process sets CUPTI up and may miss events."""
    if DEVICE == "cuda":
        with profile(activities=[ProfilerActivity.CUDA]):
            torch.ones(1, device=DEVICE).add_(1)
            torch.cuda.synchronize()


def test_inference_copies_nothing(tmp_path: Path) -> None:
    weight = torch.randn(256, 256, device=DEVICE)
    call = compiled(lambda x, y: ((x @ weight).relu() + y, x.sum(-1)))
    with torch.no_grad():
        make = lambda: (torch.randn(128, 256, device=DEVICE), torch.randn(128, 256, device=DEVICE))
        expect_no_extra(call, make, tmp_path, CALLS)


def test_many_moving_inputs_copy_nothing(tmp_path: Path) -> None:
    def function(*tensors: torch.Tensor) -> torch.Tensor:
        total = tensors[0]
        for tensor in tensors[1:]:
            total = torch.tanh(total + tensor)
        return total

    call = compiled(function)
    with torch.no_grad():
        make = lambda: tuple(torch.randn(64, 1024, device=DEVICE) for _ in range(32))
        expect_no_extra(call, make, tmp_path, CALLS)


def test_changed_input_copies_nothing(tmp_path: Path) -> None:
    def function(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[:, 3].copy_(x)
        return cache.sum(1) @ x.t()

    call = compiled(function)
    with torch.no_grad():
        make = lambda: (torch.randn(64, 8, 64, device=DEVICE), torch.randn(64, 64, device=DEVICE))
        expect_no_extra(call, make, tmp_path, CALLS)


def test_training_step_copies_nothing(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 16)).to(DEVICE)
    call = compiled(model)

    def step(x: torch.Tensor) -> None:
        model.zero_grad(set_to_none=True)
        call(x).square().mean().backward()

    expect_no_extra(step, lambda: (torch.randn(64, 128, device=DEVICE),), tmp_path, 2 * CALLS)


class Layer(torch.nn.Module):
    """Attention and convolution allocate their outputs themselves, of a size that intermediates have, too."""

    def __init__(self, width: int, convolves: bool) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(width, 3 * width)
        self.leave = torch.nn.Linear(width, width)
        self.slide = torch.nn.Conv1d(width, width, 3, padding=1) if convolves else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(torch.tanh(x)).view(*x.shape[:2], 3, -1, 64).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.leave(seen.transpose(1, 2).reshape(x.shape))
        return x + self.slide(torch.tanh(x).transpose(1, 2)).transpose(1, 2) if self.slide is not None else x


def layers(count: int, convolve: bool) -> tuple[torch.nn.Module, Callable[[], tuple]]:
    model = torch.nn.Sequential(*(Layer(512, convolve) for _ in range(count))).to(DEVICE, torch.bfloat16)
    return model, lambda: (torch.randn(16, 128, 512, device=DEVICE, dtype=torch.bfloat16),)


def training(model: torch.nn.Module) -> Callable[..., None]:
    call = compiled(model)

    def step(x: torch.Tensor) -> None:
        model.zero_grad(set_to_none=True)
        call(x).float().square().mean().backward()

    return step


def test_operators_that_allocate_where_others_were_copy_nothing_in_inference(tmp_path: Path) -> None:
    """Outputs over a megabyte, for which the allocator takes blocks that intermediates have left."""
    model, make = layers(3, convolve=True)
    with torch.no_grad():
        expect_no_extra(compiled(model), make, tmp_path, CALLS)


def test_operators_that_allocate_where_others_were_copy_nothing_in_training(tmp_path: Path) -> None:
    model, make = layers(3, convolve=False)
    expect_no_extra(training(model), make, tmp_path, 2 * CALLS)


def test_a_convolutions_backward_copies_a_gradient_at_most(tmp_path: Path) -> None:
    """The one that lies where the workspace of the other one lay: whose the addresses are cannot be told."""
    model, make = layers(3, convolve=True)
    replayed, plain = compared(training(model), make, tmp_path, 2 * CALLS)
    gradient = 2 * 512 * 512 * 3
    assert replayed.kernels == plain.kernels
    assert replayed.nodes <= plain.nodes + 3 and replayed.nbytes <= plain.nbytes + 3 * gradient, (replayed, plain)


def test_moved_parameters_copy_nothing(tmp_path: Path) -> None:
    model = torch.nn.Linear(128, 128).to(DEVICE).eval()
    call = compiled(model)

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        model.weight.data = weight
        return call(x)

    with torch.no_grad():
        make = lambda: (torch.randn(64, 128, device=DEVICE), torch.randn(128, 128, device=DEVICE))
        expect_no_extra(step, make, tmp_path, CALLS)
