"""How well aligned a slot must be for a graph to read and write it where it is.

Libraries choose kernels by the addresses they are given, so what they were captured with must hold in every replay.
Triton kernels of generated code are compiled before: for multiples of 16 bytes, or for any address.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pygraph_inductor.driver.protocol import TABLE_WRITER, TWIN, Node, NodeKind
from pygraph_inductor.replay.plan import Binding

TRITON = 16  # bytes; the only property of a pointer that Triton compiles kernels for (`tt.divisibility`)


def needed(bindings: Sequence[Binding], nodes: Sequence[Node], kernels: Collection[str], otherwise: int) -> int:
    """Bytes: a new address may differ from the captured one by multiples of it.

    `kernels` are the generated code's, by name. `otherwise`: for every other kind of node.
    """
    return TRITON if bindings and all(_is_generated(nodes[one.node], kernels) for one in bindings) else otherwise


def _is_generated(node: Node, kernels: Collection[str]) -> bool:
    # Only twins of generated kernels look at addresses in a table.
    name = node.name.removesuffix(TWIN)
    return node.kind is NodeKind.KERNEL and (name in kernels or node.name == TABLE_WRITER)
