"""The simulated driver: what an operator becomes in a graph, and which the device would refuse."""

from __future__ import annotations

import pytest
import torch

from pygraph_inductor.driver.protocol import CaptureFailed, NodeKind
from tests.unit.capturing import aten, capture, captured, kinds, words_of


def test_views_run_and_kernels_see_their_addresses(driver):
    x, out = torch.arange(12.0), torch.zeros(3)
    graph, _ = captured(driver, lambda: torch.mul(x.view(3, 4).t()[1], 2, out=out))
    assert words_of(graph, x.data_ptr() + 4)
    graph.replay()
    assert out.tolist() == [2, 10, 18]


def test_operators_that_allocate_write_to_where_the_capture_put_them(driver):
    x = torch.tensor([[3.0, 1.0, 2.0]])
    graph, (values, indices) = captured(driver, lambda: torch.sort(x, dim=1))
    assert values.shape == (1, 3) and indices.dtype is torch.int64
    graph.replay()
    assert values.tolist() == [[1, 2, 3]] and indices.tolist() == [[1, 2, 0]]
    elsewhere = torch.zeros(1, 3)
    ((node, area),) = words_of(graph, values.data_ptr())
    graph.nodes[node].areas[area].set_word(0, elsewhere.data_ptr())
    graph.update(graph.nodes[node])
    values.zero_()
    graph.replay()
    assert elsewhere.tolist() == [[1, 2, 3]] and values.tolist() == [[0, 0, 0]]


def test_copies_are_memcpy_nodes(driver):
    x, out = torch.arange(6.0).view(2, 3), torch.zeros(2, 3)
    graph, kept = captured(driver, lambda: (out.copy_(x), x.clone())[1])
    assert kinds(graph) == [NodeKind.MEMCPY, NodeKind.MEMCPY]
    area = graph.nodes[0].areas[0]
    assert (area.size, area.word(0), area.word(8)) == (16, out.data_ptr(), x.data_ptr())
    graph.replay()
    assert torch.equal(out, x) and torch.equal(kept, x)
    other = torch.full((2, 3), 9.0)
    area.set_word(8, other.data_ptr())
    graph.update(graph.nodes[0])
    graph.replay()
    assert torch.equal(out, other)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: torch.zeros(3, 2, dtype=torch.float64).copy_(x),
        lambda x: torch.zeros(2, 3).t().copy_(x),
        lambda x: torch.zeros(3, 2).copy_(x[:1]),
    ],
    ids=["other dtype", "other strides", "broadcast"],
)
def test_copies_that_change_something_are_kernels(driver, body):
    x = torch.arange(6.0).view(3, 2)
    graph, result = captured(driver, lambda: body(x))
    assert kinds(graph) == [NodeKind.MEMSET, NodeKind.KERNEL]
    graph.replay()
    assert torch.equal(result, body(x))


def test_fills_are_memset_nodes(driver):
    x, y = torch.ones(4), torch.ones(2, 2, dtype=torch.bool)
    graph, made = captured(driver, lambda: (x.fill_(2.5), y.zero_(), torch.zeros(3), torch.full((2,), 7))[2:])
    assert kinds(graph) == [NodeKind.MEMSET] * 4
    assert [area.size for node in graph.nodes for area in node.areas] == [8] * 4
    graph.replay()
    assert x.tolist() == [2.5] * 4 and not y.any()
    assert made[0].tolist() == [0] * 3 and made[1].tolist() == [7, 7]
    graph.nodes[1].areas[0].set_word(0, x.data_ptr())
    graph.update(graph.nodes[1])
    x.view(torch.uint8).fill_(255)
    graph.replay()
    assert x.view(torch.uint8)[:4].eq(0).all(), "four bools at the new address, after the fill of x"


def test_filling_with_gaps_is_a_kernel(driver):
    x = torch.ones(4, 4)
    graph, _ = captured(driver, lambda: x[:, 1].zero_())
    assert kinds(graph) == [NodeKind.KERNEL]
    graph.replay()
    assert x.sum() == 12 and x[:, 1].eq(0).all()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: torch.equal(x, x),
        lambda x: torch.nonzero(x),
        lambda x: x[x > 0],
        lambda x: float(x[0]),
    ],
    ids=["item", "bool", "tolist", "numpy", "equal", "nonzero", "masked", "float"],
)
def test_reading_data_on_the_host_breaks_the_capture(driver, read):
    x = torch.ones(3)
    with pytest.raises(CaptureFailed, match="not permitted when stream is capturing"):
        capture(driver, lambda: read(x))

    def swallowing():
        try:
            read(x)
        except RuntimeError:
            return x.add_(1)

    with pytest.raises(CaptureFailed):
        capture(driver, swallowing)
    assert x.tolist() == [1] * 3
    capture(driver, lambda: x.add_(1))


def test_errors_of_operators_pass_through(driver):
    with pytest.raises(RuntimeError, match="dim"):
        capture(driver, lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)))


def test_in_place_operators_return_their_argument(driver):
    x, y = torch.ones(3), torch.ones(3)
    out = torch.empty(3), torch.empty(3, dtype=torch.int64)

    def body():
        assert x.add_(1) is x
        torch._foreach_mul_([x, y], 2.0)
        assert torch.mul(x, y, out=y) is y
        results = torch.sort(x, out=out)
        assert results[0] is out[0] and results[1] is out[1]

    graph, _ = captured(driver, body)
    graph.replay()
    assert x.tolist() == [4] * 3 and y.tolist() == [8] * 3 and out[0].tolist() == [4] * 3


def test_outputs_of_the_wrong_size_are_resized(driver):
    x = torch.ones(3, 3)
    out = torch.empty(0)
    graph, _ = captured(driver, lambda: torch.mm(x, x, out=out))
    graph.replay()
    assert out.shape == (3, 3) and out.eq(3).all()


def test_batch_norm_updates_its_running_statistics(driver):
    x, mean, var = torch.randn(8, 4), torch.zeros(4), torch.ones(4)
    expected_mean, expected_var = mean.clone(), var.clone()
    graph, out = captured(driver, lambda: torch.nn.functional.batch_norm(x, mean, var, training=True))
    assert mean.eq(0).all()
    expected = torch.nn.functional.batch_norm(x, expected_mean, expected_var, training=True)
    graph.replay()
    assert torch.equal(out, expected) and torch.equal(mean, expected_mean) and torch.equal(var, expected_var)


def test_lists_of_tensors_are_parameters_one_by_one(driver):
    x, y = torch.ones(2), torch.full((3,), 2.0)
    graph, (joined, summed) = captured(driver, lambda: (torch.cat([x, y]), torch._foreach_add([x, y], 1.0)))
    graph.replay()
    assert joined.tolist() == [1, 1, 2, 2, 2] and [t.tolist() for t in summed] == [[2, 2], [3, 3, 3]]
    assert len(words_of(graph, y.data_ptr())) == 2


def test_missing_results_stay_none(driver):
    x, w, grad = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), torch.randn(1, 3, 3, 3)
    call = lambda: aten.convolution_backward.default(
        grad, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False]
    )
    graph, (grad_input, grad_weight, grad_bias) = captured(driver, call)
    graph.replay()
    assert grad_weight is None and grad_bias is None and torch.equal(grad_input, call()[0])


def test_complex_conjugates_and_bit_views(driver):
    x = torch.randn(4, dtype=torch.complex64)
    body = lambda: (x.conj() * 2, x.conj().resolve_conj(), torch.view_as_real(x) + 1, x.conj().imag + 0)
    graph, results = captured(driver, body)
    graph.replay()
    assert all(map(torch.equal, results, body()))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.int64, torch.bfloat16, torch.float64, torch.float8_e4m3fn]
)
def test_dtypes(driver, dtype):
    x = torch.ones(5).to(dtype)
    graph, y = captured(driver, lambda: x.view(5, 1).expand(5, 3).contiguous())
    graph.replay()
    assert y.dtype is dtype and y.float().eq(1).all()


def test_zero_size_and_zero_dim_tensors(driver):
    x, scalar = torch.ones(0, 3), torch.tensor(2.0)
    graph, (empty, total, product) = captured(driver, lambda: (x + 1, x.sum(0), torch.mm(x.t(), x) + scalar))
    graph.replay()
    assert empty.shape == (0, 3) and total.tolist() == [0] * 3 and product.eq(2).all()


def test_non_dense_results_keep_their_strides(driver):
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    w = torch.randn(5, 3, 3, 3).to(memory_format=torch.channels_last)
    graph, y = captured(driver, lambda: torch.nn.functional.conv2d(x, w))
    expected = torch.nn.functional.conv2d(x, w)
    graph.replay()
    assert y.stride() == expected.stride() and torch.equal(y, expected)


def test_views_in_place_are_no_nodes(driver):
    x = torch.arange(6.0).view(2, 3)
    graph, y = captured(driver, lambda: (x + 1).t_().unsqueeze_(0).squeeze_())
    assert len(graph.nodes) == 1 and y.stride() == (1, 3)
    graph.replay()
    assert torch.equal(y, (x + 1).t())


def test_aliases_without_a_schema_are_views(driver):
    x = torch.randn(3, 4)
    graph, y = captured(driver, lambda: aten._unsafe_view.default(x, [4, 3]))
    assert y.data_ptr() == x.data_ptr() and not graph.nodes


def test_sparse_tensors_are_refused(driver):
    x, sparse = torch.ones(3, 3), torch.eye(3).to_sparse_csr()
    with pytest.raises(CaptureFailed, match="sparse"):
        capture(driver, lambda: torch.sparse.mm(sparse, x))


def test_packed_weights_are_constants(driver):
    x, weight = torch.randn(2, 4), torch.randn(3, 4)
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 2)
    call = lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    graph, y = captured(driver, call)
    graph.replay()
    assert torch.equal(y, call())


def test_custom_operators_are_one_node(driver):
    @torch.library.custom_op("pygraph_sim_test::scale", mutates_args={"total"})
    def scale(x: torch.Tensor, total: torch.Tensor, by: float) -> torch.Tensor:
        total.add_(x.sum().item())
        return x * by

    @scale.register_fake
    def _(x, total, by):
        return torch.empty_like(x)

    x, total = torch.ones(3), torch.zeros(())
    graph, y = captured(driver, lambda: torch.ops.pygraph_sim_test.scale(x, total, 2.0))
    assert len(graph.nodes) == 1 and total == 0
    graph.replay()
    assert y.tolist() == [2] * 3 and total == 3
