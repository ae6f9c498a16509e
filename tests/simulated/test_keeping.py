"""Activations that serve the next step again: only while nobody else has them, whoever that might be."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref

import pytest
import torch

from pygraph_inductor import settings
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.keeping import LARGEST, kept_on, to_keep
from pygraph_inductor.replay.plan import Again, FromAllocation, FromConstant, FromInput, Layout
from tests.launching import needs_launcher
from tests.simulated import two_ways
from tests.simulated.hand_written import CPU, F32, HandWritten, cloned, contents

keeps = needs_launcher("only it keeps tensors")
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


def living():
    """All tensors of memory that are alive; other tests leave some that have none."""
    found = [one for one in gc.get_objects() if type(one) is torch.Tensor]
    return [one for one in found if one.layout is torch.strided and one.device == CPU and torch._C._has_storage(one)]


def places(results):
    return [tensor.data_ptr() for tensor in results]


@keeps
def test_what_is_flattened_for_the_backward_serves_again():
    def flattening(namespace, x):
        result, one, other = forward(namespace, x)
        view = namespace["reinterpret_tensor"]
        return result, view(one, (64,), (1,), 0), view(other, (2, 4), (16, 1), 8)

    function = HandWritten(flattening, kind="forward", visible_outputs=frozenset({0}))
    for _ in range(3):
        function(torch.randn(SHAPE))
    held = checked(function)
    for _ in range(3):
        after = checked(function)
        assert after[1].data_ptr() != held[1].data_ptr(), "somebody has it"
    held = after = None
    assert len({places(checked(function))[1] for _ in range(3)}) == 1
    [log] = function.log.recordings
    assert log.bytes_kept == 8 * 8 * 4, "a part of an allocation is not kept"


@keeps
def test_what_only_the_backward_sees_serves_again():
    function = recorded()
    before = places(checked(function))
    junk = []
    for _ in range(5):
        junk += [torch.empty_strided(t, s) for t, s in ((SHAPE, (8, 1)), (SHAPE, (1, 8)), ((4, 4), (8, 1))) * 4]
        after = places(checked(function))
        assert after[1:] == before[1:]
        assert after[0] not in before[1:], "the visible result is new"
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
    "its attributes": lambda t: t.__dict__,
}


@keeps
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
        if holder == "a weak reference":  # which keeps no memory: the new tensor may be in the same place
            assert held[0]() is None
        elif holder == "its attributes":
            assert later[1].__dict__ is not held
        else:
            assert later[1].data_ptr() != address, f"{holder} was overwritten"
        assert later[2].data_ptr() == before[2]
        if isinstance(held, torch.Tensor) and held.shape == SHAPE and held.grad_fn is None and holder != "a gradient":
            assert torch.equal(contents(held), content)
        del held, later
    assert places(checked(function))[1] == places(checked(function))[1], "free again, it serves again"


class Mark:
    pass


class Named(torch.Tensor):
    pass


CHANGES = {
    "resized storage": lambda t: t.untyped_storage().resize_(0),
    "other sizes": lambda t: t.resize_(4, 4),
    "other strides": lambda t: t.t_(),
    "other storage": lambda t: t.set_(torch.zeros(SHAPE)),
    "gradients": lambda t: t.requires_grad_(),
    "a history": lambda t: t.mul_(torch.ones((), requires_grad=True)),
    "other data": lambda t: setattr(t, "data", torch.zeros(SHAPE)),
    "an attribute": lambda t: setattr(t, "mark", Mark()),
    "another class": lambda t: setattr(t, "__class__", Named),
    "negation": lambda t: torch._C._set_neg(t, True),
}


@keeps
@pytest.mark.parametrize("change", CHANGES)
def test_what_somebody_changed_does_not_serve_again(change):
    function = recorded()
    for _ in range(3):
        results = checked(function)
        CHANGES[change](results[1])
        del results
        one = checked(function)[1]
        assert not one.requires_grad and one.is_leaf and one.stride() == (1, 8)
        assert type(one) is torch.Tensor and not one.__dict__ and not one.is_neg()


@keeps
def test_two_calls_at_once_have_tensors_of_their_own():
    function = recorded()
    for _ in range(3):
        first = checked(function)
        content = [contents(one) for one in first]
        second, third = checked(function), checked(function)
        assert len({*places(first), *places(second), *places(third)}) == 9
        assert all(torch.equal(contents(one), old) for one, old in zip(first, content, strict=True))
        del first, second, third


@keeps
def test_saved_tensor_hooks_see_new_tensors():
    """They may hand them to another stream, which nobody would wait for."""
    function = recorded()
    torch.autograd.graph.increment_version(checked(function)[1:])  # tells a tensor from a new one in its place
    assert [one._version for one in checked(function)[1:]] == [1, 1]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert [one._version for one in checked(function)[1:]] == [0, 0]


@keeps
def test_what_is_kept_goes_with_the_recording():
    function = recorded()
    gc.collect()  # what other tests left
    before = places(checked(function))[1:]
    kept = [weakref.ref(one) for one in living() if one.data_ptr() in before and one.untyped_storage().resizable()]
    assert len(kept) == 2, "nodes look at the same memory, but do not own it"
    for recording in function.recordings:
        recording.close()
    assert all(one() is None for one in kept)


@keeps
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


def alone(function):
    """The one recording."""
    [recording] = function.recordings
    return recording


ENDINGS = {
    "closes the recording": lambda function, recording: recording.close(),
    "closes it as finalizers may": lambda function, recording: recording.close_unless_busy(),
    "closes the launcher": lambda function, recording: recording.launcher.close(),
    "empties the launcher": lambda function, recording: recording.launcher.forget(),
    "calls the function": lambda function, recording: checked(function),
    "calls it with another shape": lambda function, recording: function(torch.randn(4, 8)),
    "calls it with so many that this is forgotten": lambda function, recording: [
        function(torch.randn(rows, 8)) for rows in range(1, 20)
    ],
    "collects": lambda function, recording: gc.collect(),
}


@keeps
@pytest.mark.parametrize("dying", [1, 2, "a mark on 1", "a mark on 2"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_of_a_tensor_may_run_anything(ending, dying):
    """It comes amidst the next call, which has counted some tensors in already."""
    function = recorded(settings=settings.Settings(max_recordings=1))
    recording = alone(function)
    ends = []

    def end(_):
        ends.append(ending)
        ENDINGS[ending](function, recording)

    results = checked(function)
    if isinstance(dying, int):
        reference = weakref.ref(results[dying], end)
    else:
        results[int(dying[-1])].mark = Mark()
        reference = weakref.ref(results[int(dying[-1])].mark, end)
    del results
    assert not ends
    checked(function)
    assert len(ends) == 1 and reference() is None
    for _ in range(4):
        checked(function)


@keeps
def test_what_was_used_on_one_stream_does_not_serve_another():
    """A backward may still read it there, as the allocator knows of memory that is freed."""
    function = recorded()
    torch.autograd.graph.increment_version(checked(function)[1:])  # tells a tensor from a new one in its place
    assert [one._version for one in checked(function)[1:]] == [1, 1]
    with function.driver.stream("another"):
        replays = function.log.replays
        for _ in range(2):  # Python, which waits for the other stream; then the launcher
            assert [one._version for one in checked(function)[1:]] == [0, 0]
        assert function.log.replays == replays + 2


@keeps
def test_what_is_kept_goes_where_memory_is_short():
    function = recorded()
    recording = alone(function)

    before = places(checked(function))[1:]
    kept = [weakref.ref(one) for one in living() if one.data_ptr() in before and one.untyped_storage().resizable()]
    assert len(kept) == 2, "nodes look at the same memory, but do not own it"
    recording.launcher.sample(1)  # the next call goes through Python

    def no_memory(*_):
        raise torch.OutOfMemoryError("none left")

    empty = function.driver.empty
    function.driver.empty = no_memory
    checked(function)
    function.driver.empty = empty
    assert all(one() is None for one in kept)
    recording.launcher.sample(0)
    assert places(checked(function))[1:] == places(checked(function))[1:]


@keeps
def test_inference_tensors_are_not_kept_for_others():
    function = recorded()
    for _ in range(2):
        with torch.inference_mode():
            assert all(one.is_inference() for one in checked(function)[1:])
        assert not any(one.is_inference() for one in checked(function)[1:])


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena o s h hblkhd u f uordblks fo k".split()]


def in_use():
    """Bytes that C and C++ have, objects that Python has."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Mallinfo
    gc.collect()
    found = library.mallinfo2()
    return found.uordblks + found.hblkhd, sys.getallocatedblocks(), len(gc.get_objects())


def usual(function, x):
    function(x)


def held(function, x):
    holder = function(x)
    function(x)
    del holder


def marked(function, x):
    for one in function(x):
        one.mark = Mark()


def hooks(function, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        function(x)


def busy(function, x):
    word = alone(function).pool.busy_word
    word.value = 1
    function(x)
    word.value = 0


def sampled(function, x):
    alone(function).launcher.sample(1)
    function(x)
    alone(function).launcher.sample(0)


def forgotten(function, x):
    alone(function).launcher.forget()
    function(x)


def another_type(function, x):
    function(x.as_subclass(Named))


def another_stride(function, x):
    function(x.t())


WAYS = [usual, held, marked, hooks, busy, sampled, forgotten, another_type, another_stride]


@keeps
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc counts what is in use")
@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_a_call_leaks(way):
    function, x = recorded(), torch.randn(SHAPE)
    for _ in range(100):
        way(function, x)
    calls = 1000
    before = in_use()
    for _ in range(calls):
        way(function, x)
    grown = [now - then for now, then in zip(in_use(), before, strict=True)]
    assert all(one < calls // 2 for one in grown[1:]) and grown[0] < 16 * calls, grown
    assert sys.getrefcount(x) == 2


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
    facts = Facts(
        "f",
        "forward",
        "",
        CPU,
        visible_outputs=frozenset(),
        settings=settings.Settings(max_kept_bytes=kept_on(CPU) + 40),
    )
    returned = [FromAllocation(number, None, 0) for number in range(4)]
    assert to_keep(facts, returned, [SMALL] * 4) == {0, 1}


@keeps
def test_recordings_share_what_is_allowed_and_give_it_back():
    gc.collect()
    others = kept_on(CPU)
    each = 8 * 8 * 4 + (3 * 8 + 4) * 4
    room = settings.Settings(max_kept_bytes=others + each + 200)
    functions = [recorded(settings=room) for _ in range(3)]
    assert [one.log.recordings[0].bytes_kept for one in functions] == [each, (3 * 8 + 4) * 4, 0]
    for recording in functions[0].recordings:
        recording.close()
    assert kept_on(CPU) == others + (3 * 8 + 4) * 4
    del functions, recording
    gc.collect()
    assert kept_on(CPU) == others


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
