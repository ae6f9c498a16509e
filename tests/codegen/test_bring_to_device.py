"""Rewrites that bring host values to the device: on FX graphs with fake CUDA tensors, run with CUDA retargeted.

Where things are is asserted on the graph; what they are is compared on the CPU, bit for bit unless rounding is allowed.
"""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from pygraph_inductor.transform import apply as applying
from pygraph_inductor.transform.apply import ALL, NOTES, apply
from pygraph_inductor.transform.host_values import device_of
from pygraph_inductor.transform.same_results import name_of
from pygraph_inductor.transform.switches import Limits, turned_on

from .rewritten import CPU, Rewritten, contents, expect_on_device, host, retargeted, traced


@torch.library.custom_op("pygraph_tests_transform::looks", mutates_args=())
def looks(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    return x + host.sum().item()


@looks.register_fake
def _(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


# -- numbers


def test_numbers_come_in_one_upload(cuda):
    rewritten = Rewritten(lambda x, s, t: (x * s + t,), (4, 8), host(), host(dtype=torch.float64))
    assert rewritten.uploaded == [["s_1", "t_1"]] and rewritten.applied == {"host_scalars"}
    expect_on_device(rewritten)
    rewritten.same()


@pytest.mark.parametrize("number", [torch.int64, torch.bool, torch.float64, torch.float16])
@pytest.mark.parametrize("tensor", [torch.int32, torch.float16, torch.float32, torch.uint8])
def test_numbers_keep_their_type_next_to_others(cuda, tensor, number):
    """Stock packs numbers of all types into one tensor: an integer next to a float became a float."""
    x = {"size": (8,), "dtype": tensor}
    rewritten = Rewritten(lambda x, y, s, t: (x + s, y * t), x, (8,), host(dtype=number), host())
    assert len(rewritten.calls) == 1
    expect_on_device(rewritten)
    rewritten.same()


def test_numbers_of_an_operator_on_lists_come_in_one_upload(cuda):
    def function(a, b, s, t):
        return tuple(torch.ops.aten._foreach_mul.List([a, b], [s, t]))

    rewritten = Rewritten(function, (4,), (8,), host(), host())
    assert rewritten.uploaded == [["s_1", "t_1"]]
    for node in rewritten.module.graph.find_nodes(op="call_function", target=torch.ops.aten._foreach_mul.List):
        assert [device_of(one).type for one in node.all_input_nodes] == ["cuda"] * 4
    rewritten.same()


def test_number_that_is_also_returned_stays_on_the_host(cuda):
    rewritten = Rewritten(lambda x, s: (x * s, s + 1), (8,), host())
    assert rewritten.uploaded == [["s_1"]]
    assert rewritten.on_cpu() == ["aten.add.Tensor"]
    rewritten.same()


def test_number_for_a_custom_operator_stays(cuda):
    rewritten = Rewritten(lambda x, s: (torch.ops.pygraph_tests_transform.looks(x, s),), (8,), host())
    assert not rewritten.applied
    assert "looks.default takes a CPU tensor, and may look at it on the host" in rewritten.refused
    assert rewritten.mixed()


def test_number_written_through_a_mask_stays(cuda):
    """A number of the CPU is filled in; one of the device asks for the number of places."""
    mask = {"size": (8,), "dtype": torch.bool}
    put = torch.ops.aten.index_put.default
    rewritten = Rewritten(lambda x, m, s: (put(x, [m], s),), (8,), mask, host())
    assert not rewritten.applied
    assert rewritten.refused == "writing a number through a mask asks the host how many elements there are"


# -- tensors


def test_index_from_the_host_is_uploaded(cuda):
    rewritten = Rewritten(lambda x, i: (x.sin()[i] * 2,), (8, 8), host(3, dtype=torch.int64))
    assert rewritten.uploaded == [["i_1"]] and rewritten.applied == {"uploads"}
    expect_on_device(rewritten)
    rewritten.same()


def test_copies_are_packed_into_one(cuda):
    def function(x, i, m):
        return (x.masked_fill(m.to(x.device), 0.0)[i.to(x.device)] + x[0],)

    rewritten = Rewritten(function, (8, 8), host(3, dtype=torch.int64), host(8, 8, dtype=torch.bool))
    assert rewritten.uploaded == [["i_1", "m_1"]]
    expect_on_device(rewritten)
    rewritten.same()


def test_float_computation_of_the_host_is_uploaded_and_not_moved(cuda):
    rewritten = Rewritten(lambda x, t: (x * torch.exp(t / 3).to(x.device),), (8, 8), host(8))
    assert rewritten.on_cpu() == ["aten.div.Tensor", "aten.exp.default"]
    assert len(rewritten.calls) == 1
    expect_on_device(rewritten)
    rewritten.same()


def test_upload_comes_before_everything_on_the_device(cuda):
    """Also where the program came to it late: a copy in between would cut the graph."""
    rewritten = Rewritten(lambda x, t: ((x.sin() @ x) * torch.exp(t).to(x.device),), (8, 8), host(8))
    order = [node for node in rewritten.module.graph.nodes if node.op == "call_function"]
    first = next(number for number, node in enumerate(order) if device_of(node) not in (None, CPU))
    assert order[first].target is operator.getitem and order[first].args[0] is rewritten.calls[0]
    rewritten.same()


def test_copy_that_is_returned_has_memory_of_its_own(cuda):
    rewritten = Rewritten(lambda x, i, j: (x + i.to(x.device), j.to(x.device)), (8,), host(8), host(8))
    assert rewritten.uploaded == [["i_1"], ["j_1"]]
    rewritten.same()


def test_returned_copy_comes_before_everything_on_the_device_too(cuda):
    def function(x, i, t):
        y = x.sin() @ x
        on_device = torch.exp(t).to(x.device)
        return (y * on_device + i.to(x.device), on_device)

    rewritten = Rewritten(function, (8, 8), host(8), host(8))
    assert rewritten.uploaded == [["i_1"], ["exp"]]
    order = [node for node in rewritten.module.graph.nodes if node.op == "call_function"]
    first = next(number for number, node in enumerate(order) if name_of(node.target) == "sin")
    assert all(order.index(call) < first for call in rewritten.calls)
    rewritten.same()


def test_two_returned_copies_of_one_tensor_do_not_share_memory(cuda):
    rewritten = Rewritten(lambda x, i: (x + 1, i.to(x.device), i.unsqueeze(0).to(x.device)), (8,), host(8))
    _, one, other = rewritten.module.graph.output_node().args[0]
    assert one is not other
    assert rewritten.uploaded == [["i_1"], ["unsqueeze"]]
    rewritten.same()


def test_two_returned_copies_of_one_computation_do_not_share_memory(cuda):
    def function(x):
        numbers = torch.arange(8)
        return (x + numbers.to(x.device), numbers.to(x.device), numbers.unsqueeze(0).to(x.device))

    rewritten = Rewritten(function, (8,))
    assert len(rewritten.module.graph.find_nodes(op="call_function", target=torch.ops.prims.iota.default)) == 3
    expect_on_device(rewritten)
    rewritten.same()


def test_random_numbers_of_the_host_keep_their_order(cuda):
    def function(x):
        a = torch.rand(8)
        y = x + a.to(x.device)
        b = torch.rand(8)
        return (y * b.to(x.device), b)

    rewritten = Rewritten(function, (8,))
    drawn = [node.name for node in rewritten.module.graph.nodes if "rand" in str(node.target)]
    assert drawn == [node.name for node in rewritten.before.nodes if "rand" in str(node.target)]
    assert len(rewritten.calls) == 2
    expect_on_device(rewritten)
    rewritten.same()


def test_random_numbers_behind_a_comparison_keep_their_order_too(cuda):
    def function(x):
        a = torch.rand(8) > 0.5
        b = torch.exp(a.float())
        c = torch.rand(8)
        return (x + b.to(x.device), x * torch.rand(8).to(x.device), c)

    rewritten = Rewritten(function, (8,))
    rewritten.same()


def test_tensor_copied_into_a_part_is_uploaded(cuda):
    def function(x, v):
        y = x.clone()
        y[2:4] = v
        return (torch.slice_scatter(y, v, 0, 0, 2),)

    rewritten = Rewritten(function, (8, 8), host(2, 8))
    assert rewritten.uploaded == [["v_1"]]
    rewritten.same()


def test_boolean_index_from_the_host_stays(cuda):
    index = torch.ops.aten.index_put.default
    rewritten = Rewritten(lambda x, m, v: (index(x, [m], v),), (8,), host(8, dtype=torch.bool), ())
    assert not rewritten.applied and rewritten.mixed()
    assert rewritten.refused == "aten.index_put.default takes a CPU tensor, and may look at it on the host"


# -- arithmetic


def test_mask_from_lengths_is_computed_on_the_device(cuda):
    def function(x, lengths):
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        return (x * mask.to(x.device),)

    rewritten = Rewritten(function, (4, 8), host(4, dtype=torch.int64))
    assert rewritten.uploaded == [["lengths_1"]] and "host_arithmetic" in rewritten.applied
    assert rewritten.on_cpu() == []
    expect_on_device(rewritten)
    rewritten.same()


def test_positions_and_masks_out_of_nothing_need_no_upload(cuda):
    def function(x):
        position = torch.arange(8).unsqueeze(0)
        return (x.masked_fill((position.T >= position).to(x.device), 0.0), position.to(x.device) * 3 + 1)

    rewritten = Rewritten(function, (8, 8))
    assert rewritten.calls == [] and rewritten.on_cpu() == []
    expect_on_device(rewritten)
    rewritten.same()


def test_large_result_of_little_is_computed_and_small_result_of_much_is_uploaded(cuda):
    rewritten = Rewritten(lambda x, i: (x + i.sum(0).to(x.device),), (8,), host(4096, 8, dtype=torch.int64))
    assert rewritten.on_cpu() == ["aten.sum.dim_IntList"] and rewritten.uploaded == [["sum_1"]]
    rewritten.same()


@pytest.mark.parametrize(
    "compute",
    [
        lambda i: i // 2,
        lambda i: i % 3,
        lambda i: torch.tensor([3, 1, 2, 4, 5])[i],
        lambda i: (i.float() * 0.1).long(),
        lambda i: i.half() + 1,
        lambda i: i.sort()[0],
    ],
)
def test_what_may_differ_on_the_device_is_computed_on_the_host(cuda, compute):
    specs = ((8,), host(8, dtype=torch.int64))
    try:
        rewritten = Rewritten(lambda x, i: (x + compute(i).to(x.device),), *specs)
    except Exception as error:  # an index into a constant cannot be traced everywhere
        pytest.skip(str(error))
    assert rewritten.on_cpu() != []
    expect_on_device(rewritten)
    rewritten.same()


def test_schedule_and_table_are_computed_on_the_device(cuda):
    """Of numbers and of nothing: rounding is accepted, as Inductor's own pass accepts it."""

    def function(x, level, rate):
        table = torch.exp(torch.arange(8) * -0.3).sin()
        return (x * level.sqrt().to(x.device) + (1 - level).sqrt() / rate, x + table.to(x.device))

    rewritten = Rewritten(lambda x, a, b: function(x, a.abs(), b), (4, 8), host(), host(dtype=torch.float64))
    [uploaded] = rewritten.uploaded
    assert rewritten.on_cpu() == [] and set(uploaded) == {"a_1", "b_1"}
    expect_on_device(rewritten)
    rewritten.same(exact=False)


@pytest.mark.parametrize("decide", [lambda s: s * 0.1 > 0.5, lambda s: (s.exp() * 3).long(), lambda s: s.exp().floor()])
def test_rounding_decides_nothing(cuda, decide):
    rewritten = Rewritten(lambda x, s: (x * decide(s).to(x.device),), (8,), host())
    assert rewritten.on_cpu() != []
    expect_on_device(rewritten)
    rewritten.same()


def test_result_on_the_host_stays_on_the_host(cuda):
    rewritten = Rewritten(lambda x: (x * torch.full([], 3.0), torch.arange(3), torch.full([], 3.0)), (8,))
    _, numbers, three = rewritten.module.graph.output_node().args[0]
    assert device_of(numbers) == CPU and device_of(three) == CPU
    assert numbers.kwargs["device"] == three.kwargs["device"] == "cpu"
    rewritten.same()


# -- round trips


def test_detour_over_the_host_stays_on_the_device(cuda):
    def function(x):
        peaks = 1 + 0.5 * x.amax(0).cpu()
        return (x / peaks.to(x.device),)

    rewritten = Rewritten(function, (8, 8))
    assert rewritten.applied == {"round_trips"} and rewritten.on_cpu() == []
    expect_on_device(rewritten)
    rewritten.same(exact=False)


def test_detour_with_a_tensor_of_the_host_uploads_that(cuda):
    rewritten = Rewritten(lambda x, b: (x * (x.sum(0).cpu() + b).to(x.device),), (8, 8), host(8))
    assert rewritten.uploaded == [["b_1"]]
    expect_on_device(rewritten)
    rewritten.same(exact=False)


def test_value_seen_on_the_host_is_computed_there_as_well(cuda):
    def function(x):
        b = x.amax(0).cpu() + 1
        return (x * b.to(x.device), b)

    rewritten = Rewritten(function, (8, 8))
    assert rewritten.on_cpu() == ["prims.device_put.default", "aten.add.Tensor"]
    assert rewritten.mixed() == [] and len(rewritten.crossings()) == 1
    rewritten.same(exact=False)


@pytest.mark.parametrize("view", [lambda h: h, lambda h: h.unsqueeze(0), lambda h: h.T])
def test_bare_detour_that_is_returned_stays(cuda, view):
    """The copy has memory of its own; the compiler would make it the same memory again."""

    def function(x):
        h = x.sin()
        return (h, view(h.cpu()).to(x.device))

    rewritten = Rewritten(function, (8, 8))
    assert len(rewritten.crossings()) == 2
    assert rewritten.refused == "what is returned must not share memory with what it was a copy of"
    rewritten.same()


def test_comparison_of_what_the_device_gave_is_exact(cuda):
    rewritten = Rewritten(lambda x: (x * (x.amax(0).cpu() > 0.5).to(x.device),), (8, 8))
    expect_on_device(rewritten)
    rewritten.same()


@pytest.mark.parametrize(
    "compute",
    [
        lambda h: h * 0.1 > 0.5,
        lambda h: (h * 3).long(),
        lambda h: h.long(),
        lambda h: h.sort()[0],
        lambda h: h.half() + 1,
        lambda h: (h > 0).long() // 2,
    ],
)
def test_detour_that_rounding_could_decide_stays(cuda, compute):
    rewritten = Rewritten(lambda x: (x * compute(x.sum(0).cpu()).to(x.device),), (8, 8))
    assert not rewritten.applied
    assert "the same on the device as on the CPU" in rewritten.refused or "the CPU computes" in rewritten.refused
    assert len(rewritten.crossings()) == 2
    rewritten.same()


@pytest.mark.parametrize("device", ["xpu:0", "meta"])
def test_detour_over_a_third_device_stays(cuda, device):
    rewritten = Rewritten(lambda x: (x * x.to(device).cpu().to(x.device),), (8,))
    assert not rewritten.applied and rewritten.refused == "it comes from another device"


def test_detour_by_an_operator_that_also_converts_stays(cuda):
    rewritten = Rewritten(lambda x: (x * x.sin().to("cpu", torch.float64).to(x.device),), (8,), decomposed=False)
    assert not rewritten.applied and rewritten.refused == "it is converted on the way"
    rewritten.same()


def test_detour_whose_copy_has_other_strides_stays(cuda):
    """The copy of every other column is dense."""
    rewritten = Rewritten(lambda x: (x[:, ::2].cpu().to(x.device) + 1,), (8, 8), decomposed=False)
    assert not rewritten.applied and rewritten.refused == "the copy to the CPU has other strides"
    rewritten.same()


def test_what_the_cpu_makes_of_a_number_of_the_device_stays(cuda):
    def function(x):
        count = torch.ops.aten._local_scalar_dense.default((x > 0).sum())
        return (x * torch.full((8,), count).to(x.device),)

    rewritten = Rewritten(function, (8,))
    assert (
        not rewritten.applied and "the CPU computes aten.full.default from what the device gives" in rewritten.refused
    )
    rewritten.same()


# -- operators and copies that would not be the same


def test_number_for_an_operator_that_takes_only_those_of_the_cpu_stays(cuda):
    """An operator that asks for one shape, and makes an exception of numbers on the CPU."""
    rewritten = Rewritten(lambda x, s: (torch.ops.prims.mul.default(x, s),), (8, 8), host())
    assert not rewritten.applied and rewritten.mixed() == ["mul"]
    assert rewritten.refused == "prims.mul.default would give another dtype or layout with a device tensor"
    rewritten.same()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: (x[:, :4] * i[:, :4].to(x.device, torch.float64),),
        lambda x, i: (x[:, :4] * i[:, ::2].to(x.device),),
    ],
)
def test_copy_by_an_operator_that_also_converts_stays(cuda, function):
    rewritten = Rewritten(function, (8, 8), host(8, 8), decomposed=False)
    assert not rewritten.applied and rewritten.refused == "the copy converts, or has other strides"
    rewritten.same()


def test_view_of_a_tensor_with_gaps_is_not_computed_on_the_device(cuda):
    """What is uploaded has no gaps there, so views of it have other strides."""
    gaps = {**host(8, 4, dtype=torch.int64), "stride": (8, 2)}
    rewritten = Rewritten(lambda x, i: (x * i.T.to(x.device),), (4, 8), gaps)
    assert not rewritten.applied and len(rewritten.crossings()) == 1
    assert rewritten.refused == "aten.permute.default has another layout on the device"
    rewritten.same()


@pytest.mark.parametrize("off", ["uploads", "host_scalars"])
def test_computation_needs_what_uploads_its_arguments(cuda, off):
    size = (4,) if off == "uploads" else ()
    function = lambda x, n: (x * (torch.arange(8) < n[..., None]).to(x.device),)
    rewritten = Rewritten(function, (4, 8), host(*size, dtype=torch.int64), on=ALL - {off})
    assert not rewritten.applied and rewritten.refused == f"{off} is switched off"
    rewritten.same()


# -- computations that may raise

TABLE, WHICH = host(8), host(8, dtype=torch.int64)


@pytest.mark.parametrize(
    "compute",
    [
        lambda table, i: table[i],
        lambda table, i: table.index_select(0, i),
        lambda table, i: table.gather(0, i),
        lambda table, i: torch.nn.functional.embedding(i, table[:, None])[:, 0],
        lambda table, i: table * (6 // (i - 100)),
        lambda table, i: table + 6 % (i - 100),
    ],
)
def test_what_may_raise_is_left_to_the_cpu_and_raises(cuda, compute):
    """100 is out of range, or a division by zero; the device would answer with anything, or be lost."""
    rewritten = Rewritten(lambda x, table, i: (x * compute(table, i).to(x.device),), (8,), TABLE, WHICH)
    assert rewritten.on_cpu() != []
    expect_on_device(rewritten)
    rewritten.same()
    inputs = contents(rewritten.specs, 0)
    inputs[2][3] = 100
    for module in (fx.GraphModule(rewritten.module, rewritten.before), rewritten.module):
        with pytest.raises((IndexError, RuntimeError), match="out of|range|division by zero|ZeroDivisionError"):
            retargeted(module)(*inputs)


@pytest.mark.parametrize(
    "compute", [lambda h, i: h[i], lambda h, i: h.gather(0, i), lambda h, i: 6 // (h.long() - 100)]
)
def test_detour_that_may_raise_stays(cuda, compute):
    rewritten = Rewritten(lambda x, i: (x * compute(x.cpu(), i).to(x.device),), (8,), WHICH)
    assert not rewritten.applied and len(rewritten.crossings()) == 2
    assert "not known to give the same on the device as on the CPU" in rewritten.refused
    inputs = [torch.full((8,), 100.0), torch.tensor([0, 1, 2, 100, 4, 5, 6, 7])]
    for module in (fx.GraphModule(rewritten.module, rewritten.before), rewritten.module):
        with pytest.raises((IndexError, RuntimeError), match="out of|range|ZeroDivisionError"):
            retargeted(module)(*inputs)


@pytest.mark.parametrize("comes", [lambda x, i: i, lambda x, i: x.cpu()], ids=["from the host", "from the device"])
def test_assertion_of_the_program_is_still_made_on_the_cpu(cuda, comes):
    """What it looks at is computed there as well, beside what the device now computes for itself."""

    def function(x, i):
        h = comes(x, i)
        torch._assert_async((h < 8).all(), "too large")
        return (x * (h < 5).to(x.device),)

    rewritten = Rewritten(function, (8,), WHICH)
    assert rewritten.applied and "aten.lt.Scalar" in rewritten.on_cpu()
    rewritten.same()
    for module in (fx.GraphModule(rewritten.module, rewritten.before), rewritten.module):
        with pytest.raises(RuntimeError, match="too large"):
            retargeted(module)(torch.full((8,), 9.0), torch.full((8,), 9))


# -- switches and failures


@pytest.mark.parametrize(
    "name, function, specs",
    [
        ("uploads", lambda x, i: (x * i.to(x.device),), ((8,), host(8))),
        ("host_scalars", lambda x, s: (x * s,), ((8,), host())),
        ("host_arithmetic", lambda x: (x * (torch.arange(8) < 3).to(x.device),), ((8,),)),
        ("round_trips", lambda x: (x * x.sin().cpu().to(x.device),), ((8,),)),
    ],
)
def test_each_has_its_switch(cuda, name, function, specs):
    assert name in Rewritten(function, *specs).applied
    off = Rewritten(function, *specs, on=ALL - {name})
    assert name not in off.applied
    # What the CPU can go on computing is no refusal.
    assert off.on_cpu() if name == "host_arithmetic" else off.refused == f"{name} is switched off"


def test_failure_is_undone_and_named(cuda, monkeypatch):
    def broken(graph, switches):
        graph.erase_node(next(iter(graph.find_nodes(op="output"))))
        raise ValueError("no such luck")

    monkeypatch.setattr(applying, "_STEPS", ((broken, tuple(ALL)),))
    module = traced(lambda x, s: (x * s,), (8,), host())
    before = str(module.graph)
    [outcome] = apply(module, ALL)
    assert str(module.graph) == before and not outcome.applied and "no such luck" in outcome.what
    assert module.graph.output_node().meta[NOTES].outcomes == (outcome,)
    with pytest.raises(ValueError):
        apply(module, ALL, strict=True)


def test_graph_without_host_values_is_left_alone(cuda):
    module = traced(lambda x: (x.sin() @ x,), (8, 8))
    before = str(module.graph)
    assert apply(module, ALL) == () and str(module.graph) == before


def test_graph_on_two_devices_is_left_alone(cuda):
    other = {"size": (8,), "device": "cuda:1"}
    module = traced(lambda x, y, s: (x * s, y * s), (8,), other, host())
    before = str(module.graph)
    assert apply(module, ALL) == () and str(module.graph) == before


def layers(x, small, large):
    """As where layers are kept on the CPU and brought over one after the other."""
    x = x @ small.to(x.device)
    return ((x @ large.to(x.device)).sum(),)


LAYERS = [(8, 8), host(8, 8), host(8, 32)]  # 256 and 1024 bytes


@pytest.mark.parametrize("limit, left", [(1280, 0), (1279, 1), (256, 1), (255, 2), (0, 2)])
def test_uploads_that_do_not_fit_stay_where_they_are(cuda, limit, left):
    with turned_on(ALL, Limits(uploads=limit)):
        made = Rewritten(layers, *LAYERS)
    made.same()
    assert (
        len(made.crossings()) == left and made.uploaded == {0: [["small_1", "large_1"]], 1: [["small_1"]], 2: []}[left]
    )
    assert ("max_upload_bytes" in made.refused) == (left > 0)
    assert made.applied == ({"uploads"} if left < 2 else set())


def test_what_several_need_counts_once_and_a_copy_of_its_own_again(cuda):
    def twice(x, h):
        return (x * h.to(x.device), x + h.to(x.device), h.to(x.device))

    for limit, whole in ((64, True), (63, False)):
        with turned_on(ALL, Limits(uploads=limit)):
            made = Rewritten(twice, (8,), host(8))
        made.same()
        assert (not made.crossings()) == whole, (limit, made.module.graph)


def test_all_arguments_of_a_node_are_uploaded_or_none(cuda):
    def function(x, i, j):
        return (x[i, j] * 2,)

    indices = [host(4, dtype=torch.int64)] * 2
    for limit, uploads in ((64, 1), (63, 0)):
        with turned_on(ALL, Limits(uploads=limit)):
            made = Rewritten(function, (8, 8), *indices)
        made.same()
        assert len(made.calls) == uploads and len(made.mixed()) == 1 - uploads


def test_computation_with_one_argument_too_large_stays_on_the_cpu(cuda):
    def function(x, lengths, bias):
        return (x + (bias * (lengths[:, None] > 2)).to(x.device), x * lengths.to(x.device)[:, None])

    specs = [(4, 8), host(4, dtype=torch.int64), host(4, 8, dtype=torch.int64)]
    with turned_on(ALL, Limits(uploads=200)):
        made = Rewritten(function, *specs)
    made.same()
    assert made.uploaded == [["lengths_1"]] and len(made.crossings()) == 1
    assert "max_upload_bytes" in made.refused
