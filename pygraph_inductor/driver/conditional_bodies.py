"""Which nodes are in the bodies of a graph's conditional nodes: read from what the driver prints of the graph.

No function of a driver before CUDA 13.2 tells (cuGraphNodeGetParams), but cuGraphDebugDotPrint prints bodies, too, with
handles of their nodes that other functions take. The format is not documented. Here is how driver 580 (CUDA 13.0)
prints; of what reads in any other way nothing is known, and nothing is guessed.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pygraph_inductor.driver.libcuda import bindings, checked


@dataclass(frozen=True)
class Conditional:
    """A conditional node. `bodies` has the handles of the nodes in each."""

    kind: str
    bodies: tuple[tuple[int, ...], ...]


class UnknownFormat(ValueError):
    """The driver printed what we do not know how to read."""


def conditionals_of(graph: object) -> dict[int, Conditional]:
    """The conditional nodes of a `CUgraph`, those in bodies, too, by handle. None at all if anything is in doubt."""
    try:
        found = parsed(_printed(graph))
        return found if all(_names_all_bodies(one.kind) for one in found.values()) else {}
    # RuntimeError: a driver error, or the bindings know a function that the driver lacks. AttributeError: they do not.
    except (UnknownFormat, RuntimeError, AttributeError, OSError):
        return {}


def _printed(graph: object) -> str:
    cu = bindings()
    flags = int(cu.CUgraphDebugDot_flags.CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.dot")
        checked(cu.cuGraphDebugDotPrint(graph, os.fsencode(path), flags))
        return path.read_text(encoding="utf-8", errors="replace")


_BODIES = {"IF": 2, "WHILE": 1, "SWITCH": 3}  # that a node of this type may have


@functools.cache
def _names_all_bodies(kind: str) -> bool:
    """Whether this driver does, as far as a node of our own shows: who knew nothing of the second would be wrong."""
    cu = bindings()
    graph = checked(cu.cuGraphCreate(0))
    try:
        params = cu.CUgraphNodeParams()
        params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        context = checked(cu.cuCtxGetCurrent())
        params.conditional.ctx = context
        params.conditional.handle = checked(cu.cuGraphConditionalHandleCreate(graph, context, 0, 0))
        params.conditional.type = getattr(cu.CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{kind}")
        params.conditional.size = _BODIES[kind]
        edges = [] if int(cu.CUDA_VERSION) < 13000 else [None]
        checked(cu.cuGraphAddNode(graph, None, *edges, 0, params))
        labels = [label for nodes in _graphs(_printed(graph)).values() for label in nodes.values()]
        return [len(_conditional(label).bodies) for label in labels] == [_BODIES[kind]]
    finally:
        cu.cuGraphDestroy(graph)


_OPENS = re.compile(r"digraph dot \{|subgraph cluster_(\d+) \{")
_BETWEEN = re.compile(r'|label="graph_\d+" graph\[[^\]]*\];|"graph_\d+_node_\d+" -> "graph_\d+_node_\d+"[^"]*;')
_NODE = re.compile(r'"graph_(\d+)_node_(\d+)"\[style="\w+" shape="\w+" label="(.*)')
_NODE_ENDS = '"];'
_FIELD = re.compile(r"\| \{([^{}|]+?) ?\| ?([^{}|]+)\}")
_FIELDS = {"ID", "node handle", "Conditional Handle", "Conditional Type"}
_BODY = re.compile(r"graph_(\d+)")
_HANDLE = re.compile(r"0x(?!0{16})[0-9A-F]{16}")
_LABELLED_HANDLE = re.compile(r"node handle: (.*)")


def parsed(text: str) -> dict[int, Conditional]:
    """Every conditional node that is printed, by handle. Raises `UnknownFormat`."""
    graphs = _graphs(text)
    labels = [label for nodes in graphs.values() for label in nodes.values()]
    conditionals = [_conditional(label) for label in labels if _is_conditional(label)]
    named = [body for one in conditionals for body in one.bodies]
    _expect(len(named) == len(set(named)) and set(named) <= graphs.keys(), "bodies that are not printed, or shared")
    handles = {body: tuple(map(_handle, _in_order(graphs[body]))) for body in named}
    inside = [handle for body in handles.values() for handle in body]
    _expect(len(inside) == len(set(inside)), "a handle twice")
    found = {one.handle: Conditional(one.kind, tuple(handles[body] for body in one.bodies)) for one in conditionals}
    _expect(len(found) == len(conditionals), "a handle twice")
    return found


def _graphs(text: str) -> dict[int, dict[int, list[str]]]:
    """The lines of each node's label, by number of the graph and of the node."""
    graphs: dict[int, dict[int, list[str]]] = {}
    depth = 0
    lines = iter(text.split("\n"))
    for line in lines:
        if opens := _OPENS.fullmatch(line):
            depth += 1
            if opens[1]:
                _expect(int(opens[1]) not in graphs, "a graph twice")
                graphs[int(opens[1])] = {}
        elif line == "}":
            depth -= 1
        elif node := _NODE.fullmatch(line):
            graph, number = int(node[1]), int(node[2])
            _expect(graph in graphs and number not in graphs[graph], "a node twice, or of no graph")
            graphs[graph][number] = list(_label(node[3], lines))
        else:
            _match(_BETWEEN, line)
    _expect(depth == 0, "no end")
    return graphs


def _label(first: str, lines: Iterator[str]) -> Iterator[str]:
    for line in itertools.chain([first], lines):
        if line.endswith(_NODE_ENDS):
            if line != _NODE_ENDS:
                yield line.removesuffix(_NODE_ENDS)
            return
        yield line
    raise UnknownFormat("a node without an end")


def _in_order(nodes: dict[int, list[str]]) -> list[list[str]]:
    _expect(nodes.keys() == set(range(len(nodes))), "nodes are missing")
    return [nodes[number] for number in range(len(nodes))]


def _is_conditional(label: list[str]) -> bool:
    return label[:2] == ["{", "CONDITIONAL"]


@dataclass(frozen=True)
class _Printed:
    handle: int
    kind: str
    bodies: list[int]  # graphs


def _conditional(label: list[str]) -> _Printed:
    _expect(_is_conditional(label) and label[-1] == "}", "a conditional node")
    fields: dict[str, str] = {}
    bodies = []
    for line in label[2:-1]:
        name, value = _match(_FIELD, line).groups()
        if body := _BODY.fullmatch(value):
            bodies.append(int(body[1]))
        else:
            _expect(name in _FIELDS and name not in fields, line)
            fields[name] = value
    kind = fields.get("Conditional Type", "")
    _expect(kind in _BODIES and bool(bodies), "a conditional node of another type")
    return _Printed(_number(fields.get("node handle", "")), kind, bodies)


def _handle(label: list[str]) -> int:
    if _is_conditional(label):
        return _conditional(label).handle
    handles = [handle[1] for line in label if (handle := _LABELLED_HANDLE.fullmatch(line))]
    _expect(len(handles) == 1, "a node without a handle, or with several")
    return _number(handles[0])


def _number(handle: str) -> int:
    return int(_match(_HANDLE, handle)[0], 16)


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise UnknownFormat(text)
    return found


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise UnknownFormat(what)
