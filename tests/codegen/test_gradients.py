"""Gradients that Inductor would return channels-last come in the layout of their parameters, at no further kernel."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import pygraph_inductor
from pygraph_inductor import config
from pygraph_inductor.codegen import gradients, registration
from pygraph_inductor.codegen.graph_pass import GraphPass
from pygraph_inductor.seams import compilation, compile_fx
from pygraph_inductor.transform.gradients import Layout, changes, layouts_of, wanted_of

from .fake_cuda import Generated, generate

HALF = torch.bfloat16
CHANNELS_LAST = (144, 1, 48, 16)
CONTIGUOUS = (144, 9, 3, 1)


def convolutions(x, first, scale, small, large, linear):  # in the order of their use, as Dynamo hands them on
    y = F.conv2d(x.to(HALF), first.to(HALF), None, 2, 3)
    y = F.batch_norm(y, None, None, scale, None, True).relu()
    y = F.conv2d(y, small.to(HALF))
    y = F.conv2d(y, large.to(HALF), None, 1, 1).relu()
    return F.linear(y.float().mean((2, 3)).to(HALF), linear.to(HALF)).float().sum()


def tensor(*size: int, gradient: bool = True) -> torch.Tensor:
    return torch.randn(size, requires_grad=gradient)


@functools.cache
def inputs() -> tuple[torch.Tensor, ...]:
    sizes = [(16, 3, 7, 7), (16,), (16, 16, 1, 1), (16, 16, 3, 3), (10, 16)]
    return (tensor(2, 3, 64, 64, gradient=False), *(tensor(*size) for size in sizes))


def graphs(function: Any, *values: Any, **options: Any) -> list[tuple[Any, ...]]:
    """What Inductor is given of a training step on the CPU: per graph the module, its inputs and its options."""
    import torch._functorch.config as functorch_config
    from functorch.compile import make_boxed_func
    from torch._inductor.compile_fx import compile_fx as entry

    given: list[tuple[Any, ...]] = []

    def inner(module: fx.GraphModule, examples: Any, **kwargs: Any) -> Any:
        given.append((module, examples, kwargs))
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    backend = functools.partial(entry, inner_compile=inner)
    with functorch_config.patch(enable_autograd_cache=False):
        torch.compile(function, backend=backend, **options)(*values).sum().backward()
    return given


@functools.cache
def backward() -> tuple[fx.GraphModule, list[Any]]:
    [_, (module, examples, kwargs)] = graphs(convolutions, *inputs())
    assert kwargs["is_backward"]
    for node in module.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.update_kwarg("device", torch.device("cuda:0"))
    return module, examples


def spec(value: Any) -> Any:
    """An input of the backward on the device, activations as a channels-last forward saves them."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_like(value, device="meta")
    made = made.contiguous(memory_format=torch.channels_last) if made.dim() == 4 else made
    return {"size": tuple(made.size()), "stride": made.stride(), "dtype": made.dtype}


def generated(layouts: Any, folder: Any, **options: Any) -> Generated:
    """The backward, generated for CUDA by the seam that a compilation with these layouts would go through."""
    from torch._inductor.compile_fx import compile_fx_inner

    module, examples = backward()
    asked = replace(compilation.from_knobs(), asked=True, layouts=layouts)
    through_the_seam = compile_fx._remembering(compile_fx_inner, asked)

    def inner(graph: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        meta = module.graph.output_node().meta
        graph.graph.output_node().meta.update(
            desc=meta["desc"], user_visible_output_idxs=meta["user_visible_output_idxs"]
        )
        return through_the_seam(graph, *args, **kwargs)

    return generate(
        fx.Interpreter(module).run,
        *map(spec, examples),
        folder=folder,
        inner=inner,
        options=options,
        is_inference=False,
        is_backward=True,
    )


def allocated(source: str) -> list[tuple[int, ...] | None]:
    """Strides of the returned gradients, by how they are allocated; None: by nothing or by an operator."""
    [returned] = re.findall(r"return \((.*)\)", source)[-1:]
    found: list[tuple[int, ...] | None] = []
    for name in re.findall(r"\w+", returned):
        made = re.findall(rf"^ *{name} = empty_strided_\w+\(\([\d, ]+\), \(([\d, ]+)\)", source, re.MULTILINE)
        found.append(tuple(int(one) for one in made[-1].split(",") if one.strip()) if made else None)
    return found


def kernels(source: str) -> int:
    return len(re.findall(r"\.run\(|extern_kernels\.|torch\.ops\.\S+\(", source))


@pytest.fixture
def convolving(cuda, monkeypatch) -> None:
    """Convolutions answer as cuDNN does, which there is none of without a GPU: channels-last where an argument is."""

    def answer(value: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        return torch.channels_last if any(map(is_channels_last, (value, weight))) else torch.contiguous_format

    def is_channels_last(value: torch.Tensor) -> bool:
        return value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()

    monkeypatch.setattr(torch._C, "_conv_determine_backend_memory_format", answer)


@pytest.fixture
def both(convolving, tmp_path) -> tuple[str, str]:
    """What is generated without and with the rewrite."""
    sources = []
    for layouts in ((), layouts_of(inputs())):
        folder = tmp_path / str(len(sources))
        folder.mkdir()
        sources.append("\n".join(generated(layouts, folder, graph_partition=False).sources))
    return sources[0], sources[1]


def test_gradient_of_a_convolution_is_written_in_the_layout_of_its_parameter(both):
    without, with_it = map(allocated, both)
    assert CHANNELS_LAST in without and CONTIGUOUS not in without
    assert CONTIGUOUS in with_it and CHANNELS_LAST not in with_it
    changed = [(old, new) for old, new in zip(without, with_it, strict=True) if old != new]
    assert changed == [((147, 1, 21, 3), (147, 49, 7, 1)), (CHANNELS_LAST, CONTIGUOUS)]


def test_it_takes_no_further_kernel(both):
    without, with_it = both
    assert kernels(without) == kernels(with_it) > 5


def test_report_says_how_many(convolving, tmp_path):
    generated(layouts_of(inputs()), tmp_path)
    [graph] = pygraph_inductor.report().graphs[-1:]
    assert graph.rewrites == ["gradients: 2 laid out as their parameters"]


def test_outputs_that_inductor_does_not_show_the_user_are_left_alone(convolving, tmp_path, monkeypatch):
    monkeypatch.setitem(backward()[0].graph.output_node().meta, "user_visible_output_idxs", [])
    assert CONTIGUOUS not in allocated(generated(layouts_of(inputs()), tmp_path).source)


def test_backward_that_inductor_refuses_is_compiled_as_it_was(convolving, tmp_path, monkeypatch):
    def fail(graph: fx.Graph) -> None:
        if gradients._WANTED in graph.output_node().meta:
            raise RuntimeError("no")

    monkeypatch.setattr("pygraph_inductor.codegen.graph_pass.lay_out", fail)
    with config.patch(strict=False):
        found = allocated(generated(layouts_of(inputs()), tmp_path).source)
    assert CHANNELS_LAST in found and CONTIGUOUS not in found


# What is asked for


def test_only_leaves_that_require_gradients_have_a_wish():
    leaf = tensor(2, 3)
    assert layouts_of([leaf, leaf.detach(), leaf * 2, torch.nn.Parameter(leaf.t()), 7, None]) == (
        Layout((2, 3), (3, 1)),
        None,
        None,
        Layout((3, 2), (1, 3)),
        None,
        None,
    )


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(4, 4)[:, :2],  # gaps
        torch.zeros(4, 1).expand(4, 4),  # overlaps
        torch.zeros(4, 0),
        torch.eye(3).to_sparse(),
    ],
    ids=["gaps", "overlaps", "empty", "sparse"],
)
def test_tensors_that_a_new_tensor_cannot_look_like_have_none(value):
    assert layouts_of([value.detach().requires_grad_()]) == (None,)


def test_symbolic_sizes_have_none():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    value = mode.from_tensor(tensor(8, 3), symbolic_context=context)
    assert value.requires_grad and value.is_leaf and layouts_of([value]) == (None,)


def test_nothing_is_asked_of_inputs_in_containers():
    assert layouts_of([[tensor(2, 3)], tensor(2, 3)]) == ()


def test_wishes_go_by_position():
    one, other = Layout((1,), (1,)), Layout((2,), (1,))
    assert wanted_of([2, None, 0, 3], [one, None, other]) == (other, None, one, None)


def described(function: Any, *values: Any, **options: Any) -> Any:
    module = graphs(function, *values, **options)[-1][0]
    return gradients._inputs_of_outputs(module.graph)


def test_outputs_are_gradients_of_the_inputs_that_they_are_said_to_be():
    a, b = tensor(3, 3), tensor(3, 3)
    assert described(lambda x, a, b: x @ a + b, tensor(3, 3, gradient=False), a, b) == [None, 1, 2]
    # Sizes are inputs, too, and have no gradients.
    found = described(lambda x, a: x @ a, tensor(2, 4), tensor(4, 4), dynamic=True)
    assert [one for one in found if one is not None] == [len(found) - 2, len(found) - 1]


def test_views_of_one_written_tensor_have_no_gradients_of_their_own():
    def function(x, y):
        x.add_(1)
        return x * y

    base = tensor(8).clone()
    assert described(function, base[:4], base[2:6]) == [None]


def test_parts_of_a_subclass_have_none():
    from torch.testing._internal.two_tensor import TwoTensor

    both = TwoTensor(tensor(3, 3, gradient=False), tensor(3, 3, gradient=False)).requires_grad_()
    found = described(lambda x, y: x * y, both, tensor(3, 3))
    assert len(found) > 2 and 0 not in found


def test_graph_without_descriptions_is_asked_for_nothing():
    graph = fx.Graph()
    graph.output((graph.placeholder("x"),))
    assert gradients.wanted(graph, (Layout((2,), (1,)),)) == ()
    graph.output_node().meta["desc"] = []
    assert gradients.wanted(graph, (Layout((2,), (1,)),)) == ()


# Of which outputs it can be asked

SIZE, OLD, NEW = (2, 3), (1, 2), (3, 1)


def graph_of(*names: str) -> fx.Graph:
    """A graph with outputs of all kinds; those named are returned."""
    graph = fx.Graph()
    given = graph.placeholder("given")
    made = graph.call_function(torch.ops.aten.relu.default, (given,))
    read = graph.call_function(torch.ops.aten.neg.default, (given,))
    reader = graph.call_function(torch.ops.aten.as_strided.default, (read, [2], [1]))
    view = graph.call_function(torch.ops.aten.t.default, (given,))
    nodes = {"given": given, "made": made, "read": read, "view": view, "reader": reader, "none": None}
    for node in (given, made, read, reader):
        node.meta["val"] = torch.empty_strided(SIZE, OLD, device="meta")
    view.meta["val"] = torch.empty(3, 2, device="meta").t()
    outputs = [nodes[name] for name in names]
    node = graph.output(tuple(outputs))
    node.meta["user_visible_output_idxs"] = [at for at, one in enumerate(outputs) if one is not None]
    node.meta["original_output_strides"] = [one.meta["val"].stride() if one is not None else None for one in outputs]
    return graph


def laid_out(graph: fx.Graph, *wanted: Layout | None) -> list[Any]:
    gradients.ask(graph, wanted)
    gradients.lay_out(graph)
    return graph.output_node().meta["original_output_strides"]


def test_output_that_is_computed_for_the_caller_alone_gets_its_layout():
    graph = graph_of("none", "made")
    recorded = graph.output_node().meta["original_output_strides"]
    assert laid_out(graph, None, Layout(SIZE, NEW)) == [None, NEW]
    assert recorded == [None, OLD]  # somebody may have kept it


@pytest.mark.parametrize("name", ["given", "view", "read", "none"])
def test_inputs_views_and_what_has_another_reader_stay(name):
    graph = graph_of(name, "reader")
    before = list(graph.output_node().meta["original_output_strides"])
    assert laid_out(graph, Layout(SIZE, NEW), None) == before


def test_output_that_is_returned_twice_stays():
    assert laid_out(graph_of("made", "made"), Layout(SIZE, NEW), Layout(SIZE, OLD)) == [OLD, OLD]


def test_output_of_another_size_stays():
    assert laid_out(graph_of("made"), Layout((3, 2), (2, 1))) == [OLD]
    assert laid_out(graph_of("made"), Layout((6,), (1,))) == [OLD]


def test_graph_with_another_number_of_outputs_stays():
    assert laid_out(graph_of("made"), Layout(SIZE, NEW), None) == [OLD]


def test_strides_of_dimensions_of_size_one_are_no_difference():
    node = graph_of("made").output_node().args[0][0]
    node.meta["val"] = torch.empty(4, 5, 1, 1, device="meta")
    layout = Layout((4, 5, 1, 1), (5, 1, 5, 5))
    assert changes([node], [(5, 1, 1, 1)], [0], [layout]) == {}
    assert changes([node], [(1, 4, 1, 1)], [0], [layout]) == {0: layout.stride}


def test_output_that_the_user_does_not_see_stays():
    graph = graph_of("made")
    graph.output_node().meta["user_visible_output_idxs"] = []
    assert laid_out(graph, Layout(SIZE, NEW)) == [OLD]


@pytest.mark.parametrize("name", ["user_visible_output_idxs", "original_output_strides"])
def test_nothing_is_done_where_inductor_does_not_enforce_strides_this_way(name):
    graph = graph_of("made")
    del graph.output_node().meta[name]
    gradients.ask(graph, (Layout(SIZE, NEW),))
    before = dict(graph.output_node().meta)
    gradients.lay_out(graph)
    assert graph.output_node().meta == before


def test_graph_within_the_backward_is_not_asked():
    graph = graph_of("made")
    gradients.lay_out(graph)
    assert graph.output_node().meta["original_output_strides"] == [OLD]


# From the entry of Inductor to the backward, and the key


def test_wishes_travel_from_the_entry_to_the_backward_only(monkeypatch):
    given = {}

    def noting(module: fx.GraphModule, *args: Any) -> None:
        given.setdefault(gradients._WANTED in module.graph.output_node().meta, []).append(compilation.current())

    rewrite = compile_fx._rewrite

    def rewriting(module: fx.GraphModule, *args: Any) -> Any:
        before = rewrite(module, *args)
        noting(module)
        return before

    monkeypatch.setattr(compile_fx, "_rewrite", rewriting)
    options = {"simulate": True, "transform_gradients": True}
    values = tensor(2, 3, gradient=False), tensor(3, 4)
    with config.patch(options), torch._inductor.config.patch({"triton.cudagraphs": True}):
        graphs(lambda x, w: x @ w, *values)
    registration.match(frozenset())
    [forward], [backwards] = given[False], given[True]
    assert forward.layouts == backwards.layouts == (None, Layout((3, 4), (4, 1)))
    assert forward.wanted == () and backwards.wanted == (None, Layout((3, 4), (4, 1)))


def test_nothing_is_noted_with_the_knob_off_or_without_graphs():
    for options in ({"simulate": True}, {"transform_gradients": True}):
        with config.patch({"simulate": False, "transform_gradients": False, **options}):
            with torch._inductor.config.patch({"triton.cudagraphs": True}):
                noted = compile_fx._prepare(
                    {
                        "model_": fx.symbolic_trace(torch.nn.Identity()),
                        "example_inputs_": [tensor(2, 3)],
                        "inner_compile": lambda: None,
                        "config_patches": None,
                    },
                    compilation.from_knobs(),
                )
        assert noted.layouts == ()
    registration.match(frozenset())


def test_layouts_and_wishes_are_part_of_the_key():
    one, other = Layout((2, 2), (2, 1)), Layout((2, 2), (1, 2))
    plain = compilation.from_knobs()
    keys = set()
    for layouts, wanted in (((), ()), ((one,), ()), ((other,), ()), ((one, other), (other, one)), ((one,), (None,))):
        with compilation.going_on(replace(plain, layouts=layouts, wanted=wanted)):
            keys.add(repr(GraphPass().uuid()))
    assert len(keys) == 5
