"""How well aligned a slot must be for a graph to read and write it where it is.

Libraries choose kernels by the addresses they are given, so what they were captured with must hold in every replay.
Triton kernels of generated code are compiled before: for multiples of 16 bytes, or for any address.

That is about addresses as they are. What the host makes of one for a tensor-map load (cuTensorMapEncodeTiled, with
Inductor's `config.triton.use_tensor_descriptor` for generated kernels, too) has a form that nobody documents, and
captures move slots by too much to show where it keeps the last bits of an address.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pygraph_inductor.driver.protocol import TABLE_WRITER, TWIN, Node, NodeKind
from pygraph_inductor.recording.plain import KERNEL_ALIGNMENT
from pygraph_inductor.replay.plan import Binding

_POINTER = 8  # bytes of a parameter that is an address and nothing else; a tensor map has 128


def indifferent(nodes: Sequence[Node], kernels: Collection[str]) -> frozenset[str]:
    """The kernels of a graph to which all multiples of 16 bytes are alike, by name. `kernels`: the generated code's.

    One that writes a table only passes addresses on: what they are to be depends on the twins that use them.
    """
    twins = {node.name.removesuffix(TWIN) for node in nodes if node.name.endswith(TWIN)}
    return frozenset(kernels) | ({TABLE_WRITER} if twins <= set(kernels) else set())


def needed(
    bindings: Sequence[Binding],
    nodes: Sequence[Node],
    kernels: Collection[str],
    otherwise: int,
    generated: int | None = None,
) -> int:
    """Bytes: a new address may differ from the captured one by multiples of it.

    `kernels`: as `indifferent` says; what they want is `generated`, by default `KERNEL_ALIGNMENT`. `otherwise`: for
    every other kind of word.
    """
    if not bindings or not all(_is_triton(one, nodes[one.node], kernels) for one in bindings):
        return otherwise
    return KERNEL_ALIGNMENT if generated is None else generated


def _is_triton(binding: Binding, node: Node, kernels: Collection[str]) -> bool:
    if node.kind is not NodeKind.KERNEL:
        return False
    if node.name == TABLE_WRITER:
        return TABLE_WRITER in kernels
    return node.name.removesuffix(TWIN) in kernels and node.areas[binding.area].size == _POINTER
