"""The simulated driver keeps the rules of CUDA graphs: nothing runs in a capture, a replay knows only its words."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from pygraph_inductor.driver.protocol import CaptureFailed, NodeKind, UpdateRefused
from pygraph_inductor.driver.simulated import SimulatedDriver

aten = torch.ops.aten
F32 = torch.float32


@pytest.fixture
def driver() -> SimulatedDriver:
    return SimulatedDriver()


def capture(driver, body, namespace=None, generators=(), pool=None):
    graph, result = driver.capture(
        body, pool or driver.new_pool(), namespace if namespace is not None else {}, generators
    )
    return graph, result


def captured(driver, body, **kwargs):
    """A graph that can be replayed, and what the body returned."""
    graph, result = capture(driver, body, **kwargs)
    graph.instantiate()
    return graph, result


def kinds(graph):
    return [node.kind for node in graph.nodes]


def words_of(graph, address):
    return [(node.index, n) for node in graph.nodes for n, a in enumerate(node.areas) if a.word(0) == address]


def test_capture_executes_nothing(driver):
    x, out = torch.ones(8), torch.zeros(8)
    state = torch.get_rng_state()
    graph, _ = capture(driver, lambda: (torch.add(x, 1, out=out), x.mul_(3), out.uniform_(), torch.rand(3)))
    assert out.eq(0).all() and x.eq(1).all()
    assert torch.equal(torch.get_rng_state(), state)
    assert kinds(graph) == [NodeKind.KERNEL] * 4


def test_replay_runs_what_was_captured(driver):
    x, out = torch.arange(4.0), torch.zeros(4)
    graph, _ = captured(driver, lambda: torch.add(x, 1, alpha=2, out=out))
    graph.replay()
    assert out.tolist() == [2, 3, 4, 5]
    x.fill_(7)
    graph.replay()
    assert out.tolist() == [9] * 4


def test_graph_keeps_no_tensor_of_the_caller_alive(driver):
    inputs = [torch.ones(4), torch.zeros(4)]
    alive = [weakref.ref(tensor.untyped_storage()) for tensor in inputs]
    graph, result = capture(driver, lambda: torch.sort(torch.add(inputs[0], 1, out=inputs[1])))
    inputs.clear()
    assert alive[0]() is None and alive[1]() is None
    alive = [weakref.ref(tensor.untyped_storage()) for tensor in result]
    del result
    assert alive[0]() is None and alive[1]() is None and len(graph.nodes) == 2


def test_addresses_are_frozen(driver):
    x, out = torch.ones(4), torch.zeros(4)
    graph, _ = captured(driver, lambda: torch.add(x, 1, out=out))
    kept = x.data
    x.data = torch.full((4,), 5.0)
    graph.replay()
    assert out.tolist() == [2] * 4, "the graph reads where x was"
    del kept


def test_words_take_effect_with_update_and_not_before(driver):
    x, y, out = torch.ones(4), torch.full((4,), 5.0), torch.zeros(4)
    graph, _ = captured(driver, lambda: torch.add(x, 1, out=out))
    ((node, area),) = words_of(graph, x.data_ptr())
    graph.nodes[node].areas[area].set_word(0, y.data_ptr())
    graph.replay()
    assert out.tolist() == [2] * 4
    graph.update(graph.nodes[node])
    graph.replay()
    assert out.tolist() == [6] * 4


def test_update_before_instantiation_changes_the_template(driver):
    x, y, out = torch.ones(4), torch.full((4,), 5.0), torch.zeros(4)
    graph, _ = capture(driver, lambda: torch.add(x, 1, out=out))
    ((node, area),) = words_of(graph, x.data_ptr())
    graph.nodes[node].areas[area].set_word(0, y.data_ptr())
    graph.update(graph.nodes[node])
    graph.instantiate()
    graph.replay()
    assert out.tolist() == [6] * 4


def test_scalars_are_words_too(driver):
    out = torch.zeros(4, dtype=torch.int64)
    x = torch.arange(4)
    graph, _ = captured(driver, lambda: torch.add(x, 1000, out=out))
    ((node, area),) = words_of(graph, 1000)
    graph.nodes[node].areas[area].set_word(0, 2000)
    graph.update(graph.nodes[node])
    graph.replay()
    assert out.tolist() == [2000, 2001, 2002, 2003]


def test_compiled_kernels_are_recorded_through_the_namespace(driver):
    calls = []

    def cpp_fused_add_0(x, n, out):
        calls.append(n)
        out.copy_(x + n)

    namespace = {"cpp_fused_add_0": cpp_fused_add_0}
    x, out = torch.ones(3), torch.zeros(3)
    graph, _ = captured(driver, lambda: namespace["cpp_fused_add_0"](x, 4, out), namespace=namespace)
    assert namespace == {"cpp_fused_add_0": cpp_fused_add_0} and not calls
    assert [node.name for node in graph.nodes] == ["cpp_fused_add_0"]
    graph.replay()
    assert calls == [4] and out.tolist() == [5] * 3


def test_namespace_is_restored_after_an_exception(driver):
    kernel = lambda: None
    namespace = {"cpp_fused_0": kernel, "empty_strided_cpu": torch._C._dynamo.guards._empty_strided_cpu}
    before = dict(namespace)
    for error in (ValueError, KeyboardInterrupt):

        def body():
            raise error

        with pytest.raises(error):
            capture(driver, body, namespace)
        assert namespace == before and not driver.is_capturing()
    capture(driver, lambda: namespace["cpp_fused_0"](), namespace)


def test_other_threads_run_the_same_module_meanwhile(driver):
    calls = []

    def cpp_fused_0(x):
        calls.append(threading.get_ident())
        x.add_(1)

    namespace = {"cpp_fused_0": cpp_fused_0, "empty_strided_cpu": torch._C._dynamo.guards._empty_strided_cpu}
    x = torch.zeros(2)
    pool = driver.new_pool()

    def other():
        assert not driver.is_capturing()
        namespace["cpp_fused_0"](x)
        y = namespace["empty_strided_cpu"]((4,), (1,), F32)
        assert not any(first <= y.data_ptr() < end for first, end in pool.ranges())
        y.add_(1)

    def body():
        assert driver.is_capturing()
        namespace["empty_strided_cpu"]((4,), (1,), F32)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        namespace["cpp_fused_0"](x)

    graph, _ = capture(driver, body, namespace, pool=pool)
    assert x.tolist() == [1, 1] and len(calls) == 1 and len(graph.nodes) == 1


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


def test_intermediates_reuse_freed_blocks_within_a_capture(driver):
    x = torch.ones(64)

    def body():
        first = x + 1
        second = first * 2
        del first
        return second + 3

    graph, result = captured(driver, body)
    assert result.data_ptr() == graph.nodes[0].areas[-1].word(0), "the trap of the rule on outputs"
    graph.replay()
    assert result.tolist() == [7] * 64


def test_two_captures_in_the_same_state_get_the_same_addresses(driver):
    x = torch.ones(64)
    pool = driver.new_pool()

    def words():
        graph, _ = capture(driver, lambda: ((x + 1) * (x + 2)).sum(), pool=pool)
        return graph, [area.content() for node in graph.nodes for area in node.areas]

    graphs, contents = zip(words(), words(), strict=True)
    assert contents[0] == contents[1] and len(graphs) == 2


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


def test_a_capture_within_a_capture_is_refused(driver):
    with pytest.raises(CaptureFailed, match="capturing already"):
        capture(driver, lambda: capture(driver, lambda: None))


def test_errors_of_operators_pass_through(driver):
    with pytest.raises(RuntimeError, match="dim"):
        capture(driver, lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)))


def test_random_numbers_follow_the_generator_as_a_plain_call(driver):
    out = torch.empty(4, dtype=torch.int64)
    body = lambda: (
        aten.randint.low_out(-100, 100, [4], out=out),
        torch.rand(3),
        torch.bernoulli(torch.full((9,), 0.5)),
    )
    graph, (_, uniform, coins) = captured(driver, body)
    torch.manual_seed(5)
    expected = [tensor.clone() for _ in range(2) for tensor in body()]
    state = torch.get_rng_state()
    torch.manual_seed(5)
    got = []
    for _ in range(2):
        graph.replay()
        got += [out.clone(), uniform.clone(), coins.clone()]
    assert all(map(torch.equal, expected, got)) and torch.equal(torch.get_rng_state(), state)


def test_generators_have_to_be_registered(driver):
    generator = torch.Generator().manual_seed(3)
    body = lambda: torch.rand(4, generator=generator)
    with pytest.raises(CaptureFailed, match="not registered"):
        capture(driver, body)
    graph, result = captured(driver, body, generators=[generator])
    state = driver.random_state([generator])
    expected = body()
    driver.set_random_state(state)
    graph.replay()
    assert torch.equal(result, expected)


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


def test_constants_made_in_the_capture_belong_to_the_graph(driver):
    x = torch.arange(6.0)
    graph, y = captured(driver, lambda: x[[4, 1]] + torch.tensor([10.0, 20.0]))
    gc.collect()
    torch.full((64,), -1)
    graph.replay()
    assert y.tolist() == [14, 21]


def test_constants_are_not_where_an_intermediate_was(driver):
    x = torch.ones(2)

    def body():
        first = x + 1
        second = first * 2
        del first
        return second + torch.tensor([10.0, 20.0])

    graph, y = captured(driver, body)
    graph.replay()
    assert y.tolist() == [14, 24]


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


def test_resizing_a_storage_is_refused(driver):
    x = torch.ones(4)
    with pytest.raises(CaptureFailed, match="resizes a storage"):
        capture(driver, lambda: torch.ops.inductor.resize_storage_bytes_(x, 0))
    assert x.tolist() == [1] * 4


def test_replay_leaves_no_trace_in_autograd(driver):
    x = torch.ones(4, requires_grad=True)
    buffer = torch.zeros(4)
    with torch.no_grad():
        graph, _ = captured(driver, lambda: buffer.add_(x))
    version = buffer._version
    y = x * 2
    graph.replay()
    assert buffer._version == version and not buffer.requires_grad and buffer.tolist() == [1] * 4
    y.sum().backward()
    assert x.grad.tolist() == [2] * 4


def test_replay_is_unseen_by_the_callers_modes(driver):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counting.seen += 1
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    graph, _ = captured(driver, lambda: x.add_(1))
    with Counting(), torch.autocast("cpu", dtype=torch.bfloat16):
        graph.replay()
    assert Counting.seen == 0 and x.tolist() == [2, 2]


def test_replays_in_and_out_of_inference_mode(driver):
    x = torch.ones(2)
    graph, _ = captured(driver, lambda: x.add_(torch.mm(x.view(1, 2), x.view(2, 1)).view(())))
    with torch.inference_mode():
        graph.replay()
    graph.replay()
    assert x.tolist() == [21, 21]


def test_replay_counts_as_capturing_for_what_runs_inside(driver):
    seen = []
    namespace = {"cpp_fused_0": lambda: seen.append(driver.is_capturing())}
    graph, _ = captured(driver, lambda: namespace["cpp_fused_0"](), namespace=namespace)
    graph.replay()
    assert seen == [True] and not driver.is_capturing()


def test_replay_after_an_error_of_a_kernel(driver):
    index, source = torch.tensor([1]), torch.arange(4.0)
    graph, out = captured(driver, lambda: torch.index_select(source, 0, index))
    index.fill_(99)
    with pytest.raises((RuntimeError, IndexError)):
        graph.replay()
    assert not driver.is_capturing()
    index.fill_(2)
    graph.replay()
    assert out.tolist() == [2]


def test_memory_is_shared_by_the_graphs_of_a_pool_and_returned_with_the_last(driver):
    x = torch.ones(1 << 10)
    pool = driver.new_pool()
    first, kept = capture(driver, lambda: (x + 1).sum(), pool=pool)
    reserved = driver.arena.reserved_bytes
    second, _ = capture(driver, lambda: (x * 2).sum(), pool=pool)
    assert driver.arena.reserved_bytes == reserved
    first.close()
    first.close()
    second.close()
    assert driver.arena.reserved_bytes == reserved, "a tensor still lives there"
    del kept, _
    driver.release_cached()
    assert driver.arena.reserved_bytes == 0 and driver.arena.allocated_bytes == 0


def test_pool_is_finished_by_a_broken_capture_and_by_its_last_graph(driver):
    x, pool = torch.ones(4), driver.new_pool()
    first, _ = capture(driver, lambda: x + 1, pool=pool)
    second, _ = capture(driver, lambda: x + 2, pool=pool)
    first.close()
    third, _ = capture(driver, lambda: x + 3, pool=pool)
    second.close()
    third.close()
    with pytest.raises(CaptureFailed, match="left by all its graphs"):
        capture(driver, lambda: x + 4, pool=pool)
    pool = driver.new_pool()
    kept, _ = capture(driver, lambda: x + 1, pool=pool)
    with pytest.raises(CaptureFailed, match="reads a tensor"):
        capture(driver, lambda: x.sum().item(), pool=pool)
    with pytest.raises(CaptureFailed, match="broke in it"):
        capture(driver, lambda: x + 1, pool=pool)
    kept.instantiate()
    kept.replay()


def test_failed_captures_leave_no_memory_behind(driver):
    x = torch.ones(100)
    for error in (ValueError("mine"), None):

        def body():
            y = x + 1
            if error:
                raise error
            y.sum().item()

        with pytest.raises((ValueError, CaptureFailed)):
            capture(driver, body)
    error = None
    gc.collect()
    driver.release_cached()
    assert driver.arena.reserved_bytes == 0


def test_out_of_memory_in_a_capture_passes_through(driver):
    x = torch.ones(1000)
    driver.arena.limit = 4096
    assert driver.free_bytes() == 4096
    with pytest.raises(torch.OutOfMemoryError):
        capture(driver, lambda: x + (x + 1))
    driver.arena.limit = None
    graph, y = captured(driver, lambda: x + (x + 1))
    graph.replay()
    assert y.eq(3).all() and driver.free_bytes() > 0


def test_reservations_are_filled_and_tensors_live_there(driver):
    memory = driver.reserve(4096, 0x3F)
    tensor = driver.tensor_at(memory.address + 256, 48, (3, 4), (4, 1), F32)
    assert memory.address % driver.alignment == 0 and memory.nbytes >= 4096
    assert tensor.data_ptr() == memory.address + 256 and tensor.untyped_storage().nbytes() == 48
    assert tensor.view(torch.uint8).eq(0x3F).all()
    tensor.zero_()
    memory.refill()
    assert tensor.view(torch.uint8).eq(0x3F).all()
    memory.close()


def test_owns_plain_cpu_tensors_only(driver):
    assert driver.owns(torch.ones(2)) and driver.owns(torch.tensor(1.0)) and driver.owns(torch.ones(2).expand(3, 2))
    assert not driver.owns(torch.ones(2, device="meta")) and not driver.owns(torch.ones(2).to_sparse())


def test_streams_are_per_thread_and_waits_are_counted(driver):
    default = driver.current_stream()
    with driver.stream("side"):
        assert driver.current_stream() == "side"
        driver.follow(default)
        others = []
        thread = threading.Thread(target=lambda: others.append(driver.current_stream()))
        thread.start()
        thread.join()
    assert others == [default] and driver.current_stream() == default and driver.waits == [("side", default)]


def test_hidden_addresses_are_in_no_area_and_stay(driver):
    x, y, out = torch.ones(4), torch.full((4,), 5.0), torch.zeros(4)
    driver.faults.hides = lambda name, argument: name == "aten.add.out" and argument == 0
    graph, _ = captured(driver, lambda: torch.add(x, y, out=out))
    assert not words_of(graph, x.data_ptr()) and words_of(graph, y.data_ptr())
    graph.update(graph.nodes[0])
    graph.replay()
    assert out.tolist() == [6] * 4


def test_unknown_nodes_have_no_parameters_but_run(driver):
    x = torch.ones(2)
    driver.faults.unknown = lambda name: name == "aten.add_.Tensor"
    graph, _ = captured(driver, lambda: x.add_(1).mul_(2))
    assert kinds(graph) == [NodeKind.OTHER, NodeKind.KERNEL] and graph.nodes[0].areas == ()
    with pytest.raises(UpdateRefused):
        graph.update(graph.nodes[0])
    graph.replay()
    assert x.tolist() == [4, 4]


def test_refused_updates_change_nothing(driver):
    x, y = torch.ones(2), torch.zeros(2)
    graph, _ = captured(driver, lambda: y.copy_(x))
    driver.faults.refuses = lambda node: node.kind is NodeKind.MEMCPY
    graph.nodes[0].areas[0].set_word(0, 0)
    with pytest.raises(UpdateRefused):
        graph.update(graph.nodes[0])
    graph.replay()
    assert y.tolist() == [1, 1]


def test_identity_tells_two_captures_of_different_work_apart(driver):
    def identities(body):
        return [node.identity for node in capture(driver, body)[0].nodes]

    x, y = torch.ones(4), torch.ones(2, 2)
    assert identities(lambda: x.add(1)) == identities(lambda: x.add(1))
    assert identities(lambda: x.add(1)) != identities(lambda: y.add(1))
    assert identities(lambda: x.clone()) != identities(lambda: x[:2].clone())
    assert identities(lambda: x.zero_()) != identities(lambda: x.fill_(1))
    assert identities(lambda: x.sum(0, keepdim=True)) != identities(lambda: x.sum(0, keepdim=False))


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
