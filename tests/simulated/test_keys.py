"""What is part of a recording's key, what a replay follows, and what makes a call plain."""

from __future__ import annotations

import math
import random

import pytest
import torch

from pygraph_inductor.settings import Settings
from tests.launching import IN_C
from tests.simulated.hand_written import F32, HandWritten, check, same_bits


def scaled(names, x, factor):
    out = names["empty_strided_cpu"](tuple(x.size()), tuple(x.stride()), x.dtype)
    torch.mul(x, factor, out=out)
    return (out,)


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request):
    return request.param


def test_first_call_is_plain_second_records_third_replays(native):
    function = HandWritten(scaled, native=native)
    counts = []
    for _ in range(4):
        function(torch.randn(3), 2)
        counts.append((function.log.plain_calls, len(function.recordings), function.log.replays))
    assert counts == [(1, 0, 0), (2, 1, 0), (2, 1, 1), (2, 1, 2)]


@pytest.mark.parametrize("values", [(2, 3), (2.0, 3.0), (2, 2.0), (0.0, -0.0), (1, True), (math.inf, math.nan)])
def test_numbers_are_part_of_the_key(native, values):
    function = HandWritten(scaled, native=native)
    x = torch.randn(4)
    for _ in range(4):
        for value in values:
            assert same_bits(function(x, value)[0], torch.mul(x, value))
    assert function.log.replays == 4 and len(function.recordings) == 2


def test_nan_is_itself(native):
    function = HandWritten(scaled, native=native)
    for _ in range(5):
        assert function(torch.randn(4), float("nan"))[0].isnan().all()
    assert function.log.replays == 3


@pytest.mark.parametrize(
    "other",
    [
        torch.randn(5),
        torch.randn(4, dtype=torch.float64),
        torch.randn(8)[::2],
        torch.randn(1, 4),
        torch.randn(()),
        torch.randn(0),
        torch.randn(1).expand(4),
    ],
    ids=["size", "dtype", "stride", "rank", "zero-dim", "empty", "expanded"],
)
def test_layout_is_part_of_the_key(native, other):
    def body(names, x):
        return (x * 2, x + x.numel())

    function = HandWritten(body, native=native)
    for _ in range(4):
        for x in (torch.randn(4), other):
            assert all(map(same_bits, function(x), body(None, x)))
    assert len(function.recordings) == 2 and function.log.replays == 4


def test_none_is_part_of_the_key(native):
    function = HandWritten(lambda names, x, y: (x + 1 if y is None else x + y,), native=native)
    for _ in range(4):
        x, y = torch.randn(3), torch.randn(3)
        assert torch.equal(function(x, None)[0], x + 1) and torch.equal(function(x, y)[0], x + y)
    assert function.log.replays == 4


def test_zero_dim_tensors_are_followed_not_baked_in(native):
    function = HandWritten(lambda names, x, s: (x * s,), native=native)
    for _ in range(5):
        x, s = torch.randn(3), torch.randn(())
        assert torch.equal(function(x, s)[0], x * s)
    assert function.log.replays == 3 and len(function.recordings) == 1


def test_generators_are_followed_as_the_plain_call_does(native):
    generator = torch.Generator()
    function = HandWritten(lambda names, x, g: (x + torch.rand(4, generator=g),), native=native)
    for number in range(6):
        x = torch.randn(4)
        generator.manual_seed(number)
        want = x + torch.rand(4, generator=generator)
        after = generator.get_state()
        generator.manual_seed(number)
        assert torch.equal(function(x, generator)[0], want) and torch.equal(generator.get_state(), after)
    assert function.log.replays == 4


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "a str"),
        (1j, "a complex"),
        (torch.randn(3).to_sparse(), "sparse"),
        (torch.randn(3, device="meta"), "on meta"),
        (torch.randn(3, dtype=torch.complex64).conj(), "conjugated"),
    ],
    ids=["str", "complex", "sparse", "device", "conjugate"],
)
def test_inputs_that_are_nothing_known_make_the_call_plain(native, value, reason):
    function = HandWritten(lambda names, x, y: (x + 1,), native=native)
    for _ in range(3):
        assert len(function(torch.randn(3), value)) == 1
    assert function.log.replays == 0 and reason in function.log.reasons[0]


def test_lazily_conjugated_input_is_not_taken_for_a_plain_one(native):
    function = HandWritten(lambda names, x: (x * 2,), native=native)
    for _ in range(3):
        x = torch.randn(4, dtype=torch.complex64)
        assert torch.equal(function(x)[0], x * 2)
    assert torch.equal(function(x.conj())[0], x.conj() * 2)
    assert function.log.replays == 1


def test_lazily_negated_input_is_not_taken_for_a_plain_one(native):
    function = HandWritten(lambda names, x: (x * 2,), native=native)
    for _ in range(3):
        x = torch.randn(8)[::2]
        assert torch.equal(function(x)[0], x * 2)
    x = torch.randn(4, dtype=torch.complex64).conj().imag
    assert x.is_neg() and torch.equal(function(x)[0], x * 2)


def test_subclasses_make_the_call_plain(native):
    class Mine(torch.Tensor):
        pass

    function = HandWritten(lambda names, x: (x + 1,), native=native)
    for _ in range(4):
        function(torch.randn(3))
    function(torch.randn(3).as_subclass(Mine))
    assert function.log.replays == 2 and "a Mine" in function.log.reasons[0]


def test_parameters_are_tensors(native):
    function = HandWritten(lambda names, x, w: (x + w,), native=native, static_inputs=frozenset({1}))
    weight = torch.nn.Parameter(torch.randn(3))
    for number in range(6):
        if number == 4:
            weight.data = torch.randn(3)
        x = torch.randn(3)
        assert torch.equal(function(x, weight)[0], (x + weight).detach())
    assert function.log.replays == 4 and function.recordings[0].log.slots == {"patch": 2, "static": 1}


def test_the_wrong_number_of_inputs_is_the_functions_own_error(native):
    function = HandWritten(lambda names, x: (x + 1,), native=native)
    for _ in range(4):
        function(torch.randn(3))
    with pytest.raises(TypeError):
        function(torch.randn(3), torch.randn(3))


def test_calls_while_somebody_captures_are_plain(native, driver):
    inner = HandWritten(lambda names, x: (x + 1,), driver, "inner", native=native)
    for _ in range(4):
        inner(torch.randn(3))
    x, seen = torch.randn(3), []
    graph, (out,) = driver.capture(lambda: seen.append(inner(x)[0]) or seen, driver.new_pool(), {})
    graph.instantiate()
    graph.replay()
    assert torch.equal(out, x + 1) and inner.log.replays == 2
    assert "captured by somebody else" in inner.log.reasons[0]


def test_function_called_by_another_ones_node_is_plain_there(driver):
    inner = HandWritten(lambda names, x: (x + 1,), driver, "inner")
    for _ in range(4):
        inner(torch.zeros(3))

    def body(names, x):
        out = names["empty_strided_cpu"]((3,), (1,), F32)
        names["cpp_fused_1"](out, x)
        return (out,)

    outer = HandWritten(body, driver, "outer")
    outer.namespace["cpp_fused_1"] = lambda out, x: out.copy_(inner(x)[0])
    check(outer, lambda: [torch.randn(3)])


def test_misaligned_inputs_are_staged_and_written_back(native):
    def body(names, x):
        names["cpp_fused_0"](x, x)
        return (x + 1,)

    function = HandWritten(body, native=native, mutated_inputs=frozenset({0}))
    for offset in (0, 0, 0, 1, 16, 5):
        base = torch.randn(64)
        copy = base.clone()
        (want,) = function.run([copy[offset : offset + 8]])
        (got,) = function(base[offset : offset + 8])
        assert torch.equal(got, want) and torch.equal(base, copy)
    assert function.log.replays == 4 and function.recordings[0].player.staged == 2


@pytest.mark.parametrize("engine", ["patch", "copy"])
def test_staged_inputs_have_what_lies_between_their_elements(native, engine):
    """`as_strided` of an input is compiled to reads of its memory, and may show it."""

    def body(names, x):
        out = names["empty_strided_cpu"]((7, 10), (10, 1), F32)
        names["cpp_fused_0"](out, names["reinterpret_tensor"](x, (7, 10), (10, 1), 0))
        return (out,)

    function = HandWritten(body, native=native, settings=Settings(engine=engine))
    for offset in (0, 0, 0, 16, 1, 5, 3):
        x = torch.randn(96)[offset : offset + 80].view(8, 10)[:, :5]
        assert same_bits(function(x)[0], function.run([x])[0])
    assert function.log.replays == 5 and function.recordings[0].player.staged >= 3


@pytest.mark.parametrize("begin", [0, 1])
def test_staged_inputs_do_not_bring_back_what_lies_between_their_elements(native, begin):
    """It may be somebody else's, who has written to it since."""

    def body(names, x):
        names["cpp_fused_0"](x, x)
        return ()

    function = HandWritten(body, native=native, mutated_inputs=frozenset({0}))
    for offset in (0, 0, 0, begin, begin):
        base = torch.randn(96)
        copy = base.clone()
        x, wanted = (one[offset : offset + 80].view(8, 10)[:, :5] for one in (base, copy))
        function.run([wanted])
        function(x)
        assert torch.equal(base, copy)
    assert function.log.replays == 3


TRITON = dict(triton_kernels=frozenset({"cpp_fused_0"}))


def staged_at(function, offsets):
    """How many of the calls with a view at this many elements behind the start of its memory were staged."""
    for offset in offsets:
        base = torch.randn(64)
        copy = base.clone()
        want = function.run([copy[offset : offset + 8]])
        got = function(base[offset : offset + 8])
        assert all(map(torch.equal, got, want)) and torch.equal(base, copy)
    (recording,) = function.recordings
    return recording.player.staged


def test_generated_kernels_want_multiples_of_16_bytes_and_no_more(native):
    def body(names, x):
        out = names["empty_strided_cpu"]((8,), (1,), F32)
        names["cpp_fused_0"](out, x)
        names["cpp_fused_0"](x, x)
        return (out,)

    facts = dict(mutated_inputs=frozenset({0}), native=native)
    offsets = (0, 0, 0, 4, 12, 52, 1, 0, 6)
    ours = HandWritten(body, **facts, **TRITON)
    assert staged_at(ours, offsets) == 2
    assert ours.log.replays == 7 and ours.recordings[0].python_replays <= (2 if native and IN_C else 7)
    assert staged_at(HandWritten(body, **facts), offsets) == 5  # who knows what a library does


def test_recorded_at_some_multiple_of_16_bytes(native):
    def body(names, x):
        out = names["empty_strided_cpu"]((8,), (1,), F32)
        names["cpp_fused_0"](out, x)
        return (out,)

    assert staged_at(HandWritten(body, native=native, **TRITON), (4, 4, 4, 0, 28, 16, 5, 4)) == 1
    assert staged_at(HandWritten(body, native=native, **TRITON), (5, 5, 5, 9, 1, 4, 5)) == 1  # 4 bytes behind, always


def test_generated_kernels_that_were_compiled_for_any_address_want_none(native):
    """As long as they only read: what else is compiled for the memory that they write, nobody says."""

    def body(names, x):
        out = names["empty_strided_cpu"]((8,), (1,), F32)
        names["cpp_fused_0"](out, x)
        return (out,)

    anywhere = dict(anywhere_inputs=frozenset({0}), native=native, **TRITON)
    offsets = (1, 1, 1, 0, 4, 7, 2, 51)
    ours = HandWritten(body, **anywhere)
    assert staged_at(ours, offsets) == 0
    assert ours.log.replays == 6 and (ours.recordings[0].python_replays == 0) is (native and IN_C)
    assert staged_at(HandWritten(body, **{**anywhere, "anywhere_inputs": frozenset({1})}), offsets) == 5
    written = HandWritten(body, **anywhere, mutated_inputs=frozenset({0}))
    assert staged_at(written, offsets) == 5


def test_one_library_kernel_is_enough_to_want_more_whatever_the_others_were_compiled_for(native):
    def body(names, x):
        out = names["empty_strided_cpu"]((8,), (1,), F32)
        names["cpp_fused_0"](out, x)
        return (out, torch.ops.aten.mul.Tensor(x, 2))

    assert staged_at(HandWritten(body, native=native, anywhere_inputs=frozenset({0}), **TRITON), (0, 0, 0, 4, 0)) == 1


def test_one_library_kernel_is_enough_to_want_more(native):
    def body(names, x):
        out = names["empty_strided_cpu"]((8,), (1,), F32)
        names["cpp_fused_0"](out, x)
        return (out, torch.ops.aten.mul.Tensor(x, 2))

    assert staged_at(HandWritten(body, native=native, **TRITON), (0, 0, 0, 4, 12, 0)) == 2


@pytest.mark.parametrize("begin", [4, 1])
def test_a_view_that_a_library_is_given_counts_for_the_whole_tensor(native, begin):
    def body(names, x):
        out = names["empty_strided_cpu"]((8,), (1,), F32)
        names["cpp_fused_0"](out, x)
        return (out, torch.ops.aten.mul.Tensor(names["reinterpret_tensor"](x, (4,), (1,), begin), 2))

    assert staged_at(HandWritten(body, native=native, **TRITON), (0, 0, 0, 4, 12, 16, 0)) == 2


@pytest.mark.parametrize(("engine", "staged"), [("patch", 1), ("indirect", 1), ("copy", 3)])
def test_engines_want_what_their_nodes_want(native, engine, staged):
    """Twins are Triton kernels, and what writes their table only passes addresses on; copies are the driver's."""

    def body(names, x):
        out = names["empty_strided_cpu"]((8,), (1,), F32)
        names["cpp_fused_0"](out, x, x)
        names["cpp_fused_0"](x, names["reinterpret_tensor"](x, (4,), (1,), 4), out)
        return (out,)

    facts = dict(mutated_inputs=frozenset({0}), settings=Settings(engine=engine))
    function = HandWritten(body, native=native, **facts, **TRITON)
    assert staged_at(function, (4, 4, 4, 0, 12, 20, 5)) == staged
    assert engine in function.recordings[0].log.slots


def test_launcher_and_player_agree_about_every_address():
    """Whatever reads a tensor: the launcher in C takes just the calls of which the player stages nothing."""

    def body(names, ours, both, library, nobodys):
        out = names["empty_strided_cpu"]((8,), (1,), F32)
        names["cpp_fused_0"](out, ours, both)
        return (out, torch.ops.aten.add.Tensor(both, library))

    chance = random.Random(0)
    recorded = [chance.choice((0, 4, 12)) for _ in range(4)]
    function = HandWritten(body, **TRITON)
    multiples = (4, 16, 16, 1)  # in elements
    for number in range(200):
        begins = recorded if number < 3 else [begin + chance.choice((0, 0, 0, 1, 4, 8, 16)) for begin in recorded]
        inputs = [torch.randn(64)[begin : begin + 8] for begin in begins]
        want = function.run(list(inputs))
        before = (function.recordings[0].player.staged, function.recordings[0].python_replays) if number > 2 else (0, 0)
        assert all(map(torch.equal, function(*inputs), want))
        if number > 2:
            (recording,) = function.recordings
            moved = sum((a - b) % m != 0 for a, b, m in zip(begins, recorded, multiples, strict=True))
            by_python = bool(moved) or not IN_C
            assert (recording.player.staged, recording.python_replays) == (before[0] + moved, before[1] + by_python)


def test_rows_that_share_memory_and_are_written(native):
    """No copy of one of them may come between the others, wherever they are."""

    def body(names, x, y):
        names["cpp_fused_0"](x, x, y)
        names["cpp_fused_0"](y, x)
        return ()

    function = HandWritten(body, native=native, mutated_inputs=frozenset({0, 1}), **TRITON)
    for offset in (0, 4, 5, 16) * 4:
        base = torch.randn(64)
        copy = base.clone()
        function.run([copy[offset : offset + 8], copy[offset + 2 : offset + 10]])
        function(base[offset : offset + 8], base[offset + 2 : offset + 10])
        assert torch.equal(base, copy)
    assert function.log.replays


def test_writes_that_show_late_retire_what_was_recorded_before(native):
    """A fill with zeros that finds zeros shows nothing: the recording takes the input as read only."""

    def body(names, x, number):
        x.zero_()
        return (x + number,)

    function = HandWritten(body, native=native)
    for _ in range(3):
        function(torch.zeros(8), 1)
    assert len(function.recordings) == 1
    for _ in range(2):
        function(torch.randn(8), 2)
    assert function.log.retired == 1
    for _ in range(3):
        misaligned = torch.randn(9)[1:]
        function(misaligned, 1)
        assert not misaligned.any()


def test_misaligned_when_recorded(native):
    function = HandWritten(lambda names, x: (x * 2,), native=native)
    for offset in (3, 3, 3, 0, 3):
        x = torch.randn(64)[offset : offset + 8]
        assert torch.equal(function(x)[0], x * 2)
    assert function.log.replays == 3 and function.recordings[0].player.staged == 1


def test_inputs_that_kernels_want_aligned_are_copied_when_they_are_not(native):
    """`checked_inputs` of code that was compiled for aligned tensors."""

    def body(names, x):
        assert x.data_ptr() % 16 == 0
        x.add_(1)
        return (x * 2, x)

    facts = dict(mutated_inputs=frozenset({0}), checked_inputs=lambda inputs: [0])
    function = HandWritten(body, native=native, **facts)
    for offset in (1, 1, 1, 0, 2):
        x = torch.randn(64)[offset : offset + 8]
        want = x + 1
        got, same = function(x)
        assert torch.equal(got, want * 2) and torch.equal(x, want) and same is x
    assert function.log.replays == 3


def test_copy_engine_gives_the_same(native):
    def body(names, x, y):
        y.add_(1)
        values, indices = torch.ops.aten.sort.default(x)
        return (values, indices, y, x[1:])

    make = lambda: [torch.randn(8), torch.randn(8)]
    function = HandWritten(body, native=native, mutated_inputs=frozenset({1}), settings=Settings(engine="copy"))
    check(function, make)
    assert set(function.recordings[0].log.slots) == {"copy"}


def test_inference_mode_and_back(native):
    def body(names, x, y):
        y.mul_(2)
        return (x + y,)

    function = HandWritten(body, native=native, mutated_inputs=frozenset({1}))
    for inference in (True, True, True, False, False, True):
        with torch.inference_mode(inference):
            x, y = torch.randn(4), torch.randn(4)
            want = x + y * 2
            (got,) = function(x, y)
        assert torch.equal(got, want) and got.is_inference() == inference
        if not inference:
            assert y._version == 1
    assert function.log.replays == 4


def test_options_about_dynamic_shapes_are_kept(native):
    function = HandWritten(scaled, native=native, capture_sizes=(2, 4))
    for _ in range(4):
        for value in (2, 3):
            function(torch.randn(3), value)
    assert function.log.replays == 2 and len(function.recordings) == 1
    function = HandWritten(scaled, native=native, skip_dynamic=True)
    for _ in range(4):
        function(torch.randn(3), 2)
        function(torch.randn(3), 2.0)
    assert function.log.replays == 2
