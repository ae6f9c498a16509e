"""Which nodes leave a slot free to lie at any multiple of 16 bytes."""

from __future__ import annotations

import pytest

from pygraph_inductor.driver.protocol import TABLE_WRITER, TWIN, Area, Node, NodeKind
from pygraph_inductor.recording.alignment import indifferent, needed
from pygraph_inductor.replay.plan import Binding

KERNELS = {"triton_poi_fused_0", "triton_tem_fused_1"}


def node(name: str, *sizes: int, kind: NodeKind = NodeKind.KERNEL) -> Node:
    return Node(0, kind, name, tuple(Area(bytes(size)) for size in sizes))


NODES = {
    "a kernel": node("triton_poi_fused_0", 4, 8),
    "its twin": node("triton_poi_fused_0" + TWIN, 4, 8),
    "the table's writer": node(TABLE_WRITER, 8, 128),
    "a library's kernel": node("nvjet_sm90_tst_64x128", 8, 8),
    "a copy": node("triton_poi_fused_0", 8, 208, kind=NodeKind.MEMCPY),
    "a fill": node("triton_poi_fused_0", 8, 8, kind=NodeKind.MEMSET),
    "another module's kernel": node("triton_poi_fused_7", 8, 8),
    "a tensor map": node("triton_tem_fused_1", 8, 128),
    "a tensor map of a twin": node("triton_tem_fused_1" + TWIN, 8, 128),
    "parameters in one piece": node("triton_poi_fused_0", 4, 40),  # where each begins is not known
}


@pytest.mark.parametrize("name", NODES)
def test_every_word_must_be_a_generated_kernels_pointer(name: str) -> None:
    names = list(NODES)
    nodes, free = list(NODES.values()), names[:3]

    def words(*mentioned: str) -> list[Binding]:
        return [Binding(names.index(one), 1, 0, -16) for one in mentioned]

    kernels = indifferent(nodes, KERNELS)
    assert needed(words(name), nodes, kernels, 256) == (16 if name in free else 256)
    assert needed(words(*free, name, *free), nodes, kernels, 256) == (16 if name in free else 256)


def test_kernels_for_any_address_leave_a_slot_free_and_nobody_else_does() -> None:
    nodes = list(NODES.values())
    kernels = indifferent(nodes, KERNELS)
    wanted = [needed([Binding(number, 1, 0, 0)], nodes, kernels, 256, 1) for number in range(len(nodes))]
    assert wanted == [1] * 3 + [256] * (len(nodes) - 3)


@pytest.mark.parametrize(("twins", "wanted"), [((), 16), (("fused_0",), 16), (("fused_0", "fused_7"), 256)])
def test_table_is_as_particular_as_the_twins_that_read_it(twins: tuple[str, ...], wanted: int) -> None:
    """Each of them: which twin reads which entry is not looked at."""
    nodes = [NODES["the table's writer"], *(node(f"triton_poi_{name}{TWIN}", 8) for name in twins)]
    assert needed([Binding(0, 1, 0, 0)], nodes, indifferent(nodes, KERNELS), 256) == wanted


def test_a_kernel_that_has_a_tensor_map_of_another_slot() -> None:
    assert needed([Binding(0, 0, 0, 0)], [NODES["a tensor map"]], KERNELS, 256) == 16


def test_a_slot_that_nobody_mentions_is_left_as_it_was() -> None:
    assert needed([], list(NODES.values()), KERNELS, 256) == 256
