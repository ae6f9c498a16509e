"""What the benchmark says memory is for: pools, activations, gradients. On the CPU, with snapshots made by hand."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from scripts.bench import memory
from scripts.bench.measure import Runner
from scripts.bench.memory import Held, Pools, parts_of, saved_by_autograd, storages
from scripts.bench.registry import Program
from scripts.bench.variants import EAGER, INDUCTOR, Variant, active, compiled


def square(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Saves one tensor that is nobody's: the sine. The product also saves the weight, and the sine its argument."""
    return (torch.sin(x * 2) * weight).sum()


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.nn.Parameter(torch.randn(1000))


def test_eager_saves_what_its_operators_save(weight):
    x = torch.randn(1000)
    held = Held((x,))
    loss = held.watching(lambda x: square(x, weight))(x)
    assert held.leaves == [weight]
    # The input needs no gradient: the sine's argument is not saved, the weight is the caller's.
    assert sum(held.activations.values()) == 4000
    loss.backward()
    assert weight.grad is not None


@pytest.mark.parametrize("variant", [EAGER, INDUCTOR], ids=lambda v: v.name)
def test_results_inputs_and_parameters_are_no_activations(variant: Variant, weight):
    x = torch.randn(1000)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wave = torch.sin(x)  # saved, and handed out
        return wave, weight * wave

    with active(variant):
        held = Held((x,))
        wave, product = held.watching(compiled(variant, function))(x)
    saved, _ = saved_by_autograd([product])
    assert storages([wave]).items() <= storages(saved).items(), "or nothing was left out"
    assert not held.activations


def test_compiled_code_saves_in_one_node(weight):
    layer = torch.nn.Linear(8, 8)
    x = torch.randn(4, 8)
    with active(INDUCTOR):
        held = Held((x,))
        call = held.watching(compiled(INDUCTOR, lambda x: torch.relu(layer(torch.relu(layer(x)))).sum()))
        call(x).backward()
    assert {id(leaf) for leaf in held.leaves} == {id(layer.weight), id(layer.bias)}
    assert sum(held.activations.values()) >= 4 * 8 * 4


def test_the_call_that_leaves_most_counts(weight):
    held = Held(())
    call = held.watching(lambda n: (torch.sin(torch.ones(n)) * weight[:n]).sum())
    for size in (10, 700, 20):
        call(size).backward()
    assert sum(held.activations.values()) == 2800
    assert held.leaves == [weight]


def test_views_of_one_storage_count_once():
    base = torch.zeros(100)
    assert storages([base, base[3:], base.view(10, 10)]) == {base.data_ptr(): 400}


def segment(address: int, size: int, pool: tuple[int, int]) -> dict:
    return {"address": address, "total_size": size, "segment_pool_id": pool}


def test_what_lies_in_pools():
    pools = Pools([segment(1000, 100, (0, 1)), segment(3000, 50, (2, 0)), segment(2000, 900, (0, 0))])
    assert pools.size == 150
    assert pools.bytes_of({1000: 8, 1099: 4, 1100: 16, 999: 32, 3000: 64, 2000: 128}) == 8 + 4 + 64
    assert Pools([]).bytes_of({1000: 8}) == 0


def test_parts_of_an_iteration(weight):
    x = torch.randn(1000)
    addresses = {}

    def drive(call, inputs):
        weight.grad = None
        loss = call(*inputs)
        loss.backward()
        addresses["gradient"] = weight.grad.data_ptr()
        return loss.detach()

    program = Program(lambda x: square(x, weight), lambda draw: (x,), drive)
    snapshot = lambda: [segment(addresses["gradient"], 1 << 20, (0, 7)), segment(0, 64, (0, 0))]
    with active(EAGER), mock.patch.object(memory.torch.cuda, "memory_snapshot", snapshot):
        found = parts_of(Runner(EAGER, program, program.function), (x,))
    assert (found.pools, found.activations, found.gradients) == (1 << 20, 4000, 4000)
    assert found.gradients_in_pools == 4000
    assert found.activations_in_pools in (0, 4000)  # where it happened to lie
