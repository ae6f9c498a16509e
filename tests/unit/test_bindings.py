"""Which words of two captures are addresses of slots: on nodes written by hand."""

from __future__ import annotations

import struct
from dataclasses import replace

from pygraph_inductor.driver.protocol import Area, Node, NodeKind
from pygraph_inductor.recording.bindings import Found, Movement, find_bindings

FIRST, SECOND = (0x7F0000000000, 0x7F0000100000), (0x7F0003600200, 0x7F0003700400)
MOVEMENT = Movement(FIRST, SECOND, (4096, 4096))


def kernel(*words: int | bytes, name: str = "kernel", identity: tuple[int, ...] = (1,)) -> Node:
    content = b"".join(word if isinstance(word, bytes) else struct.pack("<Q", word) for word in words)
    return Node(0, NodeKind.KERNEL, name, (Area(content),), identity)


def found(first: Node, second: Node) -> Found:
    return find_bindings([first], [second], MOVEMENT)


def places(result: Found) -> list[list[tuple[int, int]]]:
    return [[(binding.offset, binding.addend) for binding in slot] for slot in result.by_slot]


def test_a_word_that_moved_as_a_slot_is_bound_to_it() -> None:
    result = found(kernel(FIRST[0], 7, FIRST[1] + 64), kernel(SECOND[0], 7, SECOND[1] + 64))
    assert result.unexplained is None
    assert places(result) == [[(0, 0)], [(16, 64)]]


def test_one_slot_may_be_in_many_words_and_at_four_byte_offsets() -> None:
    pad = b"\1\2\3\4"
    result = found(kernel(FIRST[0], pad, FIRST[0]), kernel(SECOND[0], pad, SECOND[0]))
    assert places(result)[0] == [(0, 0), (12, 0)]


def test_an_end_pointer_is_bound_with_its_distance() -> None:
    assert places(found(kernel(FIRST[0] + 4096), kernel(SECOND[0] + 4096)))[0] == [(0, 4096)]


def test_an_intermediate_that_moved_is_no_slot() -> None:
    result = found(kernel(0x7E0000000000), kernel(0x7E0000200000))
    assert result == Found(((), ()), None)


def test_uninitialised_bytes_mean_nothing() -> None:
    result = found(kernel(FIRST[0], b"\xde\xad\xbe\xef"), kernel(SECOND[0], b"\x0b\xad\xf0\x0d"))
    assert result.unexplained is None
    assert places(result) == [[(0, 0)], []]


def test_half_an_address_next_to_a_float_is_left_alone() -> None:
    one = struct.pack("<f", 1.0)
    low = [struct.pack("<I", address & 0xFFFFFFFF) for address in (FIRST[0], SECOND[0])]
    result = found(kernel(low[0] + one), kernel(low[1] + one))
    assert result == Found(((), ()), None)


def test_an_address_in_other_units_is_not_explained() -> None:
    result = found(kernel(FIRST[0] >> 4, FIRST[0]), kernel(SECOND[0] >> 4, SECOND[0]))
    assert result.unexplained and "in a way that we do not know" in result.unexplained
    assert places(result) == [[], []]


def test_an_address_between_slots_that_moved_alike_is_not_explained() -> None:
    movement = Movement((4096, 8192), (1 << 40, (1 << 40) + 4096), (64, 64))
    result = find_bindings([kernel(4096 + 64)], [kernel((1 << 40) + 64)], movement)
    assert result.unexplained and "two slots" in result.unexplained


def test_slots_that_moved_alike_are_told_apart_by_what_they_span() -> None:
    movement = Movement((4096, 8192), (1 << 40, (1 << 40) + 4096), (4096, 64))
    result = find_bindings([kernel(8192, 4100)], [kernel((1 << 40) + 4096, (1 << 40) + 4)], movement)
    assert result.unexplained is None
    assert places(result) == [[(8, 4)], [(0, 0)]]


def test_captures_of_different_work_are_not_compared() -> None:
    assert found(kernel(1), kernel(1, identity=(2,))).unexplained
    assert found(kernel(1), kernel(1, 2)).unexplained
    assert find_bindings([kernel(1)], [], MOVEMENT).unexplained


def test_an_unknown_node_is_named() -> None:
    unknown = Node(0, NodeKind.OTHER, "conditional")
    result = find_bindings([unknown], [unknown], MOVEMENT)
    assert result.unexplained == "a conditional node"


def in_a_body(node: Node) -> Node:
    return replace(node, updatable=False, conditional=True)


def compared(first: Node, second: Node, *open_kernels: str) -> Found:
    return find_bindings([first], [second], MOVEMENT, open_kernels)


def test_an_open_kernel_in_the_body_of_a_conditional_node_is_like_any_other() -> None:
    result = compared(in_a_body(kernel(FIRST[0], name="ours")), in_a_body(kernel(SECOND[0], name="ours")), "ours")
    assert result.unexplained is None and places(result) == [[(0, 0)], []]


def test_what_else_is_in_such_a_body_may_hide_addresses() -> None:
    node = in_a_body(kernel(7, name="theirs"))
    assert compared(node, node, "ours").unexplained == "a theirs node in the body of a conditional node"
    assert compared(node, node).unexplained
    for kind in (NodeKind.MEMCPY, NodeKind.MEMSET, NodeKind.GRAPH):
        node = in_a_body(Node(0, kind, "ours"))
        assert compared(node, node, "ours").unexplained == "a ours node in the body of a conditional node"


def test_what_else_is_in_front_of_such_a_body_may_decide_by_hidden_addresses_whether_it_is_executed() -> None:
    conditional = Node(1, NodeKind.CONDITIONAL, "conditional node")
    for name, others in (("theirs", True), ("ours", False)):
        nodes = [kernel(7, name=name), conditional, in_a_body(replace(kernel(8, name="ours"), index=2))]
        wanted = "a theirs node in a graph with a conditional node" if others else None
        assert find_bindings(nodes, nodes, MOVEMENT, {"ours"}).unexplained == wanted
    copy = Node(0, NodeKind.MEMCPY, "memcpy")
    assert not find_bindings([copy, conditional], [copy, conditional], MOVEMENT).unexplained


def test_empty_and_conditional_nodes_of_a_body_hide_nothing() -> None:
    for kind in (NodeKind.EMPTY, NodeKind.CONDITIONAL):
        node = in_a_body(Node(0, kind, kind.value))
        assert compared(node, node).unexplained is None


def test_a_node_that_is_in_a_body_in_one_capture_only_is_not_compared() -> None:
    node = kernel(7, name="ours")
    assert compared(in_a_body(node), node, "ours").unexplained
    assert compared(node, in_a_body(node), "ours").unexplained


def test_conditional_nodes_with_other_bodies_are_not_compared() -> None:
    first, second = (Node(0, NodeKind.CONDITIONAL, "conditional node", (), ("IF", count)) for count in (1, 2))
    assert compared(first, second).unexplained and not compared(first, first).unexplained
