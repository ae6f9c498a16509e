"""The simulated driver keeps the rules of CUDA graphs: nothing runs in a capture, a replay knows only its words."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch

from pygraph_inductor.driver.protocol import CaptureFailed, NodeKind, UpdateRefused
from tests.unit.capturing import F32, aten, capture, captured, kinds, words_of


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


def test_a_capture_within_a_capture_is_refused(driver):
    with pytest.raises(CaptureFailed, match="capturing already"):
        capture(driver, lambda: capture(driver, lambda: None))


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
