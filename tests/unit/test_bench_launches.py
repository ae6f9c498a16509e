"""Kernels of an iteration on the simulated driver are counted where they are launched: in graphs, or outside."""

from __future__ import annotations

import pytest
import torch

from pygraph_inductor.settings import Settings
from scripts.bench.launches import Launches, launches
from tests.simulated.hand_written import HandWritten


def two_kernels(namespace, x):
    out = namespace["empty_strided_cpu"]((4, 4), (4, 1), torch.float32)
    namespace["cpp_fused_0"](out, x)
    return [torch.mm(out, x)]


def recorded() -> HandWritten:
    function = HandWritten(two_kernels, settings=Settings(engine="patch"))  # no kernel that writes a table
    for _ in range(3):
        function(torch.randn(4, 4))
    assert function.log.replays == 1
    return function


def test_what_a_graph_launches_is_inside():
    function, x = recorded(), torch.randn(4, 4)
    assert launches(lambda: function(x)) == Launches(in_graphs=2)


def test_what_is_launched_around_graphs_is_outside():
    function, x = recorded(), torch.randn(4, 4)
    assert launches(lambda: function(torch.relu(x))[0].add_(1)) == Launches(in_graphs=2, outside=2)


def test_a_plain_call_is_outside():
    """The stand-in for a compiled kernel is made of operators, which are seen here."""
    function, x = HandWritten(two_kernels), torch.randn(4, 4)
    found = launches(lambda: function(x))
    assert found.in_graphs == 0
    assert found.outside > 2


def test_compiled_kernels_are_counted_beside_operators():
    function = torch.compile(lambda x: torch.mm(x.sin(), x) + 1)
    x = torch.randn(4, 4)
    function(x)
    assert launches(lambda: function(x)) == Launches(outside=3)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.view(2, 8).t()[0].detach(),
        lambda x: torch.empty_like(x).set_(x),
        lambda x: x.item() if x.numel() == 1 else x.stride(),
        lambda x: x.reshape(16).to(torch.float32),
    ],
)
def test_views_and_memory_are_no_kernels(work):
    x = torch.randn(4, 4)
    assert launches(lambda: work(x)) == Launches()


def test_an_operator_made_of_others_is_as_many_kernels_as_they_are():
    x, bias = torch.randn(4, 4), torch.randn(4)
    assert launches(lambda: torch.nn.functional.linear(x.t().reshape(16).view(4, 4), x, bias)) == Launches(outside=2)


def test_counting_ends_with_an_error():
    function, x = recorded(), torch.randn(4, 4)

    def broken() -> None:
        function(x)
        raise ValueError

    with pytest.raises(ValueError):
        launches(broken)
    assert launches(lambda: function(x)) == Launches(in_graphs=2)
