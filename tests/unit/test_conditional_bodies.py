"""Bodies of conditional nodes, as the driver prints them: what an H200's driver printed, and what it might have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pygraph_inductor.driver import captured_nodes, conditional_bodies
from pygraph_inductor.driver.conditional_bodies import Conditional, UnknownFormat, conditionals_of, parsed
from pygraph_inductor.driver.libcuda import DriverError
from pygraph_inductor.driver.protocol import Node, NodeKind

# By driver 580 (CUDA 13.0), with CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES: a graph with a conditional node and nothing else.
PRINTED = """digraph dot {
subgraph cluster_2 {
label="graph_2" graph[style="dashed"];
"graph_2_node_0"[style="bold" shape="record" label="{
CONDITIONAL
| {ID | 0}
| {node handle| 0x0000000017F7D670}
| {Conditional Type| IF}
| {True|graph_3}
}
"];

}
subgraph cluster_3 {
label="graph_3" graph[style="dashed"];
"graph_3_node_0"[style="bold" shape="octagon" label="0
_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13AUnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEESt5arrayIPcLm2EEEEviT0_T1_
node handle: 0x0000000017F7DDD8
func handle: 0x0000000017C5A040
"];

}
}
"""
# The same graph with CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE: kernels are printed in another form.
VERBOSE = r"""digraph dot {
subgraph cluster_2 {
label="graph_2" graph[style="dashed"];
"graph_2_node_0"[style="bold" shape="record" label="{
CONDITIONAL
| {ID | 0 (topoId: 0)}
| {node handle| 0x0000000017F7D670}
| {Conditional Handle|1}
| {Conditional Type| IF}
| {True|graph_3}
}
"];

}
subgraph cluster_3 {
label="graph_3" graph[style="dashed"];
"graph_3_node_0"[style="bold" shape="record" label="{KERNEL
| {ID | 0 (topoId: 0) | _ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13AUnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEESt5arrayIPcLm2EEEEviT0_T1_\<\<\<1,128,0\>\>\>}
| {{node handle | func handle} | {0x0000000017F7DDD8 | 0x0000000017C5A040}}
| {accessPolicyWindow | {base_ptr | num_bytes | hitRatio | hitProp | missProp} | {0x0000000000000000 | 0 | 0.000000 | N | N}}
| {cooperative | 0}
| {priority | 0}
}"];

}
}
"""  # noqa: E501
IF, BODY = 0x17F7D670, 0x17F7DDD8


def kernel(graph: int, number: int, handle: int, name: str = "kernel") -> str:
    """In the form above."""
    return (
        f'"graph_{graph}_node_{number}"[style="bold" shape="octagon" label="{number}\n{name}\n'
        f'node handle: 0x{handle:016X}\nfunc handle: 0x00000000000000F0\n"];\n'
    )


def conditional(graph: int, number: int, handle: int, *bodies: str, kind: str = "IF") -> str:
    return (
        f'"graph_{graph}_node_{number}"[style="bold" shape="record" label="{{\nCONDITIONAL\n| {{ID | {number}}}\n'
        f"| {{node handle| 0x{handle:016X}}}\n| {{Conditional Type| {kind}}}\n"
        + "".join(f"| {{{body}}}\n" for body in bodies)
        + '}\n"];\n'
    )


def graphs(**nodes: str) -> str:
    """`graph_2="…"` and so on, by name, in a whole file."""
    clusters = (
        f'subgraph cluster_{name[6:]} {{\nlabel="{name}" graph[style="dashed"];\n{text}\n}}\n'
        for name, text in nodes.items()
    )
    return f"digraph dot {{\n{''.join(clusters)}}}\n"


def test_body_and_its_node() -> None:
    assert parsed(PRINTED) == {IF: Conditional("IF", ((BODY,),))}
    assert parsed(graphs(graph_2=conditional(2, 0, IF, "True|graph_3"), graph_3=kernel(3, 0, BODY))) == parsed(PRINTED)


def test_bodies_in_bodies_and_nodes_in_order() -> None:
    printed = graphs(
        graph_5=kernel(5, 0, 1)
        + conditional(5, 1, 2, "True|graph_6", "False|graph_7")
        # Edges, and a node of a child graph, as other drivers are known to print them.
        + '"graph_5_node_0" -> "graph_5_node_1" [headlabel=0];\n'
        + '"graph_5_node_2"[style="solid" shape="rectangle" label="2\ngraph_9\nnode handle: 0x0000000000000003\n"];\n',
        graph_6=kernel(6, 1, 5) + kernel(6, 0, 4) + '"graph_6_node_0" -> "graph_6_node_1";\n',
        graph_7=conditional(7, 0, 6, "Body|graph_8", kind="WHILE"),
        graph_8="",
        graph_9=kernel(9, 0, 7),
    )
    assert parsed(printed) == {2: Conditional("IF", ((4, 5), (6,))), 6: Conditional("WHILE", ((),))}


@pytest.mark.parametrize(
    "name", ["{KERNEL", '"quoted" {a | b}', r"f\<\<\<1,128,0\>\>\>", "graph_3", "}", "CONDITIONAL"]
)
def test_any_name_of_a_kernel(name: str) -> None:
    printed = graphs(graph_2=conditional(2, 0, IF, "True|graph_3"), graph_3=kernel(3, 0, BODY, name))
    assert parsed(printed) == parsed(PRINTED)


def test_nodes_beside_the_conditional_one_may_look_in_any_way() -> None:
    """Other functions tell about those."""
    other = '"graph_2_node_1"[style="solid" shape="record" label="{\nMEMCPY\n| {{ID | node handle} | {1 | 0x1}}\n}"];\n'
    printed = graphs(graph_2=conditional(2, 0, IF, "True|graph_3") + other, graph_3=kernel(3, 0, BODY))
    assert parsed(printed) == parsed(PRINTED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("node handle: 0x0000000017F7DDD8\n", ""),
        ("node handle: 0x0000000017F7DDD8\n", "node handle: 0x0000000017F7DDD8\nnode handle: 0x0000000017F7DDD8\n"),
        ("node handle: 0x0000000017F7DDD8\n", "node handle: 0x17F7DDD8\n"),
        ("node handle: 0x0000000017F7DDD8\n", "node handle: 0x0000000000000000\n"),
        ("node handle: 0x0000000017F7DDD8\n", "node handle: (nil)\n"),
        ("node handle: 0x0000000017F7DDD8\n", "node: 0x0000000017F7DDD8\n"),
        ("| {node handle| 0x0000000017F7D670}\n", ""),
        ("| {node handle| 0x0000000017F7D670}\n", "| {node handle| 0x1}\n"),
        ("| {node handle| 0x0000000017F7D670}\n", "| {node handle| 0x0000000017F7D670}\n" * 2),
        ("| {Conditional Type| IF}\n", ""),
        ("| {Conditional Type| IF}\n", "| {Conditional Type| UNLESS}\n"),
        ("| {Conditional Type| IF}\n", "| {Conditional Type| IF}\n| {Another Field| 1}\n"),
        ("| {True|graph_3}\n", ""),
        ("| {True|graph_3}\n", "| {True|graph_4}\n"),
        ("| {True|graph_3}\n", "| {True|graph_3}\n| {False|graph_3}\n"),
        ("| {True|graph_3}\n", "| {True|graph_3}\n| {False|graph_4}\n"),
        ("| {True|graph_3}\n", "| {{True|graph_3} | {False|graph_4}}\n"),
        ("| {True|graph_3}\n", "| {True|graph_3|graph_4}\n"),
        ("| {True|graph_3}\n", "| {True|NULL}\n"),
        ("graph_3_node_0", "graph_3_node_1"),
        ("graph_3_node_0", "graph_4_node_0"),
        ("graph_3_node_0", "node_0"),
        ("subgraph cluster_3", "subgraph cluster_4"),
        ("subgraph cluster_3", "subgraph cluster_2"),
        ("subgraph cluster_3 {", "subgraph cluster_3 { rank=same"),
        ('label="0\n_ZN', 'xlabel="0\n_ZN'),
        ('func handle: 0x0000000017C5A040\n"];', 'func handle: 0x0000000017C5A040\n"]'),
        ('func handle: 0x0000000017C5A040\n"];', 'func handle: 0x0000000017C5A040\n"];\nsomething else'),
        ("}\n}\n", "}\n"),
        ("}\n}\n", ""),
    ],
)
def test_what_reads_in_another_way_is_not_known(old: str, new: str) -> None:
    assert old in PRINTED
    with pytest.raises(UnknownFormat):
        parsed(PRINTED.replace(old, new))


def test_nothing_is_known_of_a_file_that_ends_early() -> None:
    for length in range(1, len(PRINTED) - 1):
        with pytest.raises(UnknownFormat):
            parsed(PRINTED[:length])


def test_another_form_of_kernels_is_not_known() -> None:
    with pytest.raises(UnknownFormat):
        parsed(VERBOSE)


class Driver:
    """As much of the driver's functions as is asked. `write` is what printing does with the file's name."""

    CUDA_VERSION = 13000
    CUgraphDebugDot_flags = SimpleNamespace(CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES=1 << 10)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_CONDITIONAL=13)
    CUgraphConditionalNodeType = SimpleNamespace(CU_GRAPH_COND_TYPE_IF=0, CU_GRAPH_COND_TYPE_WHILE=1)

    def __init__(self, write: Callable[[bytes], Any], own: str) -> None:
        self.write, self.own = write, own
        self.destroyed: list[Any] = []

    def cuGraphDebugDotPrint(self, graph: Any, path: bytes, flags: int) -> tuple[int]:
        assert flags == 1 << 10
        if graph == "own":
            with open(path, "w") as file:
                file.write(self.own)
        else:
            self.write(path)
        return (0,)

    def CUgraphNodeParams(self) -> Any:
        return SimpleNamespace(conditional=SimpleNamespace())

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        return 0, 1

    def cuGraphCreate(self, flags: int) -> tuple[int, str]:
        return 0, "own"

    def cuGraphConditionalHandleCreate(self, *arguments: Any) -> tuple[int, int]:
        return 0, 1

    def cuGraphAddNode(self, graph: Any, nodes: Any, edges: Any, count: int, params: Any) -> tuple[int, int]:
        assert params.conditional.size == 2
        return 0, 1

    def cuGraphDestroy(self, graph: Any) -> tuple[int]:
        self.destroyed.append(graph)
        return (0,)


def prints(text: str) -> Callable[[bytes], Any]:
    def write(path: bytes) -> None:
        with open(path, "w") as file:
            file.write(text)

    return write


BOTH = graphs(graph_1=conditional(1, 0, 9, "True|graph_2", "False|graph_3"))
ONE_OF_TWO = graphs(graph_1=conditional(1, 0, 9, "True|graph_2"))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Driver]]:
    def use(write: Callable[[bytes], Any], own: str = BOTH) -> Driver:
        driver = Driver(write, own)
        for module in (conditional_bodies, captured_nodes):
            monkeypatch.setattr(module, "bindings", lambda: driver)
        conditional_bodies._names_all_bodies.cache_clear()
        return driver

    yield use
    conditional_bodies._names_all_bodies.cache_clear()


def test_graph_is_printed_to_a_file_that_goes_again(use: Callable[..., Driver]) -> None:
    paths = []
    driver = use(lambda path: (paths.append(path), prints(PRINTED)(path)))
    assert conditionals_of("graph") == {IF: Conditional("IF", ((BODY,),))} and driver.destroyed == ["own"]
    with pytest.raises(FileNotFoundError):
        open(paths[0])


def test_nothing_is_known_if_a_second_body_would_not_be_named(use: Callable[..., Driver]) -> None:
    driver = use(prints(PRINTED), ONE_OF_TWO)
    assert conditionals_of("graph") == {} and driver.destroyed == ["own"]


def fails(error: Exception) -> Callable[[bytes], Any]:
    def write(path: bytes) -> None:
        raise error

    return write


@pytest.mark.parametrize(
    "write",
    [
        lambda path: None,  # no file
        prints(""),
        prints(VERBOSE),
        fails(DriverError("CUDA_ERROR_OPERATING_SYSTEM")),
        fails(RuntimeError('Function "cuGraphDebugDotPrint" not found')),
        fails(AttributeError("cuGraphDebugDotPrint")),
        fails(OSError("no space left on device")),
    ],
)
def test_nothing_is_known_if_printing_fails(use: Callable[..., Driver], write: Callable[[bytes], Any]) -> None:
    use(write)
    assert conditionals_of("graph") == {}


def test_file_that_is_no_text(use: Callable[..., Driver]) -> None:
    def write(path: bytes) -> None:
        with open(path, "wb") as file:
            file.write(PRINTED.encode() + b"\xff\xfe")

    use(write)
    assert conditionals_of("graph") == {}


# -- the nodes of a graph


@pytest.fixture
def captured(use: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Node]]:
    """`captured(types, root, write)`: the nodes of a graph with the handles `root`. `types`: of all handles."""

    def captured(types: dict[int, str], root: list[int], write: Callable[[bytes], Any]) -> list[Node]:
        driver: Any = use(write)
        driver.CUgraph = driver.CUgraphNode = lambda value: value
        driver.cuGraphGetNodes = lambda graph, count: (0, root, len(root))
        named = lambda handle: SimpleNamespace(name=f"CU_GRAPH_NODE_TYPE_{types[handle]}")
        driver.cuGraphNodeGetType = lambda handle: (0, named(handle)) if handle in types else (1, None)
        kernel = lambda handle: SimpleNamespace(name=f"kernel {handle}", areas=(), identity=(handle,))
        monkeypatch.setattr(captured_nodes, "Kernel", kernel)
        reads = captured_nodes.nodes_of(1)
        assert all(read.parameters is None or read.node.updatable for read in reads)
        assert [read.node.index for read in reads] == list(range(len(reads)))
        return [read.node for read in reads]

    return captured


def shown(nodes: list[Node]) -> list[tuple[NodeKind, str, bool, bool]]:
    return [(node.kind, node.name, node.updatable, node.conditional) for node in nodes]


def test_nodes_of_bodies_come_after_the_graphs_own(captured: Callable[..., list[Node]]) -> None:
    types = {IF: "CONDITIONAL", 1: "KERNEL", BODY: "KERNEL"}
    nodes = captured(types, [IF, 1], prints(PRINTED))
    assert shown(nodes) == [
        (NodeKind.CONDITIONAL, "conditional node", True, False),
        (NodeKind.KERNEL, "kernel 1", True, False),
        (NodeKind.KERNEL, f"kernel {BODY}", False, True),
    ]
    assert nodes[0].identity == ("IF", 1)


def test_nothing_is_printed_for_a_graph_without_conditional_nodes(captured: Callable[..., list[Node]]) -> None:
    nodes = captured({1: "KERNEL", 2: "EMPTY"}, [1, 2], fails(AssertionError("printed")))
    assert [node.kind for node in nodes] == [NodeKind.KERNEL, NodeKind.EMPTY]


@pytest.mark.parametrize(
    ("types", "write"),
    [
        ({BODY: "KERNEL"}, fails(DriverError("no"))),
        ({BODY: "KERNEL"}, prints(PRINTED.replace("17F7D670", "17F7D671"))),  # of another node
        ({}, prints(PRINTED)),  # the driver does not know the node in the body
    ],
)
def test_conditional_node_with_unknown_bodies_is_of_an_unknown_kind(
    captured: Callable[..., list[Node]], types: dict[int, str], write: Callable[[bytes], Any]
) -> None:
    nodes = captured({IF: "CONDITIONAL", 1: "KERNEL", **types}, [IF, 1], write)
    assert shown(nodes) == [
        (NodeKind.OTHER, "conditional", True, False),
        (NodeKind.KERNEL, "kernel 1", True, False),
    ]


def test_bodies_that_contain_each_other_come_to_an_end(captured: Callable[..., list[Node]]) -> None:
    printed = graphs(graph_1=conditional(1, 0, 1, "True|graph_2"), graph_2=conditional(2, 0, 2, "True|graph_1"))
    nodes = captured({1: "CONDITIONAL", 2: "CONDITIONAL"}, [1], prints(printed))
    assert [node.kind for node in nodes] == [NodeKind.CONDITIONAL, NodeKind.CONDITIONAL, NodeKind.OTHER]
