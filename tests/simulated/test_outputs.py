"""What comes back is what the plain call gives: fresh, nobody else's, related to inputs and to each other alike."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from typing import Any

import pytest
import torch

from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.recording.outputs import made_as_returned
from pygraph_inductor.replay.plan import Again, FromAllocation, FromInput, Layout
from tests.launching import needs_launcher
from tests.simulated.hand_written import F32, HandWritten, check, contents

SIZE = (64,)


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request):
    return request.param


def empty(names, n=64, dtype=F32):
    return names["empty_strided_cpu"]((n,), (1,), dtype)


def make():
    return [torch.randn(SIZE)]


def recorded(body, native=True, make=make, **facts):
    """A function that replays from its next call on."""
    function = HandWritten(body, native=native, **facts)
    for _ in range(2):
        function(*make())
    return function


def chain(names, x):
    """Three buffers one after the other in the same memory; the second one is returned."""
    first = empty(names)
    names["cpp_fused_0"](first, x)
    half = first.sum()
    del first
    second = empty(names)
    names["cpp_fused_0"](second, x, half)
    third = empty(names)
    names["cpp_fused_0"](third, second)
    total = third.sum()
    del third
    fourth = empty(names)
    names["cpp_fused_0"](fourth, total, second)
    names["cpp_fused_0"](second, fourth)
    return (second, total)


def test_output_where_an_intermediate_was(native):
    check(HandWritten(chain, native=native), make)


def test_output_survives_later_calls(native):
    function = recorded(chain, native)
    kept = [function(*make())[0] for _ in range(5)]
    before = [contents(out) for out in kept]
    for _ in range(5):
        function(*make())
    assert all(map(torch.equal, map(contents, kept), before))
    assert len({out.data_ptr() for out in kept}) == 5


def test_output_as_the_next_input(native):
    def body(names, x):
        out = empty(names)
        names["cpp_fused_0"](out, x)
        return (out,)

    function = HandWritten(body, native=native)
    x = want = torch.randn(SIZE)
    for _ in range(8):
        (x,), (want,) = function(x), function.run([want])
        assert torch.equal(x, want)
    assert function.log.replays == 6


def test_dropped_outputs_are_freed_at_once(native):
    function = recorded(chain, native)
    results = function(*make())
    alive = [weakref.ref(out.untyped_storage()) for out in results]
    del results
    assert all(one() is None for one in alive)


def test_inputs_are_let_go(native):
    def body(names, x, y):
        y.add_(1)
        return (x + y, x.sum())

    function = HandWritten(body, native=native, mutated_inputs=frozenset({1}))
    for _ in range(4):
        inputs = [torch.randn(SIZE), torch.randn(SIZE)]
        alive = [weakref.ref(one.untyped_storage()) for one in inputs]
        function(*inputs)
        inputs.clear()
        gc.collect()
        assert all(one() is None for one in alive)


def test_list_of_inputs_is_consumed(native):
    function = HandWritten(chain, native=native)
    for _ in range(4):
        inputs = make()
        function._entry(inputs)
        assert inputs == []


def test_returned_tensors_have_no_hidden_references(native):
    """Autograd takes over a gradient as it is only if nothing else refers to it."""
    references = lambda tensor: (sys.getrefcount(tensor), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
    function = recorded(chain, native)
    want = [references(out) for out in function.run(make())]
    got = [references(out) for out in function(*make())]
    assert got == want


def test_keeping_one_output_pins_no_other(native):
    def body(names, x):
        small, large = empty(names, 4), empty(names, 1 << 16)
        names["cpp_fused_0"](small, x)
        names["cpp_fused_0"](large, x)
        return (small, large)

    function = recorded(body, native)
    small, large = function(*make())
    assert small.untyped_storage().nbytes() == 16
    alive = weakref.ref(large.untyped_storage())
    del large
    assert alive() is None


def test_one_object_twice_and_two_views_of_one_storage(native):
    def body(names, x):
        out = empty(names)
        names["cpp_fused_0"](out, x)
        view = names["reinterpret_tensor"](out, (8, 8), (1, 8), 0)
        part = names["reinterpret_tensor"](out, (4,), (2,), 5)
        return (out, view, out, part, view)

    function = recorded(body, native)
    for call in (function.run, lambda inputs: function(*inputs)):
        out, view, again, part, other = call(make())
        assert again is out and other is view and part is not out
        assert len({t.untyped_storage()._cdata for t in (out, view, part)}) == 1
        assert (view.stride(), part.storage_offset(), out._version, view._version) == ((1, 8), 5, 0, 0)
    check(HandWritten(body, native=native), make)


def test_inputs_and_views_of_inputs(native):
    def body(names, x, y):
        y.mul_(2)
        return (x, names["reinterpret_tensor"](x, (4, 4), (4, 1), 8), y, y[1:], y)

    function = recorded(body, native, lambda: make() + make(), mutated_inputs=frozenset({1}))
    for _ in range(3):
        x, y = torch.randn(SIZE), torch.randn(SIZE)
        want = y * 2
        same, view, mutated, tail, again = function(x, y)
        assert same is x and mutated is y and again is y and torch.equal(y, want)
        assert view.data_ptr() == x.data_ptr() + 32 and tail.data_ptr() == y.data_ptr() + 4
        assert view.untyped_storage()._cdata == x.untyped_storage()._cdata and y._version == 1
    assert function.log.replays == 3


def test_view_of_an_input_that_is_itself_a_view(native):
    body = lambda names, x: (names["reinterpret_tensor"](x, (3,), (1,), 2), x)
    function = recorded(body, native, lambda: [torch.randn(SIZE)[16:32]])
    x = torch.randn(SIZE)[16:32]
    view, same = function(x)
    assert view.storage_offset() == 18 and same is x and torch.equal(view, x[2:5])


def test_empty_input_is_returned_as_itself(native):
    """It has no address by which it could be told from the others."""

    def body(names, x, e, f):
        f.zero_()
        return (f, x + 1, e)

    function = HandWritten(body, native=native, mutated_inputs=frozenset({2}))
    for _ in range(5):
        base = torch.randn(SIZE)
        x, e, f = base[:8], base[:0], base[:0]
        third, out, second = function(x, e, f)
        assert third is f and second is e and torch.equal(out, x + 1)
        assert base._version == 1, "the fill of nothing counts once, as in the plain call"
    assert function.log.replays == 3


def test_an_operators_output_returned_whole_and_as_a_view(native):
    def body(names, x):
        values, indices = torch.ops.aten.sort.default(x)
        whole = names["reinterpret_tensor"](values, SIZE, (1,), 0)
        return (values, whole, indices, names["reinterpret_tensor"](values, (8,), (8,), 3))

    function = recorded(body, native)
    values, whole, _, part = function(*make())
    assert values is not whole
    assert values.untyped_storage()._cdata == whole.untyped_storage()._cdata == part.untyped_storage()._cdata
    check(HandWritten(body, native=native), make)


def test_nothing_numbers_and_empty_tensors(native):
    body = lambda names, x: (None, 3, x + 1, empty(names, 0), 2.5, torch.ops.aten.empty.memory_format([0, 3]), True)
    check(HandWritten(body, native=native), make)


@pytest.mark.parametrize("kind", [tuple, list])
def test_kind_of_sequence(native, kind):
    function = recorded(lambda names, x: kind([x + 1, x]), native)
    assert type(function(*make())) is kind


def test_bare_tensor(native):
    function = recorded(lambda names, x: x + 1, native)
    x = torch.randn(SIZE)
    assert torch.equal(function(x), x + 1) and function.log.replays == 1


def test_non_dense_outputs(native):
    def body(names, x):
        gaps = names["empty_strided_cpu"]((4, 4), (9, 2), F32)
        transposed = names["empty_strided_cpu"]((8, 8), (1, 8), torch.float64)
        names["cpp_fused_0"](gaps, x)
        names["cpp_fused_0"](transposed, x)
        return (gaps, transposed, transposed[:, 3])

    check(HandWritten(body, native=native), make)


def test_bits_seen_as_another_dtype(native):
    def body(names, x):
        out = empty(names)
        names["cpp_fused_0"](out, x)
        return (torch.ops.aten.view.dtype(out, torch.int32), torch.ops.aten.view.dtype(x, torch.int16), out)

    check(HandWritten(body, native=native), make)


def sharing(values):
    """For each value, which of them a write to it is a write to, as autograd sees it."""
    groups = []
    for value in values:
        before = [other._version for other in values]
        torch.autograd.graph.increment_version(value)
        groups.append([other._version != old for other, old in zip(values, before, strict=True)])
    return groups


def of_another_dtype(names, x):
    out = empty(names)
    names["cpp_fused_0"](out, x)
    return (out, torch.ops.aten.view.dtype(out, torch.int32), torch.ops.aten.view.dtype(out, torch.uint8)[3:9])


def of_wider_elements(names, x):
    out = empty(names, 64, torch.int16)
    names["cpp_fused_0"](out, x)
    return (torch.ops.aten.view.dtype(out, torch.float64)[1:], out, names["reinterpret_tensor"](out, (8,), (2,), 1))


def of_an_allocation_that_is_not_returned(names, x):
    out = empty(names)
    names["cpp_fused_0"](out, x)
    return (out[3:], out.view(8, 8).t(), names["reinterpret_tensor"](out, (8,), (2,), 1))


def of_complex_numbers(names, x):
    spectrum = torch.ops.aten._fft_r2c.default(x, [0], 0, True)
    return (torch.ops.aten.view_as_real.default(spectrum), spectrum, spectrum[1:])


def of_an_input(names, x):
    return (x[1:], names["reinterpret_tensor"](x, (8,), (2,), 1), torch.ops.aten.view.dtype(x, torch.int16), x + 1)


def of_two_views_in_two_groups(names, x):
    out = empty(names)
    names["cpp_fused_0"](out, x)
    other = names["reinterpret_tensor"](out, (8, 8), (8, 1), 0)
    return (out, out[1:], other[1:], other[2:])


@pytest.mark.parametrize(
    "body, replays",
    [
        (of_another_dtype, 4),
        (of_wider_elements, 4),
        (of_an_allocation_that_is_not_returned, 4),
        (of_complex_numbers, 4),
        (of_an_input, 4),
        (of_two_views_in_two_groups, 0),
    ],
)
def test_views_share_their_versions_as_in_the_plain_call(native, body, replays):
    """By that, autograd notices that what it has saved was written to through another view."""
    function = HandWritten(body, native=native)
    check(function, make, replays=replays)
    for inputs in (make(), torch.randn(80)[16:].split(64)):
        got, want = function(*inputs), function.run(list(inputs))
        assert sharing([*inputs, *got]) == sharing([*inputs, *want])


def test_views_made_by_views_of_autograd_are_as_in_the_plain_call(native):
    function = recorded(lambda names, x: (x[1:], x.view(8, 8)), native)
    for call in (function.run, lambda inputs: function(*inputs)):
        assert [out.requires_grad for out in call(make())] == [False, False]


def test_outputs_reused_by_later_statements(native):
    """Generated code takes over the memory of a buffer that it does not need any more."""

    def body(names, x, y):
        out = empty(names)
        names["cpp_fused_0"](out, x)
        renamed = names["reinterpret_tensor"](out, (8, 8), (8, 1), 0)
        del out
        names["cpp_fused_0"](renamed, renamed, y)
        y_renamed = names["reinterpret_tensor"](y, (8, 8), (8, 1), 0)
        names["cpp_fused_0"](y_renamed, x)
        return (renamed, y_renamed)

    function = HandWritten(body, native=native, reused_inputs=frozenset({1}))
    check(function, lambda: make() + make())


def test_an_allocation_that_one_view_shows_as_a_whole_is_made_as_that_view(native):
    def body(names, x):
        view = names["reinterpret_tensor"]
        flattened, thinned, part, twice, cast = (empty(names) for _ in range(5))
        for out in (flattened, thinned, part, twice, cast):
            names["cpp_fused_0"](out, x)
        return (
            view(flattened, (8, 8), (8, 1), 0),
            view(thinned, (8, 2), (8, 7), 0),  # from the first element to the last
            view(part, (8, 7), (8, 1), 0),
            view(part, (2,), (1,), 62),
            view(twice, (8, 8), (1, 8), 0),
            twice,
            torch.ops.aten.view.dtype(cast, torch.int32),
        )

    function = HandWritten(body, native=native)
    check(function, make)
    (recording,) = function.recordings
    plan = recording.player.plan
    assert [entry.view is None for entry in plan.returned] == [True, True, False, False, False, True, False]
    assert {plan.slots[made.slot].layout.size for made in plan.allocations} == {SIZE}, "kernels write what they wrote"
    (inputs,) = [make()]
    got, want = function(*inputs), function.run(list(inputs))
    for one, other in zip(got, want, strict=True):
        assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes() and not one._is_view()
        assert one.storage_offset() == other.storage_offset()
    assert [one._version for one in got[:2]] == [one._version for one in want[:2]] == [0, 0]
    assert got[4].data_ptr() == got[5].data_ptr() and got[2].data_ptr() < got[3].data_ptr()


SMALL, SQUARE, HALF = Layout((4,), (1,), F32), Layout((2, 2), (2, 1), F32), Layout((2,), (1,), F32)
INTS = Layout((4,), (1,), torch.int32)


@pytest.mark.parametrize(
    "returned, expected",
    [
        ([FromAllocation(0, SQUARE, 0)], SQUARE),
        ([FromAllocation(0, SQUARE, 0), Again(0)], SQUARE),  # one object
        ([FromAllocation(0, SQUARE, 0), FromAllocation(0, None, 0)], None),
        ([FromAllocation(0, SQUARE, 0), FromAllocation(0, SQUARE, 0)], None),
        ([FromAllocation(0, HALF, 0)], None),  # its storage has four elements
        ([FromAllocation(0, HALF, 8)], None),
        ([FromAllocation(0, INTS, 0)], None),
        ([FromInput(0, SQUARE, 0)], None),
    ],
)
def test_which_allocations_are_made_as_a_view(returned, expected):
    entries, layouts = made_as_returned(returned, [SMALL])
    if expected is None:
        assert (list(entries), layouts) == (returned, (SMALL,))
    else:
        assert (list(entries), layouts) == ([FromAllocation(0, None, 0), *returned[1:]], (expected,))


def misaligned(size, stride, dtype):
    return torch.empty(size[0] + 1, dtype=dtype)[1:]


def of_another_type(size, stride, dtype):
    return torch.nn.Parameter(torch.empty_strided(size, stride, dtype=dtype))


def no_memory(size, stride, dtype):
    raise torch.OutOfMemoryError("none left")


@needs_launcher("it is what steps aside")
@pytest.mark.parametrize("trouble", [misaligned, of_another_type, no_memory])
def test_the_launcher_steps_aside_where_an_output_is_not_as_it_should_be(trouble):
    """Half of the outputs are made by then: they go, and Python answers the call."""
    driver, usual, numbers, calls = SimulatedDriver(), SimulatedDriver.empty_strided, itertools.count(), []

    def allocate(*layout):
        made = trouble(*layout) if next(numbers) % 5 == 4 else usual(*layout)
        calls.append(weakref.ref(made))
        return made

    driver.empty_strided = allocate

    def body(names, x):
        first, second, third = empty(names), empty(names), empty(names)
        for out in (first, second, third):
            names["cpp_fused_0"](out, x)
        return (first, second, third)

    function = HandWritten(body, driver)
    check(function, make, calls=8)  # the launcher's second call trips over its second output
    (recording,) = function.recordings
    served = recording.count() - recording.python_replays
    assert served > 0 and recording.python_replays > 1 and next(numbers) > 3 * served, "some were made in vain"
    gc.collect()
    assert not any(one() is not None for one in calls)


class HostNumbers(SimulatedDriver):
    """Float64 numbers are the host's."""

    def owns(self, tensor: torch.Tensor) -> bool:
        return super().owns(tensor) and tensor.dtype is not torch.float64


@pytest.mark.parametrize("viewed", [True, False])
def test_versions_of_the_callers_own_tensors_are_not_touched(viewed: bool) -> None:
    """Recording looks which views count along, but not on what no stand-in stands for."""

    def body(namespace: dict[str, Any], x: torch.Tensor, number: torch.Tensor) -> Any:
        out = namespace["empty_strided_cpu"]((8,), (1,), torch.float32)
        namespace["cpp_fused_0"](out, x)
        return out, torch.ops.aten.view.dtype(number, torch.int64) if viewed else number

    function = HandWritten(body, HostNumbers())
    number = torch.tensor(1.5, dtype=torch.float64)
    for _ in range(5):
        x = torch.randn(8)
        out, same = function(x, number)
        assert torch.equal(out, function.run([x, number])[0])
        assert same.data_ptr() == number.data_ptr()
    assert number._version == 0
    assert bool(function.recordings) is not viewed
