"""Activations that serve the next step again: only while nobody else has them, whoever that might be."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from pygraph_inductor import settings
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.keeping import LARGEST, to_keep
from pygraph_inductor.replay import native
from pygraph_inductor.replay.plan import Again, FromAllocation, FromConstant, FromInput, Layout
from tests.simulated import two_ways
from tests.simulated.hand_written import CPU, F32, HandWritten, cloned, contents

needs_compiler = pytest.mark.skipif(native.module() is None, reason="only the launcher in C keeps tensors")
SHAPE = (8, 8)


def forward(namespace, x):
    """A visible result and two activations, one of which has gaps."""
    new, fused = namespace["empty_strided_cpu"], namespace["cpp_fused_0"]
    result, one, other = new(SHAPE, (8, 1), F32), new(SHAPE, (1, 8), F32), new((4, 4), (8, 1), F32)
    fused(one, x)
    fused(other, one)
    fused(result, x, one, other)
    return result, one, other


def recorded(**facts):
    facts = {"kind": "forward", "visible_outputs": frozenset({0}), **facts}
    function = HandWritten(forward, **facts)
    for _ in range(3):  # plain, recorded, replayed
        function(torch.randn(SHAPE))
    return function


def checked(function):
    """A call that gives what the plain call gives; all that it returned."""
    x = torch.randn(SHAPE)
    want = function.run([x.clone()])
    got = function(x)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    return got


def places(results):
    return [tensor.data_ptr() for tensor in results]


@needs_compiler
def test_what_only_the_backward_sees_serves_again():
    function = recorded()
    before = places(checked(function))
    junk = []
    for _ in range(5):
        junk += [torch.empty_strided(t, s) for t, s in ((SHAPE, (8, 1)), (SHAPE, (1, 8)), ((4, 4), (8, 1))) * 4]
        after = places(checked(function))
        assert after[1:] == before[1:]
        assert after[0] not in before, "the visible result is new"
        junk.append(torch.empty(SHAPE))
    [log] = function.log.recordings
    assert log.bytes_kept == 8 * 8 * 4 + (3 * 8 + 4) * 4


def graph_of(tensor):
    return torch.ones((), requires_grad=True) * tensor


HOLDERS = {
    "the tensor": lambda t: t,
    "a view": lambda t: t[0],
    "a detached tensor": lambda t: t.detach(),
    "its data": lambda t: t.data,
    "its storage": lambda t: t.untyped_storage(),
    "numpy": lambda t: t.numpy(),
    "a capsule": lambda t: t.__dlpack__(),
    "autograd": graph_of,
    "a list": lambda t: [[t]],
    "a closure": lambda t: lambda: t,
    "a weak reference": lambda t: (weakref.ref(t), t.clone()),
    "a gradient": lambda t: torch.zeros(SHAPE).set_(t.untyped_storage(), 0, SHAPE, (8, 1)),
    "a saved tensor": lambda t: graph_of(t).grad_fn,
}


@needs_compiler
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_somebody_has_does_not_serve_again(holder):
    function = recorded()
    for _ in range(3):
        results = checked(function)
        before, content = places(results), contents(results[1])
        view = results[1].untyped_storage()[:4] if holder == "its storage" else None
        held = HOLDERS[holder](results[1])
        address = results[1].data_ptr()
        del results, view
        later = checked(function)
        assert later[1].data_ptr() != address, f"{holder} was overwritten"
        assert later[2].data_ptr() == before[2]
        if isinstance(held, torch.Tensor) and held.shape == SHAPE and held.grad_fn is None and holder != "a gradient":
            assert torch.equal(contents(held), content)
        del held, later
    assert places(checked(function))[1] == places(checked(function))[1], "free again, it serves again"


CHANGES = {
    "resized storage": lambda t: t.untyped_storage().resize_(0),
    "other sizes": lambda t: t.resize_(4, 4),
    "other strides": lambda t: t.t_(),
    "other storage": lambda t: t.set_(torch.zeros(SHAPE)),
    "gradients": lambda t: t.requires_grad_(),
    "a history": lambda t: t.mul_(torch.ones((), requires_grad=True)),
    "other data": lambda t: setattr(t, "data", torch.zeros(SHAPE)),
}


@needs_compiler
@pytest.mark.parametrize("change", CHANGES)
def test_what_somebody_changed_does_not_serve_again(change):
    function = recorded()
    for _ in range(3):
        results = checked(function)
        CHANGES[change](results[1])
        del results
        one = checked(function)[1]
        assert not one.requires_grad and one.is_leaf and one.stride() == (1, 8)


@needs_compiler
def test_two_calls_at_once_have_tensors_of_their_own():
    function = recorded()
    for _ in range(3):
        first = checked(function)
        content = [contents(one) for one in first]
        second, third = checked(function), checked(function)
        assert len({*places(first), *places(second), *places(third)}) == 9
        assert all(torch.equal(contents(one), old) for one, old in zip(first, content, strict=True))
        del first, second, third


@needs_compiler
def test_saved_tensor_hooks_see_new_tensors():
    """They may hand them to another stream, which nobody would wait for."""
    function = recorded()
    before = places(checked(function))
    spare = [torch.empty_strided(SHAPE, (1, 8)) for _ in range(8)]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert not set(places(checked(function))[1:]) & set(before[1:])
    del spare


@needs_compiler
def test_what_is_kept_goes_with_the_recording():
    function = recorded()
    kept = [one for one in gc.get_objects() if type(one) is torch.Tensor and tuple(one.stride()) == (1, 8)]
    assert kept
    references = [weakref.ref(one) for one in kept]
    del kept
    for recording in function.recordings:
        recording.close()
    assert not any(reference() is not None and reference().shape == SHAPE for reference in references)


@needs_compiler
@pytest.mark.parametrize(
    "facts",
    [
        {"kind": "inference"},
        {"kind": "backward"},
        {"visible_outputs": None},
        {"visible_outputs": frozenset({0, 1, 2})},
        {"settings": settings.Settings(max_kept_bytes=0)},
    ],
)
def test_others_are_never_kept(facts):
    function = recorded(**facts)
    [log] = function.log.recordings
    assert not log.bytes_kept
    results = checked(function)
    addresses, references = places(results), [weakref.ref(one) for one in results]
    del results
    assert all(reference() is None for reference in references)
    assert len(addresses) == 3


FORWARD = Facts("f", "forward", "", CPU, visible_outputs=frozenset({0}))
SMALL, HUGE = Layout((4,), (1,), F32), Layout((LARGEST // 4 + 1,), (1,), F32)


@pytest.mark.parametrize(
    "returned, layouts, kept",
    [
        ([FromAllocation(0, None, 0), FromAllocation(1, None, 0)], [SMALL, SMALL], {1}),
        ([FromAllocation(0, None, 0), FromAllocation(0, None, 0)], [SMALL], set()),
        ([FromAllocation(0, SMALL, 0), FromAllocation(0, None, 0)], [SMALL], set()),  # its view is visible
        ([FromConstant(None), FromAllocation(0, SMALL, 4)], [SMALL], set()),  # a view
        ([FromConstant(None), FromAllocation(0, None, 0), Again(1)], [SMALL], set()),
        ([FromConstant(None), FromAllocation(0, None, 0), FromAllocation(0, SMALL, 4)], [SMALL], set()),
        ([FromConstant(None), FromAllocation(0, None, 0)], [HUGE], set()),
        ([FromConstant(None), FromAllocation(0, None, 0)], [Layout((0,), (1,), F32)], set()),
        ([FromConstant(None), FromInput(0, None, 0)], [], set()),
    ],
)
def test_which_may_be_kept(returned, layouts, kept):
    assert to_keep(FORWARD, returned, layouts) == frozenset(kept)


def test_no_more_is_kept_than_is_allowed():
    facts = Facts("f", "forward", "", CPU, visible_outputs=frozenset(), settings=settings.Settings(max_kept_bytes=40))
    returned = [FromAllocation(number, None, 0) for number in range(4)]
    assert to_keep(facts, returned, [SMALL] * 4) == {0, 1}


class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)) * torch.sigmoid(x)
        return x


@pytest.mark.parametrize("pattern", ["usual", "two at once", "retained", "never", "hooks", "gradients stay"])
def test_training_gives_what_it_gives_without(pattern):
    def program():
        model = Step()
        call = two_ways.compiled(model)
        losses = []

        def step(number):
            if pattern != "gradients stay":
                model.zero_grad(set_to_none=True)
            x = torch.randn(4, 8, requires_grad=True)
            if pattern == "hooks" and number % 2:
                with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 1):
                    loss = call(x).square().mean()
            else:
                loss = call(x).square().mean()
            if pattern == "two at once":
                other = call(x + 1).square().mean()
                other.backward()
            if pattern == "never" and number % 3 == 1:
                losses.append(loss)  # its backward comes at the end, if at all
                return cloned([loss.detach()])
            loss.backward(retain_graph=pattern == "retained")
            if pattern == "never" and number == two_ways.CALLS - 1:
                for late in losses:
                    late.backward()
            return cloned([loss.detach(), x.grad, *(p.grad for p in model.parameters())])

        return step

    with torch._functorch.config.patch(donated_buffer=pattern != "retained"):
        facts = two_ways.check(program, functions=None)
    forwards = [one for one in facts if one.kind == "forward"]
    assert forwards and all(recording.bytes_kept for one in forwards for recording in one.recordings)
