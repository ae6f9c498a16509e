"""Whole compiled functions on the simulated driver against the same generated code without it, bit for bit."""

from __future__ import annotations

import threading

import numpy
import pytest
import torch
import torch.nn.functional as F

import pygraph_inductor
from tests.simulated.two_ways import CALLS, check, compiled


def inference(function, make, results=lambda outputs, inputs: [*outputs, *inputs]):
    """A program: `function` on what `make(number)` gives, showing outputs and inputs afterwards."""

    def program():
        call = compiled(function)

        def step(number):
            inputs = make(number)
            with torch.no_grad():
                outputs = call(*inputs)
            outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
            return [*results(outputs, inputs), *(value._version for value in inputs)]

        return step

    return program


def randn(*size):
    return torch.randn(*size)


def test_forward():
    w = randn(16, 16)
    (facts,) = check(inference(lambda x: F.gelu(x @ w) + x.sum(-1, keepdim=True), lambda n: [randn(8, 16)]))
    assert facts.calls == CALLS and facts.replays == CALLS - 2 and facts.device == "cpu"


def test_training_step_with_dropout():
    def program():
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.GELU(),
            torch.nn.Dropout(0.3),
            torch.nn.LayerNorm(16),
            torch.nn.Linear(16, 4),
        )
        weights = list(model.parameters())
        optimizer = torch.optim.SGD(weights, lr=0.1)
        call = compiled(model)

        def step(number):
            optimizer.zero_grad(set_to_none=bool(number % 2))
            x = randn(5, 8).requires_grad_()
            loss = call(x).square().mean()
            loss.backward()
            optimizer.step()
            return [loss, x.grad, *(w.grad.clone() for w in weights), *(w.detach().clone() for w in weights)]

        return step

    forward, backward = check(program, functions=2)
    assert {forward.kind, backward.kind} == {"forward", "backward"}


def test_in_place_mutation_of_an_input():
    def function(x, cache):
        cache[:, 1].add_(x.sum(0))
        return cache.relu()

    check(inference(function, lambda n: [randn(3, 4), randn(4, 3)]))


def test_mutated_buffer_of_a_module():
    def program():
        norm = torch.nn.BatchNorm1d(6)
        call = compiled(norm)

        def step(number):
            with torch.no_grad():
                out = call(randn(4, 6))
            return [out, norm.running_mean.clone(), norm.running_var.clone(), norm.num_batches_tracked.clone()]

        return step

    check(program)


def test_views_of_inputs_come_back_as_views():
    def results(outputs, inputs):
        related = [out.untyped_storage()._cdata == inputs[0].untyped_storage()._cdata for out in outputs]
        return [*outputs, *related, outputs[1]._is_view()]

    check(inference(lambda x: (x + 1, x[1:], x.t(), x), lambda n: [randn(4, 4)], results))


def test_input_returned_is_the_very_object():
    check(inference(lambda x, y: (y, x * 2), lambda n: [randn(3), randn(3)], lambda out, inp: [out[0] is inp[1], *out]))


def test_two_outputs_of_one_storage_and_one_returned_twice():
    def function(x):
        y = x * 2
        return y, y[1:], y, y.view(-1)

    def results(outputs, inputs):
        first = outputs[0].untyped_storage()._cdata
        return [*outputs, *(o.untyped_storage()._cdata == first for o in outputs), outputs[2] is outputs[0]]

    check(inference(function, lambda n: [randn(4, 4)], results))


def test_mutated_view_of_an_input_is_returned():
    def function(x):
        x.mul_(2)
        return x[0], x.sum()

    check(inference(function, lambda n: [randn(3, 4)]))


def test_non_dense_and_channels_last():
    w = torch.randn(5, 3, 3, 3)
    make = lambda n: [randn(2, 3, 8, 8).to(memory_format=torch.channels_last), randn(6, 8)[:, ::2]]
    check(inference(lambda x, y: (F.conv2d(x, w).relu(), y.t() + 1, y * 2), make))


def test_expanded_and_zero_dim_inputs():
    check(inference(lambda x, s: (x * s, s + 1), lambda n: [randn(4).expand(3, 4), randn(())]))


def test_zero_size_inputs_and_outputs():
    check(inference(lambda x, y: (x + 1, y.sum(0), y[:0], torch.cat([y, y])), lambda n: [randn(3), randn(0, 3)]))


@pytest.mark.parametrize("kind", [numpy.float32, numpy.float64, float])
def test_numbers_that_dynamo_makes_tensors_of_keep_one_recording(kind):
    def program():
        # Not dynamic, the first float would be a constant of a graph of its own.
        call = compiled(lambda x, s: x * s + 1, dynamic=True if kind is float else None)

        def step(number):
            with torch.no_grad():
                return [call(randn(4, 4), kind(0.5 + number))]

        return step

    (facts,) = check(program)
    assert len(facts.recordings) == 1 and facts.replays == CALLS - 2


@pytest.mark.parametrize("name", ["bool", "int64", "uint8", "bfloat16", "float64", "complex64"])
def test_dtypes(name):
    dtype = getattr(torch, name)

    def function(x, y):
        return x.clone(), torch.where(x == y, x, y), x.flip(0)

    check(inference(function, lambda n: [torch.randint(0, 2, (6, 5)).to(dtype), torch.randint(0, 2, (6, 5)).to(dtype)]))


def test_operators_that_allocate_their_outputs():
    def function(q, x):
        values, indices = torch.sort(x, dim=-1)
        top, where = torch.topk(x, 3)
        return values, indices, top, where, F.scaled_dot_product_attention(q, q, q), values.cumsum(0)

    check(inference(function, lambda n: [randn(1, 2, 8, 16), randn(4, 9)]))


def test_random_numbers_are_those_of_the_plain_call():
    check(inference(lambda x: (torch.rand_like(x), F.dropout(x, 0.5), torch.randint(0, 9, (4,))), lambda n: [randn(4)]))


def test_dynamic_shapes_are_recorded_one_by_one():
    def program():
        call = compiled(lambda x: (x.softmax(-1), x.sum(0)), dynamic=True)

        def step(number):
            with torch.no_grad():
                return list(call(randn(2 + number % 3, 7)))

        return step

    (facts,) = check(program, calls=12)
    assert len(facts.recordings) == 3 and facts.replays == 6


def test_parameters_that_moved_are_followed():
    def program():
        layer = torch.nn.Linear(4, 4)
        call = compiled(layer)

        def step(number):
            if number == 4:
                layer.weight.data = layer.weight.data.clone() + 1
            with torch.no_grad():
                return [call(randn(2, 4))]

        return step

    (facts,) = check(program)
    assert len(facts.recordings) == 1


def test_gradient_accumulation():
    def program():
        weight = randn(4, 4).requires_grad_()
        call = compiled(lambda x: (x @ weight).tanh().sum())

        def step(number):
            if number % 3 == 0:
                weight.grad = None
            call(randn(2, 4)).backward()
            return [weight.grad.clone()]

        return step

    check(program, calls=9, functions=2)


def test_gradients_are_stolen_not_cloned():
    """Autograd takes a gradient over as it is if nobody else refers to it."""
    weights = [randn(8, 8).requires_grad_(), randn(8).requires_grad_()]
    returned = []

    call = compiled(lambda x: F.linear(x, *weights).square().sum())
    for number in range(CALLS):
        for weight in weights:
            weight.grad = None
        loss = call(randn(4, 8))
        handles = [w.register_hook(lambda grad: returned.append(grad.data_ptr())) for w in weights]
        loss.backward()
        for handle in handles:
            handle.remove()
        assert sorted(returned[-2:]) == sorted(w.grad.data_ptr() for w in weights), f"call {number}"
    forward, backward = pygraph_inductor.report().functions[-2:]
    assert forward.replays == backward.replays == CALLS - 2


def test_modified_saved_tensors_are_noticed():
    x = randn(4).requires_grad_()
    call = compiled(lambda x, y: (x * y).sum())
    y = randn(4)
    for _ in range(CALLS):
        loss = call(x, y)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_outputs_modified_before_the_backward_are_noticed():
    call = compiled(lambda x: (x.exp(), x.exp() * 2))
    for _ in range(CALLS):
        x = randn(4).requires_grad_()
        y, z = call(x)
        y.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (y.sum() + z.sum()).backward()


VIEWS = {
    "another dtype": lambda x: (y := x * 2, y.view(torch.int32)),
    "real numbers": lambda x: (z := torch.fft.fft(x), torch.view_as_real(z)),
    "complex numbers": lambda x: (z := torch.view_as_complex(x.view(-1, 2)) * 2, z[1:]),
}


@pytest.mark.parametrize("views", VIEWS)
def test_writes_through_another_output_are_noticed(views):
    """What autograd saved of the one is no longer what it was; no gradient is right after that."""
    call = compiled(VIEWS[views])
    weight = torch.ones((), requires_grad=True)
    for _ in range(CALLS):
        with torch.no_grad():
            first, second = call(randn(8))
        result = (first * weight).abs().sum()
        second.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()
    assert pygraph_inductor.report().functions[-1].replays == CALLS - 2


def test_writes_to_what_a_saved_view_shows_are_noticed():
    """The backward gets a view of an output: without its version, gradients would be of other numbers, silently."""

    def function(x, weight):
        spectrum = torch.fft.fft(x @ weight)
        return spectrum, torch.view_as_real(spectrum).sin()

    call = compiled(function)
    for _ in range(CALLS):
        spectrum, sines = call(randn(4, 8), randn(8, 8).requires_grad_())
        spectrum.detach().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            sines.sum().backward()
    assert pygraph_inductor.report().functions[-1].replays == CALLS - 2


def test_threads_of_one_function():
    weight = randn(16, 16)
    call = compiled(lambda x: (x @ weight).relu().cumsum(0))
    plain = lambda x: (x @ weight).relu().cumsum(0)
    with torch.no_grad():
        call(randn(4, 16))
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad(), pygraph_inductor.config.patch(simulate=True):
            for _ in range(20):
                x = torch.randn(4, 16, generator=generator)
                if not torch.allclose(call(x), plain(x), atol=1e-5):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    facts = pygraph_inductor.report().functions[-1]
    assert not wrong and facts.replays > 60, facts.reasons


def test_compiled_optimizer():
    def program():
        weights = [randn(4, 3).requires_grad_(), randn(3).requires_grad_()]
        optimizer = torch.optim.Adam(weights, lr=0.1, capturable=False)
        step_compiled = compiled(optimizer.step, fullgraph=False)

        def step(number):
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            step_compiled()
            return [weight.detach().clone() for weight in weights]

        return step

    check(program, functions=None)


def test_checkpointed_activations():
    from torch.utils.checkpoint import checkpoint

    def program():
        w = randn(6, 6).requires_grad_()
        block = lambda x: (x @ w).tanh().square()
        call = compiled(lambda x: checkpoint(block, x, use_reentrant=False).sum())

        def step(number):
            w.grad = None
            loss = call(randn(3, 6))
            loss.backward()
            return [loss, w.grad]

        return step

    check(program, functions=2)


def test_checkpointed_dropout_is_right_and_says_so_where_it_is_plain():
    """Where its random state is read and put back by the host (not in torch 2.11), no graph can hold it."""
    from torch.utils.checkpoint import checkpoint

    def program():
        w = randn(6, 6).requires_grad_()
        block = lambda x: F.dropout((x @ w).tanh(), 0.2)
        call = compiled(lambda x: checkpoint(block, x, use_reentrant=False).sum())

        def step(number):
            w.grad = None
            loss = call(randn(3, 6))
            loss.backward()
            return [loss, w.grad]

        return step

    for facts in check(program, functions=None):
        assert facts.verdict == "replayed" or any("rng_state" in reason for reason in facts.reasons), facts.reasons


def test_nothing_is_simulated_unless_asked():
    with pygraph_inductor.config.patch(simulate=False):
        call = compiled(lambda x: x.sin())
        for _ in range(4):
            call(randn(3))
    assert not any(one.replays for one in pygraph_inductor.report().functions)
