"""The frame without generated code: the same guards, saved tensors and gradients, nothing computed, no graph break.

And the guards alone, without AOTAutograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from scripts.bench import bare_frame, host_cost_rows
from scripts.bench.registry import call_once, tensors_of
from scripts.bench.variants import INDUCTOR, compiled


class Model(torch.nn.Module):
    """Layers whose saved activations are views, inputs and buffers; and a buffer that a step writes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(10, 8)
        self.convolution = torch.nn.Conv1d(4, 6, 3)
        self.norm = torch.nn.BatchNorm1d(6)
        self.drop = torch.nn.Dropout(0.2)
        self.out = torch.nn.Linear(6, 5, bias=False)
        self.idle = torch.nn.Parameter(torch.ones(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(self.convolution(self.words(tokens))))
        return self.out(x.transpose(1, 2)).square().mean()


def step(call: Any, model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    for parameter in model.parameters():
        parameter.grad = None
    loss = call(tokens)
    loss.backward()
    return loss


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """What the place of the generated code returned, call by call."""
    seen: list[list[Any]] = []
    original = bare_frame.Piece.__call__

    def watched(self: Any, inputs: list[Any]) -> list[Any]:
        results = original(self, inputs)
        assert not inputs
        seen.append([value.data_ptr() if isinstance(value, torch.Tensor) else value for value in results])
        return results

    monkeypatch.setattr(bare_frame.Piece, "__call__", watched)
    return seen


def test_the_same_parameters_get_gradients_like_the_real_ones(calls: list[list[Any]]) -> None:
    model, tokens = Model(), torch.randint(10, (3, 4))
    bare, real = bare_frame.bare_frame(model), compiled(INDUCTOR, model)
    step(real, model, tokens)
    assert not calls
    want = [parameter.grad for parameter in model.parameters()]
    loss = step(bare, model, tokens)
    got = [parameter.grad for parameter in model.parameters()]
    assert loss.shape == () and loss.grad_fn is not None and len(calls) == 2, "real code did not come from a cache"
    assert [one is None for one in got] == [one is None for one in want] and model.idle.grad is None
    for one, other in zip(got, want, strict=True):
        if one is not None and other is not None:
            assert (one.size(), one.stride(), one.dtype) == (other.size(), other.stride(), other.dtype)
            assert one.data_ptr() in calls[1], "autograd took it"
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] == 2


def test_gradients_are_new_in_every_step_and_activations_are_not(calls: list[list[Any]]) -> None:
    model, tokens = Model(), torch.randint(10, (3, 4))
    bare = bare_frame.bare_frame(model)
    running = model.norm.running_mean.clone()
    held = []
    for _ in range(3):
        held.append((step(bare, model, tokens), [parameter.grad for parameter in model.parameters()]))
    first, second, third = calls[0::2]
    assert first[1:] == second[1:] == third[1:] and len({one[0] for one in (first, second, third)}) == 3
    gradients = [one for backward in calls[1::2] for one in backward if one is not None]
    assert len(set(gradients)) == len(gradients) and len(calls) == 6
    assert torch.equal(model.norm.running_mean, running), "nothing runs"
    assert counters["stats"]["unique_graphs"] == 1 and not counters["recompiles"]


def test_it_saves_as_many_tensors_as_the_real_function() -> None:
    model, tokens = Model(), torch.randint(10, (3, 4))
    saved = []
    for call in (compiled(INDUCTOR, model), bare_frame.bare_frame(model)):
        step(call, model, tokens)
        loss = call(tokens)
        node = loss.grad_fn
        saved.append(len(node.saved_tensors) + len(getattr(node, "_tensors_no_vc_check", ())))
    assert saved[0] == saved[1] > 3


def test_a_change_that_guards_see_is_seen() -> None:
    model, tokens = Model(), torch.randint(10, (3, 4))
    bare = bare_frame.bare_frame(model)
    step(bare, model, tokens)
    model.drop.p = 0.5
    step(bare, model, tokens)
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize(
    "function, sizes, results",
    [
        (host_cost_rows.double, [(4, 4)], 1),
        (host_cost_rows.fold, [(2, 3)] * 5, 1),
        (host_cost_rows.each, [(8,)] * 6, 6),
        (lambda x: (x, x.view(-1), x + 1), [(2, 3)], 1),  # what aliases an input is not the generated code's
    ],
)
def test_outputs_without_gradients_are_all_new(
    calls: list[list[Any]], function: Any, sizes: list[tuple[int, ...]], results: int
) -> None:
    inputs = [torch.randn(*size) for size in sizes]
    want, call = function(*inputs), bare_frame.bare_frame(function)
    held = []
    for _ in range(3):
        got = call_once(call, inputs)
        held.append(got)
        for one, other in zip(tensors_of(got), tensors_of(want), strict=True):
            assert (one.size(), one.stride(), one.dtype) == (other.size(), other.stride(), other.dtype)
    made = {pointer for one in calls for pointer in one} - {tensor.data_ptr() for tensor in inputs}
    assert len(calls) == 3 and len(made) >= 3 * results


def test_a_written_input_is_left_alone(calls: list[list[Any]]) -> None:
    cache, new, place = torch.randn(2, 16, 4), torch.randn(2, 1, 4), torch.tensor([3])
    call, before = bare_frame.bare_frame(host_cost_rows.into_cache), cache.clone()
    results = [call_once(call, (cache, new, place)) for _ in range(2)]
    assert len(calls) == 2 and torch.equal(cache, before) and cache._version == 2, "autograd hears of it all the same"
    assert all(result.shape == (2, 4) for result in results)
    assert not counters["graph_break"]


def test_outputs_are_timed_only_when_asked(calls: list[list[Any]]) -> None:
    model, tokens = Model(), torch.randint(10, (3, 4))
    bare = bare_frame.bare_frame(model)
    step(bare, model, tokens)
    with bare_frame.timed_outputs() as spent:
        step(bare, model, tokens)
        assert len(spent) == 2 and all(spent), "the forward's and the backward's"
    step(bare, model, tokens)
    assert len(spent) == 2 and len(calls) == 6
    assert [one is None for one in calls[2]] == [one is None for one in calls[0]], "the same results"


def layouts(given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Outputs of several dtypes and strides; integers never require gradients."""
    return given.t() * 2, given.sum(), given.argmax(dim=1), given.to(torch.bfloat16), given.detach() + 1


@pytest.mark.parametrize("gradients", [False, True])
def test_guards_alone_return_the_same_tensors_laid_out_as_results(gradients: bool) -> None:
    given = torch.randn(3, 5, requires_grad=gradients)
    call = bare_frame.guards_only(layouts)
    first, second, want = call(given), call(given), layouts(given)
    for one, again, real in zip(first, second, want, strict=True):
        assert type(one) is torch.Tensor and one is again and one.is_leaf
        assert (one.size(), one.stride(), one.dtype) == (real.size(), real.stride(), real.dtype)
        assert (one.device, one.requires_grad) == (real.device, real.requires_grad)
    assert [one.requires_grad for one in first] == [gradients, gradients, False, gradients, False]


def operators(call: Any, inputs: Any) -> set[str]:
    """What ran in a call; a dispatch mode would be seen by Dynamo, which then compiles nothing."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call_once(call, inputs)
    return {event.key for event in profile.key_averages() if event.key.startswith("aten::")}


def test_guards_alone_run_no_operator(calls: list[list[Any]]) -> None:
    inputs = (torch.randn(2, 16, 4), torch.randn(2, 1, 4), torch.tensor([3]))
    call, before = bare_frame.guards_only(host_cost_rows.into_cache), inputs[0].clone()
    one = call_once(call, inputs)
    assert not operators(call, inputs) and not calls and call_once(call, inputs) is one
    assert torch.equal(inputs[0], before) and inputs[0]._version == 0 and one.shape == (2, 4)
    assert {"aten::index_copy_", "aten::tanh"} <= operators(host_cost_rows.into_cache, inputs), "they are seen"


def test_guards_alone_are_real_guards() -> None:
    model, tokens = Model(), torch.randint(10, (3, 4))
    call = bare_frame.guards_only(model)
    call(tokens), call(tokens)
    assert counters["stats"]["unique_graphs"] == 1
    model.drop.p = 0.5
    call(tokens)
    assert counters["stats"]["unique_graphs"] == 2
    sized = bare_frame.guards_only(host_cost_rows.double)
    for count, size in enumerate((4, 6, 9), start=3):
        for _ in range(2):
            assert sized(torch.randn(size)).shape == (size,), (
                "the layout is of this size, also where Dynamo has a symbol"
            )
        assert counters["stats"]["unique_graphs"] == count
    assert not counters["graph_break"]


def test_a_size_that_guards_alone_return_is_a_number() -> None:
    call = bare_frame.guards_only(lambda x: (x * 2, x.size(0) * 3))
    for size in (4, 6, 9):
        _, number = call(torch.randn(size))
        assert type(number) is int and number == size * 3


def test_guards_alone_have_an_entry_of_their_own() -> None:
    given = torch.randn(4)
    one, other = bare_frame.guards_only(host_cost_rows.double), bare_frame.guards_only(host_cost_rows.double)
    real = torch.compile(host_cost_rows.double, backend="eager")
    first = one(given)
    assert other(given) is not first and one(given) is first
    assert torch.equal(real(given), host_cost_rows.double(given)) and one(given) is first
    assert counters["stats"]["unique_graphs"] == 3


def test_a_backward_ends_at_what_guards_alone_return() -> None:
    model, tokens = Model(), torch.randint(10, (3, 4))
    call = bare_frame.guards_only(model)
    losses = [step(call, model, tokens) for _ in range(3)]
    assert losses[0] is losses[1] is losses[2] and losses[0].is_leaf
    assert all(parameter.grad is None for parameter in model.parameters())
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
