"""Which nodes leave a slot free to lie at any multiple of 16 bytes."""

from __future__ import annotations

import pytest

from pygraph_inductor.driver.protocol import TABLE_WRITER, TWIN, Node, NodeKind
from pygraph_inductor.recording.alignment import needed
from pygraph_inductor.replay.plan import Binding

KERNELS = {"triton_poi_fused_0"}
NODES = (
    Node(0, NodeKind.KERNEL, "triton_poi_fused_0"),
    Node(1, NodeKind.KERNEL, "triton_poi_fused_0" + TWIN),
    Node(2, NodeKind.KERNEL, TABLE_WRITER),
    Node(3, NodeKind.KERNEL, "nvjet_sm90_tst_64x128"),
    Node(4, NodeKind.MEMCPY, "triton_poi_fused_0"),
    Node(5, NodeKind.KERNEL, "triton_poi_fused_1"),  # of another module, or of a library
)


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [((0,), 16), ((1,), 16), ((2,), 16), ((0, 2, 1, 0), 16), ((3,), 256), ((0, 3), 256), ((4,), 256), ((5,), 256)],
)
def test_every_node_must_be_a_generated_kernel(nodes: tuple[int, ...], wanted: int) -> None:
    assert needed([Binding(node, 0, 8, 0) for node in nodes], NODES, KERNELS, 256) == wanted


def test_a_slot_that_nobody_mentions_is_left_as_it_was() -> None:
    assert needed([], NODES, KERNELS, 256) == 256
