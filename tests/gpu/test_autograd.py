"""What autograd relies on: stolen gradients, saved tensors that are watched, hooks, and threads of its own."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from pygraph_inductor import config
from tests.gpu.comparing import DEVICE, Counting, agree, compiled, plainly, same_bits, watching_outputs


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE)


def test_gradients_of_inputs_and_parameters_agree() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(DEVICE)
    call = compiled(model)

    def step(x: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        call(x).square().mean().backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    agree(step, lambda _: (randn(16, 32).requires_grad_(),), replays=6)


def test_gradient_is_stolen_from_the_backward_and_not_cloned() -> None:
    """A returned gradient with a hidden reference would make autograd clone it: another address than was returned."""
    model = torch.nn.Linear(64, 64, bias=False).to(DEVICE)
    call, counting = compiled(model), Counting()

    def stolen() -> bool:
        model.weight.grad = None
        with watching_outputs() as returned:
            call(randn(8, 64)).sum().backward()
        return model.weight.grad.data_ptr() in returned.addresses

    with plainly():
        if not stolen():
            pytest.skip("the plain call does not let autograd steal either")
    for number in range(6):
        assert stolen(), f"call {number}"
    counting.expect(replays=6)


class Convolving:
    """Training steps of a network that Inductor computes channels-last; its parameters are not.

    `copied`: parameters whose gradients autograd did not take over. `copies`: its copies in the last step.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 128, 3, padding=1, bias=False),  # more than 64 channels, or Inductor leaves the layout
            torch.nn.BatchNorm2d(128),
            torch.nn.ReLU(),
            torch.nn.Conv2d(128, 128, 1, bias=False),
            torch.nn.ReLU(),
            torch.nn.Conv2d(128, 128, 3, bias=False),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(128, 16),
        ).to(DEVICE)
        self.call = compiled(lambda x: self.model(x).float().square().mean())
        self.came: dict[str, int] = {}
        for name, parameter in self.model.named_parameters():
            parameter.register_hook(lambda gradient, name=name: self.came.__setitem__(name, gradient.data_ptr()))
        self.copied: list[set[str]] = []
        self.copies = 0

    def step(self) -> list[torch.Tensor]:
        self.model.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = self.call(randn(4, 3, 32, 32))
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            loss.backward()
        copies = [event for event in seen.events() if event.name == "aten::copy_" and event.cpu_parent is not None]
        self.copies = sum("AccumulateGrad" in event.cpu_parent.name for event in copies)
        gradients = {name: parameter.grad for name, parameter in self.model.named_parameters()}
        self.copied.append({name for name, one in gradients.items() if one.data_ptr() != self.came[name]})
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= 0.1 * parameter.grad
        return list(gradients.values())


def test_gradients_of_convolutions_are_taken_over_where_they_are_laid_out_as_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Autograd's copies are kernels that the backward's graph does not have. Without them every bit is the same."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    steps, gradients = {}, {}
    for on in (False, True):
        torch._dynamo.reset()  # the same code: it would be served by what was compiled first
        counting = Counting()
        with config.patch(transform_gradients=on):
            steps[on] = Convolving()
            gradients[on] = [step for _ in range(6) for step in steps[on].step()]
        counting.expect(replays=8)
    assert all(one == {"0.weight", "5.weight"} for one in steps[False].copied)
    assert not any(steps[True].copied)
    assert steps[False].copies == 2 and steps[True].copies == 0
    assert all(same_bits(one, other) for one, other in zip(gradients[False], gradients[True], strict=True))


def test_gradient_owns_its_memory_alone() -> None:
    """No other gradient and no saved activation shares the storage of a gradient that is kept."""
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).to(DEVICE)
    call, counting = compiled(model), Counting()
    for _ in range(5):
        model.zero_grad(set_to_none=True)
        call(randn(8, 64)).sum().backward()
        storages = [p.grad.untyped_storage() for p in model.parameters()]
        assert len({one.data_ptr() for one in storages}) == len(storages)
        assert all(one.nbytes() == p.numel() * 4 for one, p in zip(storages, model.parameters(), strict=True))
    counting.expect(replays=4)


def test_gradients_accumulate_over_calls() -> None:
    model = torch.nn.Linear(16, 4).to(DEVICE)
    call = compiled(model)

    def step(*batches: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        for batch in batches:
            call(batch).square().sum().backward()
        return [p.grad for p in model.parameters()]

    agree(step, lambda _: tuple(randn(3, 16) for _ in range(3)), replays=10)


def test_gradients_accumulate_into_buffers_that_stay() -> None:
    model = torch.nn.Linear(16, 4).to(DEVICE)
    call = compiled(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in model.parameters()]

    def step(batch: torch.Tensor) -> None:
        call(batch).square().sum().backward()

    agree(step, lambda _: (randn(3, 16),), state=gradients, replays=6)
    model.zero_grad(set_to_none=False)
    assert all(not g.any() for g in gradients)


@pytest.mark.parametrize("what", ["output", "input"])
def test_saved_tensor_modified_in_place_is_still_an_error(what: str) -> None:
    call, counting = compiled(lambda x: x.exp() * x), Counting()
    for _ in range(5):
        x = randn(16).requires_grad_()
        call(x).sum().backward()
    counting.expect(replays=4)
    saves_its_output = compiled(lambda x: x.exp())
    for number in range(5):
        leaf = randn(16).requires_grad_()
        x = leaf * 1
        y = saves_its_output(x) if what == "output" else call(x)
        with torch.no_grad():
            (y if what == "output" else x).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        assert leaf.grad is None, f"call {number}"


def test_saved_tensor_hooks_see_ordinary_tensors() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32)).to(DEVICE)
    call = compiled(model)

    def step(x: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(DEVICE)):
            loss = call(x).square().mean()
        loss.backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    agree(step, lambda _: (randn(16, 32).requires_grad_(),))


def test_backward_that_returns_what_it_saved() -> None:
    """The gradient of one factor is the other one's buffer times the incoming gradient: memory may be donated."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.exp() * y.sigmoid()).sum()

    call = compiled(function)

    def step(x: torch.Tensor, y: torch.Tensor) -> list[Any]:
        call(x, y).backward()
        return [x.grad, y.grad]

    agree(step, lambda _: (randn(64, 64).requires_grad_(), randn(64, 64).requires_grad_()), replays=6)


def test_forwards_run_ahead_of_their_backwards() -> None:
    """Three forwards, then their backwards in another order: activations of one call survive the next calls."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32)).to(DEVICE)
    call = compiled(model)

    def step(*batches: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        losses = [call(batch).square().mean() for batch in batches]
        for number in (1, 0, 2):
            losses[number].backward()
        return [*(b.grad for b in batches), *(p.grad for p in model.parameters())]

    agree(step, lambda _: tuple(randn(8, 32).requires_grad_() for _ in range(3)), replays=12)


def test_backwards_from_two_threads_at_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()).to(DEVICE)
    call, counting = compiled(model), Counting()
    weights = list(model.parameters())
    wrong: list[str] = []

    def gradients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(call(x).square().sum(), weights)

    batches = [randn(8, 32) for _ in range(2)]
    with plainly():
        expected = [gradients(x) for x in batches]
    for _ in range(4):
        gradients(randn(8, 32))

    def work(number: int) -> None:
        try:
            for _ in range(10):
                torch.testing.assert_close(gradients(batches[number]), expected[number])
        except Exception as error:
            wrong.append(f"thread {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    counting.expect(replays=20)


def test_gradient_of_a_gradient_is_refused_as_the_plain_call_refuses_it() -> None:
    call = compiled(lambda x: x.sin() * x)
    for _ in range(4):
        x = randn(8).requires_grad_()
        call(x).sum().backward()
    x = randn(8).requires_grad_()
    with pytest.raises(RuntimeError, match="double backward"):
        (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        first.sum().backward()
    x = randn(8).requires_grad_()
    call(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * x.detach() + x.detach().sin())
