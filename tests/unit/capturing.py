"""Captures on the simulated driver, and what became of them."""

from __future__ import annotations

import torch

aten = torch.ops.aten


F32 = torch.float32


def capture(driver, body, namespace=None, generators=(), pool=None):
    graph, result = driver.capture(
        body, pool or driver.new_pool(), namespace if namespace is not None else {}, generators
    )
    return graph, result


def captured(driver, body, **kwargs):
    """A graph that can be replayed, and what the body returned."""
    graph, result = capture(driver, body, **kwargs)
    graph.instantiate()
    return graph, result


def kinds(graph):
    return [node.kind for node in graph.nodes]


def words_of(graph, address):
    return [(node.index, n) for node in graph.nodes for n, a in enumerate(node.areas) if a.word(0) == address]
