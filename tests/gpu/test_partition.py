"""Functions that must be cut, on a GPU: as few pieces as there can be, and the results of eager from them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch._dynamo import config as dynamo_config

import pygraph_inductor
from pygraph_inductor import config
from tests.gpu.comparing import CALLS, Counting, agree, compiled

DEVICE = "cuda"


def rand(*size: int) -> torch.Tensor:
    return torch.rand(size, device=DEVICE)


def close(got: Any, wanted: Any, what: str) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, msg=lambda text: f"{what}: {text}")


def sorted_rows(z):
    order = z.detach().sum(0).cpu().sort()[1]  # the CPU sorts
    return z[order.to(z.device)]


def three_chains(x, y, z):
    results = []
    for one in (x, y, z):
        for _ in range(2):
            one = sorted_rows(one) @ one / 16
        results.append(one)
    return tuple(results)


@pytest.fixture(autouse=True)
def in_fewest_pieces():
    with config.patch(transform_order=True):
        yield


@pytest.mark.parametrize("ordered", [True, False])
def test_independent_chains_share_their_pieces(ordered):
    counting = Counting()
    with config.patch(transform_order=ordered):
        call = compiled(three_chains)
        for number in range(CALLS):
            inputs = rand(16, 16), rand(16, 16), rand(16, 16)
            close(call(*inputs), three_chains(*inputs), f"call {number}")
    [graph] = pygraph_inductor.report().graphs
    assert graph.pieces >= 3 and (graph.pieces == 3 or not ordered), graph
    counting.expect(replays=graph.pieces * (CALLS - 2))


def test_training_through_two_pieces():
    """Parameters are used in both of them, and returned for the backward."""
    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(16, 16)
            self.second = torch.nn.Linear(16, 16)

        def forward(self, x):
            y = self.second(self.first(x).relu())
            return self.first(self.second(sorted_rows(y.t()).t())).square().mean()

    eager = Model().to(DEVICE)
    model = copy.deepcopy(eager)
    call = compiled(model)
    counting = Counting()
    for number in range(CALLS):
        x = rand(16, 16)
        for one in (eager, model):
            one.zero_grad(set_to_none=True)
        wanted, got = eager(x), call(x)
        wanted.backward()
        got.backward()
        close(got, wanted, f"loss of call {number}")
        for one, other in zip(model.parameters(), eager.parameters(), strict=True):
            close(one.grad, other.grad, f"gradient of call {number}")
    forward = pygraph_inductor.report().graphs[0]
    assert forward.pieces == 2, forward
    counting.expect(replays=3 * (CALLS - 2))


def test_random_numbers_and_writes_on_both_sides_of_a_cut():
    """Held against the plain call of the same code: random state, versions, and who shares memory with whom."""

    def step(x, cache):
        y = torch.nn.functional.dropout(x, 0.3) @ x
        cache.add_(y)
        z = sorted_rows(y)
        cache[2:4].mul_(2)
        return torch.nn.functional.dropout(z, 0.3) + cache, cache, cache[1:3], x, y.t()

    agree(compiled(step), lambda number: (rand(16, 16), rand(16, 16)), replays=2 * (CALLS - 2))


def experts(x, gate, weights):
    chosen = (x @ gate).argmax(-1)
    total = torch.zeros_like(x)
    for number, weight in enumerate(weights):
        rows = (chosen == number).nonzero().squeeze(1)
        total = total.index_add(0, rows, (x[rows] @ weight).relu())
    return total


def test_experts_with_sizes_that_the_device_decides():
    counting = Counting()
    with dynamo_config.patch(capture_dynamic_output_shape_ops=True):
        call = compiled(experts)
        for number in range(CALLS + 2):
            x, gate = torch.randn(16, 8, device=DEVICE), torch.randn(8, 3, device=DEVICE)
            if number == 3:
                gate[:, 1] = 0
                gate[:, 0] = x.sum(0)  # nobody for one of them, perhaps
            weights = [torch.randn(8, 8, device=DEVICE) for _ in range(3)]
            close(call(x, gate, weights), experts(x, gate, weights), f"call {number}")
    [graph] = pygraph_inductor.report().graphs
    assert graph.pieces >= 2, graph
    counting.expect(replays=CALLS - 2, every=False)  # the piece in front of the sizes
