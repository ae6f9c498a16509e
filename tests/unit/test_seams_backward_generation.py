"""Backwards that run without a graph: the trees are told only where there are any, and none are made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch._inductor.cudagraph_trees as trees

import pygraph_inductor
from pygraph_inductor.seams import backward_generation
from pygraph_inductor.seams.compilation import Compilation, going_on


@pytest.fixture
def told():
    return []


@pytest.fixture
def seam(told):
    return backward_generation.wrap(lambda graph, device: told.append((graph, device)))


@pytest.mark.parametrize("device", [None, SimpleNamespace(value=None), SimpleNamespace(value=0)])
def test_nobody_is_told_where_there_are_no_trees(seam, told, device):
    seam("graph", device)
    assert told == []


def test_stock_trees_are_told(seam, told):
    with going_on(Compilation(borrowed=False)):
        seam("graph", "device")
    assert told == [("graph", "device")]


def test_declined_compilation_is_stock(seam, told):
    with going_on(Compilation(declined="cpp_wrapper")):
        seam("graph", "device")
    assert told == [("graph", "device")]


def test_trees_that_somebody_else_made_are_told(seam, told, monkeypatch):
    asked = []

    def get_manager(device_index, create_if_none_exists=True):
        asked.append((device_index, create_if_none_exists))
        return object()

    monkeypatch.setattr(trees, "get_manager", get_manager)
    seam("graph", SimpleNamespace(value=0))
    assert len(told) == 1
    assert asked == [(0, False)]


def test_backward_whose_graph_is_dropped_compiles_and_runs():
    """Stock asserts here that its tree manager exists."""
    with pygraph_inductor.config.patch(simulate=True):
        compiled = torch.compile(lambda x: x.sin().cos(), mode="reduce-overhead")
        for _ in range(3):
            x = torch.randn(8, requires_grad=True)
            compiled(x).sum().backward()
            torch.testing.assert_close(x.grad, -torch.sin(x.sin()) * x.cos())
