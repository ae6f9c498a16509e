"""Copies in a function, and what becomes of each: part of the graph, an upload in front of it, or the end of graphs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pygraph_inductor
from pygraph_inductor import config

from .fake_cuda import compile_module, fake_cuda

HOST = {"size": (8, 8), "device": "cpu"}
OTHER = {"size": (8, 8), "device": "cuda:1"}


class Module(torch.nn.Module):
    """Inductor is given modules."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def generated_for(function: Callable[..., Any], *specs: Any, folder: Any) -> Any:
    return compile_module(Module(function), *specs, folder=folder, mode="reduce-overhead")


@pytest.mark.parametrize("options", [{}, {"non_blocking": True}, {"non_blocking": True, "copy": True}], ids=str)
def test_copy_from_the_host_comes_before_the_replay(cuda, tmp_path, options):
    function = lambda x, h: (x @ x) * h.to("cuda:0", **options)
    source = generated_for(function, (8, 8), HOST, folder=tmp_path).source
    [graph] = pygraph_inductor.report().graphs
    assert graph.pieces == 1 and graph.kernels[0] == graph.kernels[1], graph
    assert source.index("pygraph_upload([], [") > source.index("def partition_0")
    assert "pygraph_upload" not in _piece(source)


def test_copy_that_converts_is_uploaded_as_it_is_and_converted_there(cuda, tmp_path):
    function = lambda x, h: (x @ x) * h.to("cuda:0", torch.float64, non_blocking=True)
    generated_for(function, (8, 8), HOST, folder=tmp_path)
    [graph] = pygraph_inductor.report().graphs
    assert graph.pieces == 1 and graph.kernels[0] == graph.kernels[1], graph


def _layers(x, small, large):
    x = x @ small.to(x.device)
    return (x @ large.to(x.device)).relu()


@pytest.mark.parametrize("limit, copied", [(1280, 0), (256, 1), (0, 2)])
def test_copies_that_do_not_fit_are_cuts_with_their_lines(cuda, tmp_path, limit, copied):
    with config.patch(max_upload_bytes=limit):
        generated_for(_layers, (8, 8), HOST, {"size": (8, 32), "device": "cpu"}, folder=tmp_path)
    [graph] = pygraph_inductor.report().graphs
    cuts = [cut for cut in graph.cuts if "copies between host and device (test_copies.py:" in cut]
    assert len(cuts) == len([line for line in graph.rewrites if "max_upload_bytes" in line]) == copied, graph
    assert graph.pieces >= 1 and not any("undone" in line for line in graph.rewrites), graph


COPIES = {
    "clone": lambda x, y: (x.clone() @ y, x.clone()),
    "to itself": lambda x, y: (x.to("cuda:0", copy=True), x @ y),
    "in place": lambda x, y: y.copy_(x @ x) @ x,
    "into a part": lambda x, y: y[2:6].copy_((x @ x)[:4], non_blocking=True),
    "converted": lambda x, y: (x.to(torch.bfloat16) @ y.to(torch.bfloat16)).to(torch.float32),
    "transposed": lambda x, y: (x.t().contiguous() @ y, y.t().contiguous()),
}


@pytest.mark.parametrize("name", COPIES)
def test_copy_on_the_device_is_part_of_the_graph(cuda, tmp_path, name):
    source = generated_for(COPIES[name], (8, 8), (8, 8), folder=tmp_path).source
    [graph] = pygraph_inductor.report().graphs
    assert graph.pieces == 1 and not graph.cuts and graph.kernels[0] == graph.kernels[1] >= 1, graph
    between = source[source.index("    def call(self, args)") :].partition("\nrunner = ")[0]
    assert "copy_(" not in between and ".run(" not in between and "extern_kernels" not in between, between


@pytest.mark.parametrize(
    "function, specs",
    [
        (lambda x: (x @ x, (x + 1).to("cuda:1")), [(8, 8)]),
        (lambda x, y: x @ y.to("cuda:0"), [(8, 8), OTHER]),
        (lambda x, y: (x @ x, y @ y), [(8, 8), OTHER]),
    ],
    ids=["to", "from", "next to"],
)
def test_two_devices_have_no_graph_and_the_report_says_so(cuda, tmp_path, function, specs):
    generated = generated_for(function, *specs, folder=tmp_path)
    [compiled] = generated.graphs
    assert re.search(r"multiple devices: .*index=\d.*index=\d", compiled.disabled_cudagraphs_reason)
    [graph] = pygraph_inductor.report().graphs
    assert graph.pieces == 0 and any("multiple devices" in cut for cut in graph.cuts), graph


def test_pretended_device_is_the_only_one():
    """Else the test above would be about another machine."""
    with fake_cuda():
        assert torch.cuda.device_count() == 1


def _piece(source: str) -> str:
    return source[source.index("def partition_0") :].partition("async_compile.wait")[0]
