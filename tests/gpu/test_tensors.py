"""Tensors of every kind as inputs and outputs of replayed calls: memory, dtypes, layouts, alignment.

What the caller sees (values, strides, identity, sharing, version counters) is compared by `agree`. What autograd sees
is in `test_autograd.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.comparing import DEVICE, Counting, agree, compiled, same_bits


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def randn(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE, dtype=dtype)


# Changes in place


def test_input_changed_in_place_is_the_callers_tensor() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y = x @ w
        x.mul_(0.5)
        return y

    agree(compiled(function), lambda _: (randn(32, 32), randn(32, 32)))


def test_part_of_an_input_is_changed_in_place() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[4:8].copy_(y)
        x[:, 0].zero_()
        return x.sum(0)

    agree(compiled(function), lambda _: (randn(16, 32), randn(4, 32)))


def test_integer_counter_changed_in_place_advances_once_per_call() -> None:
    counter = torch.zeros((), dtype=torch.int64, device=DEVICE)

    def function(x: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        return x * counter

    call = compiled(function)
    agree(call, lambda _: (randn(8, 8),), state=[counter])
    before = counter.item()
    for _ in range(5):
        call(randn(8, 8))
    assert counter.item() == before + 5


def test_changed_input_is_returned_as_itself_and_as_a_view() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(1)
        return x, x[2:], x * 2

    agree(compiled(function), lambda _: (randn(8, 16),))


# Views and identity


def test_view_of_an_input_comes_back_as_a_view_of_it() -> None:
    agree(compiled(lambda x: (x.view(-1), x.t(), x[1:, ::2], x + 1)), lambda _: (randn(16, 32),))


def test_input_comes_back_as_the_very_object() -> None:
    call = compiled(lambda x, y: (x, y + 1, x))
    agree(call, lambda _: (randn(16), randn(16)))
    x = randn(16)
    assert call(x, randn(16))[0] is x


def test_output_returned_twice_is_one_tensor() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y, y.view(-1)

    agree(compiled(function), lambda _: (randn(16, 16),))


def test_outputs_that_share_one_buffer_share_it_in_the_replay() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ w
        return y[:4], y[4:], y.t()

    agree(compiled(function), lambda _: (randn(16, 16), randn(16, 16)))


def test_two_inputs_of_one_storage() -> None:
    def make(_: int) -> tuple[torch.Tensor, ...]:
        store = randn(256)
        return store[:128].view(8, 16), store[128:].view(16, 8)

    agree(compiled(lambda a, b: (a @ b, a * 2, b.sum())), make)


def test_inputs_that_overlap_in_one_call_and_not_in_the_next() -> None:
    def make(number: int) -> tuple[torch.Tensor, ...]:
        store = randn(512)
        shift = (0, 64, 256)[number % 3]
        return store[:256], store[shift : shift + 256]

    agree(compiled(lambda a, b: (a * 2 + b, b.cumsum(0))), make, calls=12)


def test_overlap_with_a_changed_input_is_seen() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + b

    def make(number: int) -> tuple[torch.Tensor, ...]:
        store = randn(512)
        shift = (256, 256, 256, 256, 64, 256, 64, 64, 64, 256)[number]
        return store[:128], store[shift : shift + 128]

    agree(compiled(function), make, calls=10)


def test_one_tensor_given_twice() -> None:
    def make(number: int) -> tuple[torch.Tensor, ...]:
        x = randn(32, 32)
        return (x, x) if number % 2 else (x, randn(32, 32))

    agree(compiled(lambda a, b: a @ b + 1), make, calls=10)


def test_output_is_the_next_calls_input() -> None:
    call = compiled(lambda x: x.relu() * 1.5 + 0.25)
    agree(lambda x: call(call(call(x))), lambda _: (randn(64, 64),), replays=9)


def test_memory_of_a_dropped_input_comes_back_as_an_output() -> None:
    """The allocator hands the block of the last input to the next output: addresses swap roles on every call."""
    call, counting = compiled(lambda x: x * 2 + 1), Counting()
    x = torch.ones(4096, device=DEVICE)
    expected = 1.0
    for _ in range(12):
        x, expected = call(x), expected * 2 + 1
        assert x.unique().tolist() == [expected]
    counting.expect(replays=9)


def test_the_same_tensors_with_other_contents() -> None:
    x, w = randn(32, 32), randn(32, 32)

    def make(_: int) -> tuple[torch.Tensor, ...]:
        return (x.normal_(),)

    agree(compiled(lambda x: (x @ w, x.sum())), make)


def test_output_survives_every_later_call() -> None:
    call, counting = compiled(lambda x: (x * 2, x @ x)), Counting()
    kept = []
    for _ in range(12):
        x = randn(16, 16)
        outputs = call(x)
        kept.append((outputs, [x * 2, outputs[1].clone()]))
        for earlier, values in kept:
            assert all(same_bits(one, value) for one, value in zip(earlier, values, strict=True))
    counting.expect(replays=9)


# Sizes


def test_empty_tensors_pass_through() -> None:
    def function(x: torch.Tensor, none: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[:0] * 2, torch.cat([none, x]) + 1, none.sum() + x.sum(), none * 2

    agree(compiled(function), lambda _: (randn(16, 4), torch.empty(0, 4, device=DEVICE)))


def test_only_empty_tensors() -> None:
    make = lambda _: (torch.empty(0, 4, device=DEVICE),)
    agree(compiled(lambda x: (x * 2, x @ x.t(), x.sum(0))), make, replays=0, every=False)


def test_tensors_of_one_element_and_no_dimension() -> None:
    call = compiled(lambda x, s: (x * s, s + 1, s.expand(4), x.sum()))
    agree(call, lambda number: (randn(16, 16), torch.tensor(0.5 * number, device=DEVICE)))


def test_shapes_alternate() -> None:
    call = compiled(lambda x, w: (x @ w).relu(), dynamic=True)
    make = lambda number: (randn((8, 24, 40)[number % 3], 16), randn(16, 16))
    agree(call, make, calls=12)


# Dtypes


def integers(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randint(0, 100, (64, 33), device=DEVICE).to(dtype) for _ in range(2))


def reals(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return randn(32, 32).to(dtype), randn(32, 32).to(dtype)


def arithmetic(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * y + 1, x - y, x.t()


def logic(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x & ~y, x | y, x.any(0)


def products(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x @ y, x * y + 1, x.abs()


def through_float(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.float() * 2 + y.float()).to(x.dtype), x.float().sum(-1)


DTYPES: list[tuple[torch.dtype, Callable[..., Any], Callable[[torch.dtype], tuple[torch.Tensor, ...]]]] = [
    (torch.bool, logic, lambda _: tuple(randn(64, 33) > 0 for _ in range(2))),
    (torch.uint8, arithmetic, integers),
    (torch.int8, arithmetic, integers),
    (torch.int16, arithmetic, integers),
    (torch.int32, arithmetic, integers),
    (torch.int64, arithmetic, integers),
    (torch.float8_e4m3fn, through_float, reals),
    (torch.float8_e5m2, through_float, reals),
    (torch.float16, products, reals),
    (torch.bfloat16, products, reals),
    (torch.float64, products, reals),
    (torch.complex64, products, lambda dtype: (randn(32, 32, dtype=dtype), randn(32, 32, dtype=dtype))),
]


@pytest.mark.parametrize(("dtype", "function", "make"), DTYPES, ids=lambda value: str(value).split(".")[-1][:16])
def test_dtype(dtype: torch.dtype, function: Callable[..., Any], make: Callable[..., Any]) -> None:
    agree(compiled(lambda *args: function(*args)), lambda _: make(dtype))


# Layouts


def test_strides_that_are_not_dense() -> None:
    def make(_: int) -> tuple[torch.Tensor, ...]:
        return randn(32, 64)[:, ::2], randn(64, 32).t()[:, 8:40], randn(1, 32).expand(32, 32)

    agree(compiled(lambda a, b, c: (a @ b + c, a * 2, (a + c).t())), make)


def test_outputs_that_are_not_dense() -> None:
    call = compiled(lambda x: ((x + 1).t(), (x * 2)[::2, 1::3], (x * 3).sum(0).expand(8, -1)))
    agree(call, lambda _: (randn(16, 32),))


def test_overlapping_windows_of_one_signal() -> None:
    """Inductor refuses graphs for such inputs until torch 2.12, so the call may be plain there; never wrong."""
    call = compiled(lambda windows: windows.sum(-1) * 2)
    agree(call, lambda _: (randn(64).unfold(0, 8, 2),), replays=0, every=False)


def test_channels_last() -> None:
    weight = randn(16, 8, 3, 3)

    def make(_: int) -> tuple[torch.Tensor, ...]:
        return (randn(4, 8, 16, 16).to(memory_format=torch.channels_last),)

    agree(compiled(lambda x: (F.conv2d(x, weight, padding=1).relu(), x + 1)), make)


# Alignment


def test_views_at_any_offset() -> None:
    """Kernels are specialised for 16-byte alignment: a view that is less aligned is staged for that call."""
    base, other = randn(1100), randn(1100)
    offsets = [(0, 0), (0, 0), (0, 0), (1, 0), (3, 2), (4, 4), (0, 7), (5, 1), (0, 0), (2, 2)]

    def make(number: int) -> tuple[torch.Tensor, ...]:
        (left, right), whole = offsets[number], (base.normal_().clone(), other.normal_().clone())
        return whole[0][left : left + 1024], whole[1][right : right + 1024]

    call = compiled(lambda x, y: ((x.relu() * 2 + y).cumsum(0), x @ y))
    agree(call, make, calls=len(offsets))


def test_rows_are_read_where_they_are() -> None:
    """Triton kernels want multiples of 16 bytes; only libraries may choose by more."""
    rows = randn(64, 12)  # of 48 bytes
    call, counting = compiled(lambda row: (row.sin() * 2 + row, row.sum())), Counting()
    agree(call, lambda number: (rows.normal_()[number],), calls=40)
    [function] = counting.functions
    assert [one.staged for one in function.recordings] == [0], counting
    counting.expect(replays=20)


def test_code_that_was_compiled_for_any_address_gets_no_copies() -> None:
    """Whatever the first call has: here the code is compiled for a view, and then replayed for aligned tensors, too."""
    rows = randn(64, 11)  # of 44 bytes
    call, counting = compiled(lambda row: (row.sin() * 2 + row, row.sum())), Counting()
    agree(call, lambda number: (rows.normal_()[number + 1],), calls=40)
    [function] = counting.functions
    assert [one.staged for one in function.recordings] == [0], counting
    counting.expect(replays=20)


@pytest.mark.parametrize("which", ["gradient", "saved"])
def test_a_backward_that_was_compiled_for_aligned_tensors_never_gets_another(which: str) -> None:
    """Not even in its first calls, which are plain: neither a gradient that is a view of a tensor, nor what the forward
    has saved, which is its caller's tensor.
    """
    offsets = (0, 1, 2, 3, 0, 1, 5, 4, 2)

    def make(number: int) -> tuple[torch.Tensor, ...]:
        view, whole = randn(1100)[offsets[number] + (which == "gradient") :][:1024], randn(1024)
        return (whole, view) if which == "gradient" else (view, whole)

    def step(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x.requires_grad_()
            (found,) = torch.autograd.grad(call(x), x, gradient)
        return found

    call = compiled(lambda x: (x.sin() * x).exp())
    agree(step, make, calls=len(offsets))


def test_misaligned_input_changed_in_place() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    def make(number: int) -> tuple[torch.Tensor, ...]:
        offset = (0, 0, 0, 1, 2, 0, 3)[number]
        return randn(1100)[offset : offset + 1024], randn(1024)

    agree(compiled(function), make, calls=7)


def test_element_aligned_views_of_small_dtypes() -> None:
    def make(number: int) -> tuple[torch.Tensor, ...]:
        return tuple(randn(600).to(torch.bfloat16)[n : n + 512].view(16, 32) for n in (number % 3, 0))

    agree(compiled(lambda a, b: (a @ b.t(), a.float() + 1)), make, calls=9)


# Parameters and other modes


def test_parameter_whose_storage_moved_is_another_address_and_not_another_recording() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32)).to(DEVICE).eval()
    call, earlier = compiled(model), []

    def step(x: torch.Tensor, *contents: torch.Tensor) -> torch.Tensor:
        for parameter, content in zip(model.parameters(), contents, strict=True):
            earlier.append(parameter.data)  # never give an address back
            parameter.data = content.clone()
        return call(x)

    counting = agree(
        step, lambda _: (randn(4, 32), *(torch.randn_like(p) for p in model.parameters())), calls=8
    ).counting
    assert counting.recordings == len(counting.functions), f"re-recorded; {counting}"


def test_parameter_changed_in_place_is_read_again() -> None:
    model = torch.nn.Linear(32, 32).to(DEVICE).eval()
    call = compiled(model)

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        model.weight.copy_(weight)
        return call(x)

    agree(step, lambda _: (randn(4, 32), randn(32, 32)))


def test_inference_mode() -> None:
    call = compiled(lambda x, w: (x @ w).relu())
    with torch.inference_mode():
        agree(call, lambda _: (randn(32, 32), randn(32, 32)))


def test_constant_of_the_model_is_returned() -> None:
    table = randn(8, 8)
    agree(compiled(lambda x: (table, x @ table)), lambda _: (randn(8, 8),))


def test_numbers_and_nothing_among_the_results() -> None:
    agree(compiled(lambda x: (x * 2, None, 3, x.shape[0])), lambda _: (randn(8, 8),))
