"""What the rewrites do to the code that is generated: pieces, what crosses over, and what the report says about it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop
from torch._inductor import memory
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.scheduler import Scheduler

import pygraph_inductor
from pygraph_inductor import config, settings
from pygraph_inductor.codegen import wrapper
from pygraph_inductor.codegen.control_flow import CONTROL_FLOW
from pygraph_inductor.codegen.fewer_pieces import ORDER
from pygraph_inductor.codegen.generated_code import read
from pygraph_inductor.codegen.graph_pass import GraphPass
from pygraph_inductor.codegen.order import uploads_first
from pygraph_inductor.replay.uploads import upload
from pygraph_inductor.seams import compilation, compile_fx
from pygraph_inductor.transform import apply as applying
from pygraph_inductor.transform.gradients import GRADIENTS
from pygraph_inductor.transform.operators import UPLOAD

from .fake_cuda import Generated, compile_module, generate

HOST = {"device": "cpu"}


def numbers(x, i, s):
    return (i + s, x * s)


def lengths(x, host):
    mask = torch.arange(x.shape[1])[None] < host[:, None]
    return ((x @ x) * mask.to(x.device),)


def detour(x):
    peaks = 1 + 0.5 * (x @ x).amax(0).cpu()
    return ((x / peaks.to(x.device)) @ x,)


def index(x, host):
    return (x.sin()[host] * 2,)


def saved(w, x, host, scale):
    """As the forward of a training step: what came from the host is kept for the backward."""
    mask = torch.ops.prims.device_put.default(host, x.device)
    y = (x @ w).relu() @ w
    return ((y * mask * scale).square().mean(), y, mask, scale)


def computed(x, host):
    """The CPU computes something that cannot be moved."""
    return ((x @ x) * torch.exp(host / 3).to(x.device),)


def made(function: Any, *specs: Any, folder: Any, **kwargs: Any) -> Generated:
    """As within a compilation of ours, which rewrites each graph before Inductor compiles it."""
    ours = replace(compilation.from_knobs(), asked=True)
    inner = compile_fx._remembering(compile_fx_inner, ours)
    return generate(function, *specs, folder=folder, inner=inner, **kwargs)


CASES = pytest.mark.parametrize(
    "function, specs",
    [
        (numbers, [(8, 8), {"size": (8,), "dtype": torch.int32}, {"size": (), "dtype": torch.int64, **HOST}]),
        (lengths, [(8, 8), {"size": (8,), "dtype": torch.int64, **HOST}]),
        (detour, [(8, 8)]),
        (index, [(8, 8), {"size": (3,), "dtype": torch.int64, **HOST}]),
    ],
)

# Where a bad order does harm.
SCATTERED = [
    (saved, [(16, 16), (8, 16), {"size": (8, 16), "dtype": torch.bool, **HOST}, {"size": (), **HOST}]),
    (computed, [(8, 8), {"size": (8,), **HOST}]),
]


@CASES
def test_one_piece_whose_inputs_are_all_on_the_device(cuda, tmp_path, function, specs):
    generated = made(function, *specs, folder=tmp_path)
    texts = read(generated.source)
    assert set(texts) == {"call", "partition_0"}
    assert "= empty_strided_cpu(" not in generated.source and "cpp_fused" not in generated.source
    for name in texts["partition_0"].inputs:
        assert not name.startswith(("host", "s_")), name
    [facts] = pygraph_inductor.report().graphs
    assert facts.pieces == 1 and facts.kernels[0] == facts.kernels[1]
    assert any("not done" not in line for line in facts.rewrites)


@CASES
def test_without_them_it_is_otherwise(cuda, tmp_path, function, specs):
    """Else the test above shows nothing."""
    if function is index and torch.__version__ >= "2.15":
        pytest.skip("this Inductor brings indices to the device itself")
    with config.patch(transform=False):
        generated = made(function, *specs, folder=tmp_path)
    texts = read(generated.source)
    on_host = "= empty_strided_cpu" in generated.source or any(
        name.startswith("host") for name in texts["partition_0"].inputs
    )
    assert on_host
    [facts] = pygraph_inductor.report().graphs
    assert facts.rewrites == []


def test_upload_is_called_without_the_dispatcher(cuda, tmp_path):
    generated = made(index, *CASES.args[1][3][1], folder=tmp_path)
    assert " = pygraph_upload([], [host_1], " in generated.source
    assert "upload.default(" not in generated.source
    assert vars(generated.modules[0])["pygraph_upload"] is upload


def _as_late_as_possible(nodes, *args):
    """Every node directly before the first computation on the device that needs it."""
    found, done = [], set()

    def take(node):
        if node not in done:
            done.add(node)
            names = set(node.ancestors) - set(node.get_operation_names())
            for one in nodes:
                if names & set(one.get_operation_names()):
                    take(one)
            found.append(node)

    for node in nodes:
        if node.is_gpu() and type(node.node).__name__ not in ("FallbackKernel", "MultiOutput"):
            take(node)
    for node in nodes:
        take(node)
    return found


@pytest.mark.parametrize("function, specs", [*CASES.args[1], *SCATTERED])
def test_uploads_are_in_front_however_inductor_orders_them(cuda, tmp_path, monkeypatch, function, specs):
    """Its passes weigh pieces against the peak of memory, which is a matter of sizes."""
    pieces = []
    monkeypatch.setattr(memory, "reorder_for_peak_memory", _as_late_as_possible)
    monkeypatch.setattr(Scheduler, "maybe_reorder_for_minimizing_partition", lambda self, nodes: nodes)
    for first in (uploads_first, lambda scheduler: None):
        monkeypatch.setattr(wrapper, "uploads_first", first)
        with config.patch(transform_order=False):  # it would do, too, if memory allowed
            made(function, *specs, folder=tmp_path, is_inference=False)
        pieces.append(pygraph_inductor.report().graphs[-1].pieces)
    assert pieces[0] == 1 and ((function, specs) not in SCATTERED or pieces[1] > 1), pieces


def test_outputs_of_the_host_stay_there(cuda, tmp_path):
    """Inductor's own pass gives both to the device."""

    def function(x, s):
        return (x * 2, s + 1, torch.arange(3))

    generated = made(function, (8, 8), {"size": (), **HOST}, folder=tmp_path)
    [graph] = generated.graphs
    call = generated.source[generated.source.rindex("def call") :]
    returned = call[call.index("return (") :].partition(")")[0].removeprefix("return (").split(", ")
    for name in [name.strip(" ,") for name in returned][1:]:
        assert f"{name} = empty_strided_cpu(" in call, call
    assert len(returned) >= 3 and graph is not None


def test_cut_is_reported_with_the_line_that_makes_it(cuda, tmp_path):
    def sorts(x):
        on_host = x.sum(0).cpu().sort()[0]
        return x * on_host.to(x.device)

    class Module(torch.nn.Module):
        def forward(self, x):
            return sorts(x)

    compile_module(Module(), (8, 8), folder=tmp_path, mode="reduce-overhead")
    [facts] = pygraph_inductor.report().graphs
    assert facts.pieces == 2
    cut = next(line for line in facts.cuts if "sort" in line)
    assert "it runs on the CPU" in cut and "test_keeping_whole.py:" in cut
    assert any("not done" in line and "sort" in line for line in facts.rewrites)
    text = str(pygraph_inductor.report())
    assert "2 pieces" in text and cut in text


class Branch(torch.nn.Module):
    def forward(self, x):
        y = x.sin() @ x
        return torch.cond(y.sum() > 0, lambda y: (y * 2 + 1).relu(), lambda y: y - 1, (y,)) @ x


class Choice(torch.nn.Module):
    """Of more than two: an operator of torch 2.14 that has no public name there."""

    def __init__(self) -> None:
        super().__init__()
        self.choose = pytest.importorskip("torch._higher_order_ops.switch").switch

    def forward(self, x):
        y = x.sin() @ x
        which = (y.sum() > 0).long() + (y.sum() > 9)
        return self.choose(which, (lambda y: (y * 2 + 1).relu(), lambda y: y - 1, lambda y: y.cos()), (y,)) @ x


BRANCHES = pytest.mark.parametrize("module, name", [(Branch, "torch.cond"), (Choice, "torch.switch")])


@BRANCHES
def test_branch_is_cut_out_and_both_sides_keep_their_graphs(cuda, tmp_path, module, name):
    generated = compile_module(module(), (8, 8), folder=tmp_path, mode="reduce-overhead")
    texts = read(generated.source)
    assert {"partition_0", "partition_1"} <= set(texts)
    [facts] = pygraph_inductor.report().graphs
    assert facts.pieces == 2 and generated.graphs[0].disabled_cudagraphs_reason is None
    assert any("which branch" in line and "test_keeping_whole.py:" in line for line in facts.cuts)
    # What the branch returned is taken out of its list before the second piece gets it.
    second = generated.source[generated.source.index("def partition_1") :].partition("async_compile.wait")[0]
    assert not re.search(r"= buf\d+\[\d\]", second), second


@BRANCHES
def test_branch_takes_all_graphs_where_that_is_switched_off(cuda, tmp_path, module, name):
    with config.patch(transform_control_flow=False):
        compile_module(module(), (8, 8), folder=tmp_path, mode="reduce-overhead")
    [facts] = pygraph_inductor.report().graphs
    assert facts.pieces == 0 and any(name in line for line in facts.cuts)


class Loop(torch.nn.Module):
    def forward(self, x):
        y = x.sin() @ x
        start = x.sum().to(torch.int64), y
        small = lambda trips, y: y.abs().amax() < 50
        trips, y = while_loop(small, lambda trips, y: (trips + 1, 1.5 * y + 0.1), start)
        return trips.clone(), (y + 1) @ x


@pytest.mark.parametrize("on", [True, False])
def test_loop_is_cut_out_and_both_sides_keep_their_graphs(cuda, tmp_path, on):
    with config.patch(transform_control_flow=on):
        generated = compile_module(Loop(), (8, 8), folder=tmp_path, mode="reduce-overhead")
    assert {"partition_0", "partition_1"} <= set(read(generated.source))
    [facts] = pygraph_inductor.report().graphs
    assert facts.pieces == 2 and generated.graphs[0].disabled_cudagraphs_reason is None
    [cut] = facts.cuts
    assert cut.startswith("while_loop: it asks the host whether to go on (test_keeping_whole.py:"), cut
    assert cut.endswith(" in forward)"), cut
    between = generated.source[generated.source.index("(self, args)") :].partition("\nrunner = ")[0]
    assert between.count("self.partitions[") == 2 and "should_loop" in between
    # What the loop returned is taken out of its list before the second piece gets it.
    second = generated.source[generated.source.index("def partition_1") :].partition("async_compile.wait")[0]
    assert bool(re.search(r"= buf\d+\[\d\]", second)) != on, second


def test_failing_rewrite_breaks_no_compilation(cuda, tmp_path, monkeypatch):
    def broken(graph, switches):
        raise ValueError("no such luck")

    monkeypatch.setattr(applying, "_STEPS", ((broken, tuple(applying.ALL)),))
    made(detour, (8, 8), folder=tmp_path)
    [facts] = pygraph_inductor.report().graphs
    assert facts.pieces == 2
    assert any("undone" in line and "no such luck" in line for line in facts.rewrites)


def test_graph_that_the_compiler_cannot_do_with_is_compiled_as_it_was(cuda, tmp_path):
    def picky(module, *args, **kwargs):
        if module.graph.find_nodes(op="call_function", target=UPLOAD):
            raise RuntimeError("what is this?")
        return compile_fx_inner(module, *args, **kwargs)

    ours = replace(compilation.from_knobs(), asked=True)
    generated = generate(lengths, *CASES.args[1][1][1], folder=tmp_path, inner=compile_fx._remembering(picky, ours))
    assert "pygraph_inductor.upload" not in generated.source
    [facts] = pygraph_inductor.report().graphs
    assert facts.pieces == 1
    assert any("undone" in line and "what is this?" in line for line in facts.rewrites)


def test_error_of_the_program_itself_comes_through(cuda, tmp_path):
    def refuses(module, *args, **kwargs):
        raise RuntimeError("not today")

    ours = replace(compilation.from_knobs(), asked=True)
    with pytest.raises(RuntimeError, match="not today"):
        generate(lengths, *CASES.args[1][1][1], folder=tmp_path, inner=compile_fx._remembering(refuses, ours))


def test_every_rewrite_has_a_knob_and_every_knob_a_rewrite():
    every = applying.ALL | {CONTROL_FLOW, ORDER, GRADIENTS}
    assert settings.rewrites() == every - {GRADIENTS}  # off by default
    with config.patch(transform_gradients=True):
        assert settings.rewrites() == every
    every -= {GRADIENTS}
    with config.patch(transform_order=False):
        assert settings.rewrites() == every - {ORDER}
    with config.patch(transform=False):
        assert settings.rewrites() == frozenset()
    with config.patch(transform_uploads=False):
        assert settings.rewrites() == every - {"uploads"}


def test_rewrites_that_are_on_are_part_of_the_key():
    keys = set()
    limits = [{f"max_{kind}_bytes": 7} for kind in ("constant", "mirror", "upload")]
    for patch in ({}, {"transform": False}, {"transform_uploads": False}, *limits):
        with config.patch(**patch), compilation.going_on(compilation.from_knobs()):
            keys.add(GraphPass().uuid())
    assert len(keys) == 6


def test_upload_that_does_not_fit_is_a_cut_with_a_reason(cuda, tmp_path):
    def function(x, first, second):
        x = (x @ first.to(x.device)).relu()
        return ((x @ second.to(x.device)).relu(),)

    specs = [(8, 8), {"size": (8, 8), **HOST}, {"size": (8, 64), **HOST}]
    for limit, uploaded in ((2304, "first_1, second_1"), (2303, "first_1")):
        with config.patch(max_upload_bytes=limit):
            generated = made(function, *specs, folder=tmp_path)
        assert f"pygraph_upload([], [{uploaded}]" in generated.source
        facts = pygraph_inductor.report().graphs[-1]
        refused = [line for line in facts.rewrites if "would take more than config.max_upload_bytes" in line]
        cuts = [cut for cut in facts.cuts if "copies between host and device" in cut]
        assert len(refused) == len(cuts) == (limit == 2303), facts


def test_graph_that_inductor_does_not_cut_is_not_rewritten(cuda, tmp_path):
    """Without partitions an upload would cost the function its graph."""
    generated = made(index, *CASES.args[1][3][1], folder=tmp_path, options={"graph_partition": False})
    assert "pygraph_inductor.upload" not in generated.source
