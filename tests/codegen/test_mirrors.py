"""CPU parameters and buffers as inputs on the device: where they may be, and that generated code leaves them alone."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx
from torch._inductor.compile_fx import compile_fx_inner
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import pygraph_inductor
from pygraph_inductor import config
from pygraph_inductor.codegen.generated_code import read
from pygraph_inductor.seams import compilation, compile_fx, post_compile
from pygraph_inductor.transform import mirrors
from pygraph_inductor.transform.apply import ALL, NOTES, apply
from pygraph_inductor.transform.host_values import device_of
from pygraph_inductor.transform.operators import UPLOAD
from pygraph_inductor.transform.switches import Limits, turned_on

from .fake_cuda import Generated, compile_module, generate
from .rewritten import contents, host, retargeted, traced

DEVICE = torch.device("cuda", 0)
put = torch.ops.prims.device_put.default


@torch.library.custom_op("pygraph_tests_mirrors::peek", mutates_args=())
def peek(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@peek.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Mirrored:
    """A function's graph with its inputs at `static` taken for parameters and buffers."""

    def __init__(self, function: Callable[..., Any], *specs: Any, static: Collection[int] = (1,), on: Any = ALL):
        self.specs = specs
        self.module = traced(function, *specs)
        self.before = copy.deepcopy(self.module.graph)
        self.outcomes = apply(self.module, on, strict=True, static=static)
        self.positions = mirrors.mirrored(self.module.graph)
        self.uploads = len(list(self.module.graph.find_nodes(op="call_function", target=UPLOAD)))

    @property
    def refused(self) -> str:
        return "; ".join(one.what for one in self.outcomes if one.rewrite == mirrors.MIRRORS and not one.applied)

    def same(self) -> Mirrored:
        """Values, with mirrors that are what they mirror; and they are inputs on the device."""
        for node in mirrors.used(self.module.graph):
            assert device_of(node) == DEVICE
        assert self.module.graph.output_node().meta[NOTES].mirrored == self.positions
        for seed in range(3):
            inputs = contents(self.specs, seed)
            wanted = retargeted(fx.GraphModule(self.module, self.before))(*[one.clone() for one in inputs])
            more = [inputs[position].clone() for position in self.positions]
            kept = [one.clone() for one in more]
            got = retargeted(self.module)(*[one.clone() for one in inputs], *more)
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)
            torch.testing.assert_close(more, kept, rtol=0, atol=0)
        return self


def test_parameter_is_an_input_on_the_device(cuda):
    made = Mirrored(lambda x, w: (x @ put(w, DEVICE),), (4, 8), host(8, 8)).same()
    assert made.positions == (1,) and made.uploads == 0 and not made.refused
    assert any(one.rewrite == mirrors.MIRRORS and one.applied for one in made.outcomes)


def test_only_parameters_and_buffers_are(cuda):
    made = Mirrored(lambda x, i, w: (x * put(w, DEVICE) + put(i, DEVICE),), (8,), host(8), host(8), static=(2,)).same()
    assert made.positions == (2,) and made.uploads == 1
    made = Mirrored(lambda x, i: (x * put(i, DEVICE),), (8,), host(8), static=()).same()
    assert made.positions == () and made.uploads == 1


def test_numbers_indices_and_what_is_computed_from_them(cuda):
    def function(x, s, i, mask):
        later = put(mask[None] > 0, DEVICE)
        return ((x * s)[i] * later,)

    integers = host(4, dtype=torch.int64)
    made = Mirrored(function, (4, 4), host(), integers, integers, static=(1, 2, 3)).same()
    assert sorted(made.positions) == [1, 2, 3] and made.uploads == 0


def test_it_may_be_returned_on_the_cpu(cuda):
    made = Mirrored(lambda x, w: (x * put(w, DEVICE), w, w + 1), (8,), host(8)).same()
    assert made.positions == (1,)


REFUSED = {
    "returned": lambda x, w: (x + 1, put(w, DEVICE)),
    "a view is returned": lambda x, w: (x + 1, put(w, DEVICE).unsqueeze(0)),
    "a part is returned": lambda x, w: (x + 1, put(w, DEVICE).split(4)[1]),
    "what is joined is returned": lambda x, w: (x + 1, torch.cat([put(w, DEVICE)])),
    "a view made on the host is returned": lambda x, w: (x * put(w, DEVICE), put(w.view(2, 4), DEVICE)[0]),
    "an operator of somebody else": lambda x, w: (x + torch.ops.pygraph_tests_mirrors.peek(put(w, DEVICE)),),
    "its view": lambda x, w: (x + torch.ops.pygraph_tests_mirrors.peek(put(w, DEVICE).view(2, 4)).view(8),),
    "an operator on the host": lambda x, w: (x * put(w, DEVICE), torch.ops.pygraph_tests_mirrors.peek(w)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_who_could_write_to_it_is_given_a_copy_of_its_own(cuda, name):
    made = Mirrored(REFUSED[name], (8,), host(8)).same()
    if name == "a view made on the host is returned":
        assert made.positions == (1,)  # for the other use; what is returned was uploaded for it alone
        assert made.uploads == 1
    else:
        assert made.positions == () and made.uploads >= 1
    if name in ("an operator of somebody else", "its view"):
        assert "given to an operator that is not of PyTorch, must not be a mirror" in made.refused
    reached = [user for node in mirrors.used(made.module.graph) for user in node.users]
    assert all(user.op != "output" and "peek" not in str(user.target) for user in reached)


def test_what_does_not_fit_is_no_mirror(cuda):
    def function(x, w, v):
        return ((x * put(w, DEVICE)) @ put(v, DEVICE),)

    specs = [(8,), host(8), host(8, 8)]  # 32 and 256 bytes
    for limits, positions, uploads in (
        (Limits(mirrors=288, uploads=0), (1, 2), 0),
        (Limits(mirrors=287), (1,), 1),
        (Limits(mirrors=31), (), 1),
        (Limits(mirrors=287, uploads=255), (1,), 0),
    ):
        with turned_on(ALL, limits):
            made = Mirrored(function, *specs, static=(1, 2)).same()
        assert (made.positions, made.uploads) == (positions, uploads)
        assert ("max_mirror_bytes" in made.refused) == (positions != (1, 2))


def test_what_the_graph_writes_is_not_mirrored(cuda):
    def function(x, counter):
        result = x * put(counter, DEVICE)
        counter.copy_(counter + 1)
        return (result,)

    assert Mirrored(function, (8,), host(8)).positions == ()


def test_what_has_no_fixed_size_or_gaps_is_not_mirrored(cuda):
    gaps = {"size": (8, 4), "device": "cpu"}
    made = Mirrored(lambda x, w: (x * put(w[:, ::2].clone(), DEVICE),), (8, 2), gaps)
    assert made.positions in ((), (1,))
    made.same()
    placeholder = made.module.graph.find_nodes(op="placeholder")[1]
    assert mirrors.can_be_mirrored(placeholder)
    with placeholder.meta["val"].fake_mode:
        for value in (
            torch.empty(8, 8)[:, ::2],
            torch.empty(8, 1).expand(8, 2),
            torch.empty(0),
            torch.empty(8, dtype=torch.complex64),
            torch.empty(8, device=DEVICE),
        ):
            placeholder.meta["val"] = value
            assert not mirrors.can_be_mirrored(placeholder)
        size = ShapeEnv().create_unbacked_symint()
        torch._check(size > 1)
        placeholder.meta["val"] = torch.empty(size)
        assert not mirrors.can_be_mirrored(placeholder)


def test_switched_off_they_are_uploaded(cuda):
    made = Mirrored(lambda x, w: (x * put(w, DEVICE),), (8,), host(8), on=ALL - {mirrors.MIRRORS}).same()
    assert made.positions == () and made.uploads == 1


# -- what is generated


def compiled(function: Any, *specs: Any, folder: Any, inner: Any = compile_fx_inner, **kwargs: Any) -> Generated:
    ours = replace(compilation.from_knobs(), asked=True)
    remembering = compile_fx._remembering(inner, ours)
    return generate(function, *specs, folder=folder, inner=remembering, **kwargs)


def _in_place(x, w):
    y = put(w, DEVICE)
    z = y * 2 + 1  # could be written over y
    return ((z @ x).relu() @ x,)


def _scattered(x, w):
    y = put(w, DEVICE)
    index = torch.arange(8, device=DEVICE)
    return (torch.ops.aten.index_put(y, [index], x.sum(0)) @ x,)


def _scattered_into_a_view(x, w):
    y = put(w, DEVICE).t()
    index = torch.arange(4, device=DEVICE)
    return (torch.ops.aten.index_put(y, [index], x[0]) @ x,)


def _between_pieces(x, w):
    y = put(w, DEVICE)
    order = (x * y).sum(0).cpu().sort()[1]
    return ((y * 3 + x)[order.to(DEVICE)] @ (y + 1),)


@pytest.mark.parametrize("function", [_in_place, _scattered, _scattered_into_a_view, _between_pieces])
def test_generated_code_never_writes_to_it(cuda, tmp_path, function):
    generated = compiled(function, (8, 8), host(8, 8), folder=tmp_path, static_input_idxs=(1,))
    texts = read(generated.source)
    names = {name for text in texts.values() for name in text.inputs if name.startswith("pygraph_mirror")}
    assert names == {"pygraph_mirror_1"} and "pygraph_inductor.upload" not in generated.source
    for text in texts.values():
        for position, name in enumerate(text.inputs):
            if name in names:
                assert all(use.kind in ("triton", "extern", "returned") for use in text.uses[position]), name
                _only_read_by_kernels(generated.source, name)
    for call in re.findall(r"^\s*(aten\.\w+_|torch\.ops\.aten\.\w+_)(?:\.\w+)?\((\w+)", generated.source, re.M):
        assert call[1] not in names, call
    [facts] = pygraph_inductor.report().graphs
    assert any(line.startswith("mirrors: ") and "not done" not in line for line in facts.rewrites), facts
    assert facts.pieces == (2 if function is _between_pieces else 1)


def _only_read_by_kernels(source: str, name: str) -> None:
    """A kernel names what it writes `out_ptr` or `in_out_ptr`."""
    parameters = dict(re.findall(r"def (triton_\w+)\(([^)]*)\)", source))
    found = 0
    for kernel, given in re.findall(r"^\s*(triton_\w+)\.run\(([^)\n]*)", source, re.M):
        for number, argument in enumerate(given.split(", ")):
            if argument.strip() == name:
                found += 1
                assert parameters[kernel].split(", ")[number].startswith("in_ptr"), (kernel, given)
    assert found or f"({name}" in source or f", {name}" in source


def test_compiled_function_is_given_what_it_needs(cuda, tmp_path, monkeypatch):
    seen = {}

    def following(run, positions, device, limit):
        seen.update(positions=positions, device=device, limit=limit, run=run)
        return lambda inputs: "wrapped"

    monkeypatch.setattr(post_compile, "following", following)
    with config.patch(max_mirror_bytes=12345):
        generated = compiled(_in_place, (8, 8), host(8, 8), folder=tmp_path, static_input_idxs=(1,))
    assert seen["positions"] == [1] and seen["device"] == DEVICE and seen["limit"] == 12345
    [graph] = generated.graphs
    assert graph.current_callable([]) == "wrapped"
    assert 2 in graph.fx_kwargs["static_input_idxs"] and callable(seen["run"])


def test_whole_way_of_a_module(cuda, tmp_path, monkeypatch):
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(8, 8))
            self.register_buffer("table", torch.rand(8))
            self.anchors = torch.rand(8)

        def forward(self, x):
            weight, table, anchors = (one.to(x.device) for one in (self.weight, self.table, self.anchors))
            return (x @ weight) * table + anchors

    seen = []

    def following(run, positions, device, limit):
        seen.append(positions)
        return no_device

    def no_device(inputs):
        raise RuntimeError("there is no device")

    monkeypatch.setattr(post_compile, "following", following)
    generated = compile_module(Module(), (8, 8), folder=tmp_path, mode="reduce-overhead")
    assert [len(positions) for positions in seen] == [3]
    assert "pygraph_inductor.upload" not in generated.source
    [facts] = pygraph_inductor.report().graphs
    assert facts.pieces == 1 and facts.cuts == []


def test_graph_that_the_compiler_cannot_do_with_gets_its_own_inputs_back(cuda, tmp_path):
    seen = []

    def picky(module, inputs, **kwargs):
        seen.append((len(inputs), tuple(kwargs["static_input_idxs"])))
        if len(inputs) > 2:
            raise RuntimeError("too many")
        return compile_fx_inner(module, inputs, **kwargs)

    generated = compiled(_in_place, (8, 8), host(8, 8), folder=tmp_path, inner=picky, static_input_idxs=(1,))
    assert seen == [(3, (1, 2)), (2, (1,))]
    assert "pygraph_mirror" not in generated.source


def test_failing_rewrite_leaves_no_inputs_behind(cuda, tmp_path, monkeypatch):
    def broken(*arguments):
        raise ValueError("no such luck")

    from pygraph_inductor.transform import bring_to_device

    monkeypatch.setattr(bring_to_device, "_rewrite", broken)
    generated = compiled(_in_place, (8, 8), host(8, 8), folder=tmp_path, static_input_idxs=(1,))
    assert "pygraph_mirror" not in generated.source
    [facts] = pygraph_inductor.report().graphs
    assert any("undone" in line for line in facts.rewrites)
