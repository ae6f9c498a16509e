"""How many pieces generated code has, what is merged and what is not, and what pieces return."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch._inductor.scheduler import Scheduler

import pygraph_inductor
from pygraph_inductor import config
from pygraph_inductor.codegen import concatenations, fewer_pieces
from pygraph_inductor.codegen.concatenations import to_be_left_outside
from pygraph_inductor.codegen.generated_code import read

from .test_keeping_whole import HOST, made

put = torch.ops.prims.device_put.default


@torch.library.custom_op("pygraph_tests_pieces::says", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def says(x: torch.Tensor, what: int) -> torch.Tensor:
    print(what)
    return x.clone()


@says.register_fake
def _(x: torch.Tensor, what: int) -> torch.Tensor:
    return torch.empty_like(x)


def _detour(z):
    order = (z @ z).sum(0).cpu().sort()[1]  # the CPU sorts
    return z[order.to(z.device)] @ z


def three_chains(x, y, z):
    return tuple(_detour(_detour(one)) for one in (x, y, z))


def experts(x, gate, *weights):
    chosen = (x @ gate).argmax(-1)
    total = torch.zeros_like(x)
    for number, weight in enumerate(weights):
        rows = (chosen == number).nonzero().squeeze(1)
        total = total.index_add(0, rows, (x[rows] @ weight).relu())
    return (total,)


def talking(x, y):
    """What is said is heard in the order of the program: 1, 2, 3."""
    one = torch.ops.pygraph_tests_pieces.says(torch.ops.pygraph_tests_pieces.says(x @ x, 1) @ x, 2)
    return (one @ x, torch.ops.pygraph_tests_pieces.says(y @ y, 3) @ y)


def weights_of_both(x, v, w):
    """As the forward of a training step: what the backward needs is returned."""
    order = (x @ w @ v).sum(0).cpu().sort()[1]
    y = (x @ w)[:, put(order, x.device)] @ w
    return (y, w, v, x)


def products_and_more(x, y):
    """The product is written into the result in front of the cut, what is said behind it."""
    return (torch.cat([x @ y, torch.ops.pygraph_tests_pieces.says((x @ y).sin(), 4) @ y]),)


def pieces_of(function: Any, *specs: Any, folder: Any, **kwargs: Any) -> tuple[int, str]:
    generated = made(function, *specs, folder=folder, **kwargs)
    return pygraph_inductor.report().graphs[-1].pieces, generated.source


@pytest.fixture(autouse=True)
def ordered():
    with config.patch(transform_order=True):
        yield


@pytest.fixture
def as_stock_leaves_it(monkeypatch):
    """Where memory forbids it, as small functions are to it, Inductor does not touch the order."""
    monkeypatch.setattr(Scheduler, "maybe_reorder_for_minimizing_partition", lambda self, nodes: nodes)


def test_independent_work_is_merged(cuda, tmp_path, as_stock_leaves_it):
    specs = [(8, 8)] * 3
    merged, source = pieces_of(three_chains, *specs, folder=tmp_path)
    with config.patch(transform_order=False):
        apart, _ = pieces_of(three_chains, *specs, folder=tmp_path)
    assert merged == 3 and apart == 7
    products = [len(re.findall(r"extern_kernels.mm\(", _text_of(source, f"partition_{piece}"))) for piece in range(3)]
    assert products == [3, 6, 3]


def _text_of(source: str, name: str) -> str:
    return source.partition(f"def {name}(")[2].partition("\ndef ")[0].partition("async_compile.wait")[0]


def test_order_is_made_where_inductor_makes_none(cuda, tmp_path):
    """Without any help: Inductor's own budget is a tenth of the peak, also where that is a kilobyte."""
    merged, _ = pieces_of(three_chains, *[(8, 8)] * 3, folder=tmp_path)
    assert merged == 3


def test_memory_forbids_it(cuda, tmp_path, as_stock_leaves_it, monkeypatch):
    seen = []
    stock = fewer_pieces._peaks

    def peaks(scheduler, nodes):
        peak, peak_of = stock(scheduler, nodes)
        return peak, lambda candidate: seen.append(peak_of(candidate)) or 2 * peak + 1

    monkeypatch.setattr(fewer_pieces, "_peaks", peaks)
    small, _ = pieces_of(three_chains, *[(8, 8)] * 3, folder=tmp_path)
    large, _ = pieces_of(three_chains, *[(8192, 8192)] * 3, folder=tmp_path)
    assert small == 3 and large == 7
    assert len(seen) >= 2 and all(type(one) is int and one > 0 for one in seen)


def test_least_memory_is_taken(cuda, tmp_path, as_stock_leaves_it, monkeypatch):
    tried = []
    stock = fewer_pieces._peaks

    def peaks(scheduler, nodes):
        peak, peak_of = stock(scheduler, nodes)

        def noted(candidate):
            tried.append((peak_of(candidate), [nodes[number] for number in candidate]))
            return tried[-1][0]

        return peak, noted

    chosen = []
    better = fewer_pieces._better_order
    monkeypatch.setattr(fewer_pieces, "_peaks", peaks)
    monkeypatch.setattr(fewer_pieces, "_better_order", lambda scheduler: chosen.append(better(scheduler)) or chosen[-1])
    pieces_of(three_chains, *[(8, 8)] * 3, folder=tmp_path)
    least = min(peak for peak, _ in tried)
    assert chosen[0] in [found for peak, found in tried if peak == least]


def test_pieces_of_different_data_dependent_sizes_stay_apart(cuda, tmp_path, as_stock_leaves_it, monkeypatch):
    """Merged, each combination of sizes would be recorded for itself."""
    monkeypatch.setattr(fewer_pieces, "_data_dependent", lambda node: frozenset([node.get_name()]))
    apart, _ = pieces_of(three_chains, *[(8, 8)] * 3, folder=tmp_path)
    monkeypatch.setattr(fewer_pieces, "_data_dependent", lambda node: frozenset(["the same for all"]))
    merged, _ = pieces_of(three_chains, *[(8, 8)] * 3, folder=tmp_path)
    assert apart == 7 and merged == 3


def test_sizes_found_on_the_device_are_known(cuda, tmp_path, monkeypatch):
    found = set()

    def noted(scheduler):
        found.update(str(symbol) for node in scheduler.nodes for symbol in fewer_pieces._data_dependent(node))

    monkeypatch.setattr(fewer_pieces, "_better_order", noted)
    pieces_of(experts, (16, 8), (8, 3), (8, 8), (8, 8), (8, 8), folder=tmp_path)
    assert found == {"u0", "u1", "u2"}


def test_what_others_hear_keeps_its_order(cuda, tmp_path, as_stock_leaves_it):
    _, source = pieces_of(talking, (8, 8), (8, 8), folder=tmp_path)
    heard = re.findall(r"pygraph_tests_pieces\.says\.default\(\w+, (\d)\)", source)
    assert heard == ["1", "2", "3"]


def test_inputs_are_not_handed_back(cuda, tmp_path):
    specs = [(8, 8)] * 3
    pieces, source = pieces_of(weights_of_both, *specs, folder=tmp_path, is_inference=False)
    assert pieces == 2
    texts = read(source)
    for name in ("partition_0", "partition_1"):
        [returned] = re.findall(r"return \(([^)]*)\)", _text_of(source, name))
        assert not {*texts[name].inputs} & {one.strip() for one in returned.split(",")}, returned
    call = source[source.rindex("def call(") :]
    # What a caller needs later it does not delete.
    for line in re.findall(r"^\s*del (.*)$", call, re.M):
        assert not {"x_1", "v_1", "w_1"} & {one.strip() for one in line.split(",")}, line


def test_failure_leaves_the_order(cuda, tmp_path, as_stock_leaves_it, monkeypatch, caplog):
    def broken(*arguments):
        raise ValueError("no such luck")

    monkeypatch.setattr(fewer_pieces, "_before", broken)
    pieces, _ = pieces_of(three_chains, *[(8, 8)] * 3, folder=tmp_path)
    assert pieces == 7 and "no such luck" in caplog.text


def test_host_values_do_not_cut_a_second_time(cuda, tmp_path, as_stock_leaves_it):
    def function(x, y, mask, other):
        a = _detour(x) * put(mask, x.device)
        return (a, (y @ y) * put(other, x.device))

    specs = [(8, 8), (8, 8), {"size": (8,), **HOST}, {"size": (8,), **HOST}]
    pieces, _ = pieces_of(function, *specs, folder=tmp_path)
    assert pieces == 2


@pytest.mark.parametrize("order", [True, False])
def test_parts_of_one_result_are_not_written_in_two_pieces(cuda, tmp_path, order):
    """Each piece would make a result of its own, and nobody would write the other's part of it."""
    with config.patch(transform_order=order):
        _, source = pieces_of(products_and_more, (8, 8), (8, 8), folder=tmp_path)
    whole = re.findall(r"= empty_strided_cuda\(\(16, 8\)", source)
    assert len(whole) == 1, source
    assert re.search(r"def partition_", source)


@pytest.mark.parametrize(
    "outside, groups, left",
    [
        ([], [], []),
        ([False] * 4, [{0, 3}], []),
        ([True] * 4, [{0, 3}], []),
        ([False, False, True, False], [{0, 1}], []),
        ([False, False, True, False], [{1, 3}], [1, 3]),
        ([False, True, False, True], [{0, 1}], [0]),
        # The second group would have been in one piece, but for what the first one leaves outside.
        ([False, False, False, False, True, False], [{1, 5}, {0, 2}], [0, 1, 2, 5]),
        ([False, False, False, False, True, False], [{1, 5}, {2, 3}], [1, 5]),
    ],
)
def test_groups_are_in_one_piece_or_outside(outside, groups, left):
    assert to_be_left_outside(outside, [frozenset(group) for group in groups]) == left


def test_without_knowing_what_is_put_together_nothing_is_in_a_piece(cuda, tmp_path, monkeypatch, caplog):
    def unreadable(nodes):
        raise AttributeError("view")

    monkeypatch.setattr(concatenations, "_written_together", unreadable)
    count, source = pieces_of(products_and_more, (8, 8), (8, 8), folder=tmp_path)
    assert not count and "def partition_" not in source
    assert "could not be found: AttributeError: view" in caplog.text
