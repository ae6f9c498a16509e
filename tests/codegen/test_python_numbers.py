"""Numbers that Dynamo makes tensors of: floats and numpy's scalars as arguments, and floats out of tensors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch._dynamo import config as dynamo_config

import pygraph_inductor
from pygraph_inductor.codegen.generated_code import read

from .fake_cuda import compile_module


class Applied(torch.nn.Module):
    """A function of a tensor, and of a number that comes with it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x, *numbers):
        return self.function(x, *numbers)


compiled = functools.partial(compile_module, mode="reduce-overhead")


@pytest.mark.parametrize("number", [numpy.float32(0.5), numpy.float64(0.5), 0.5], ids=lambda one: type(one).__name__)
def test_number_of_a_call_is_uploaded_before_the_one_piece(cuda, tmp_path, number):
    # A float is a constant of the graph until its second value, unless everything is dynamic.
    dynamic = True if type(number) is float else None
    generated = compiled(Applied(lambda x, s: x * s + 1), (8, 8), number, folder=tmp_path, dynamic=dynamic)
    [graph] = pygraph_inductor.report().graphs
    assert graph.pieces == 1 and graph.kernels == (1, 1), graph
    assert any(line.startswith(("host_scalars: ", "host_arithmetic: ")) for line in graph.rewrites), graph
    texts = read(generated.source)
    assert set(texts) == {"call", "partition_0"} and generated.source.count("= pygraph_upload([") == 1
    # It reaches the piece as a tensor that the upload made, and so is no part of what a recording is for.
    assert "cpp_fused" not in generated.source and ".item()" not in generated.source


def taken_out(function: Callable[..., Any], folder: Any) -> Any:
    """What became of a function of a matrix and a float that is taken out of a tensor."""
    with dynamo_config.patch(capture_scalar_outputs=True):
        generated = compiled(Applied(lambda x: function(x, (x @ x).sum().item())), (8, 8), folder=folder)
    [graph] = pygraph_inductor.report().graphs
    return graph, generated.source


STAYS = {
    "product": operator.mul,
    "computed with": lambda x, s: x * (s * 2 + 1),
    "quotient": operator.truediv,
    "compared": operator.gt,
    "with integers": lambda x, s: x.long() * s,
    "with half": lambda x, s: x.half() * s,
    "with bfloat16": lambda x, s: x.bfloat16() - s,
    "with float64": lambda x, s: x.double() + s,
}


@pytest.mark.parametrize("use", STAYS)
def test_float_that_only_the_device_computes_with_stays_there(cuda, tmp_path, use):
    graph, source = taken_out(STAYS[use], tmp_path)
    assert graph.pieces == 1 and graph.cuts == [], graph
    assert ".item()" not in source


def test_float_out_of_a_tensor_of_half_precision_stays_there(cuda, tmp_path):
    graph, source = taken_out(lambda x, _: x * (x @ x).half().sum().item(), tmp_path)
    assert graph.pieces == 1 and graph.cuts == [], graph
    assert ".item()" not in source


NEEDED = {
    "filled in": lambda x, s: x + torch.full((8, 8), s, device=x.device),
    "exponent": operator.pow,
    "bound": lambda x, s: x.clamp(max=s),
    "chosen": lambda x, s: torch.where(x > 0, x, s),
    "masked": lambda x, s: x.masked_fill(x > 0, s),
}


@pytest.mark.parametrize("use", NEEDED)
def test_float_that_another_operator_takes_is_taken_out_and_cuts(cuda, tmp_path, use):
    graph, source = taken_out(NEEDED[use], tmp_path)
    if use == "bound" and torch.__version__ >= "2.15":
        assert ".item()" not in source and graph.pieces == 1, graph  # Inductor bounds by a number on the device since
        return
    early = use == "exponent" and torch.__version__ < "2.12"  # there one graph is left
    assert ".item()" in source and graph.pieces == (1 if early else 2), graph
    assert any("_local_scalar_dense" in cut and "test_python_numbers.py:" in cut for cut in graph.cuts), graph
