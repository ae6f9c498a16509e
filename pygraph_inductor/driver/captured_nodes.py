"""The nodes of a captured CUDA graph, those of child graphs and of the bodies of conditional nodes among them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pygraph_inductor.driver.conditional_bodies import conditionals_of
from pygraph_inductor.driver.libcuda import Copy, DriverError, Fill, Kernel, bindings, checked
from pygraph_inductor.driver.protocol import Node, NodeKind

Parameters = Kernel | Copy | Fill


@dataclass(frozen=True)
class Read:
    """A node, its handle, and what it can be told; None: nothing."""

    node: Node
    handle: int
    parameters: Parameters | None = None


def nodes_of(graph: int) -> list[Read]:
    """All nodes of a `CUgraph`, its own ones first."""
    root = bindings().CUgraph(graph)
    reads = _Reader(root).read(_handles_of(root))
    return [replace(read, node=replace(read.node, index=index)) for index, read in enumerate(reads)]


class _Reader:
    def __init__(self, root: Any) -> None:
        # Printing it takes a file, and only a graph with conditional nodes has to be.
        self._conditionals = functools.cache(functools.partial(conditionals_of, root))

    def read(self, handles: Iterable[Any]) -> list[Read]:
        """Nodes of one graph, and then those inside them."""
        own, inside = [], []
        for handle in handles:
            short = checked(bindings().cuGraphNodeGetType(handle)).name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()
            if short == "conditional":
                node, within = self._conditional(handle, short)
                own.append(node)
                inside += within
            elif short == "graph":
                own.append(_plain(NodeKind.GRAPH, NodeKind.GRAPH.value, handle))
                child = checked(bindings().cuGraphChildGraphNodeGetGraph(handle))
                inside += map(_fixed, self.read(_handles_of(child)))
            else:
                own.append(_read(short, handle))
        return own + inside

    def _conditional(self, handle: Any, short: str) -> tuple[Read, list[Read]]:
        """With the nodes in its bodies; as one of a kind that we do not know, where these are not known."""
        # Each node once: what is printed must be a tree.
        known = self._conditionals().pop(int(handle), None)
        if known is None:
            return _plain(NodeKind.OTHER, short, handle), []
        try:
            bodies = [self.read(map(bindings().CUgraphNode, body)) for body in known.bodies]
        except DriverError:
            return _plain(NodeKind.OTHER, short, handle), []
        node = Node(0, NodeKind.CONDITIONAL, NodeKind.CONDITIONAL.value, (), (known.kind, *map(len, bodies)))
        return Read(node, int(handle)), [_fixed(read, conditional=True) for body in bodies for read in body]


def _fixed(read: Read, conditional: bool = False) -> Read:
    node = replace(read.node, updatable=False, conditional=conditional or read.node.conditional)
    return Read(node, read.handle)


def _handles_of(graph: Any) -> Sequence[Any]:
    cu = bindings()
    count = checked(cu.cuGraphGetNodes(graph, 0))[1]
    return checked(cu.cuGraphGetNodes(graph, count))[0] if count else []


def _read(short: str, handle: Any) -> Read:
    if short == "kernel":
        return _with_parameters(NodeKind.KERNEL, Kernel(int(handle)), handle)
    if short == "memcpy":
        copy = Copy(int(handle))
        if copy.is_flat_device_copy:
            return _with_parameters(NodeKind.MEMCPY, copy, handle)
        return _plain(NodeKind.OTHER, "memcpy with a host side", handle)
    if short == "memset":
        return _with_parameters(NodeKind.MEMSET, Fill(int(handle)), handle)
    return _plain(NodeKind.EMPTY if short == "empty" else NodeKind.OTHER, short, handle)


def _with_parameters(kind: NodeKind, parameters: Parameters, handle: Any) -> Read:
    node = Node(0, kind, parameters.name, parameters.areas, parameters.identity)
    return Read(node, int(handle), parameters)


def _plain(kind: NodeKind, name: str, handle: Any) -> Read:
    return Read(Node(0, kind, name), int(handle))
