"""Recording and replay on a CUDA device, in front of hand-written functions that look like generated code.

No compiler is involved: what fails here is in `recording`, `replay` or `driver`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from pygraph_inductor.driver.devices import driver_for
from pygraph_inductor.driver.libcuda import bindings
from pygraph_inductor.driver.protocol import NodeKind
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.function import RecordedFunction
from pygraph_inductor.recording.record import Recording
from pygraph_inductor.replay import native
from pygraph_inductor.replay.plan import Engine
from pygraph_inductor.settings import Settings
from tests.gpu.child_graphs import add_child, child_graph

DEVICE = torch.device("cuda", 0)
aten = torch.ops.aten


@pytest.fixture(autouse=True, params=["launcher in C", "Python"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test is passed by the launcher and by the Python path that stands in for it."""
    if request.param == "Python":
        monkeypatch.setattr(native, "_modules", [None])
    return request.param


class Generated:
    """A function with the shape of generated code: a boxed list of inputs, allocations through a global name."""

    def __init__(self, body: Callable[..., Any], **facts: Any) -> None:
        self.namespace: dict[str, Any] = {"empty": torch._C._dynamo.guards._empty_strided_cuda}
        self.body = body
        self.function = RecordedFunction(
            self.run,
            Facts("hand-written", "inference", "", DEVICE, namespace=self.namespace, allocators=("empty",), **facts),
            driver_for(DEVICE),
        )
        self.call = self.function.entry()

    def run(self, inputs: list[Any]) -> Any:
        arguments = list(inputs)
        inputs.clear()
        with torch.no_grad():
            return self.body(self.namespace["empty"], *arguments)

    @property
    def log(self) -> Any:
        self.function.refresh()
        return self.function._log

    @property
    def recordings(self) -> list[Recording]:
        return list(self.function._entries.recordings().values())


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(got: Any, want: Any, plain_again: Any) -> bool:
    """Bitwise where plain calls repeat bitwise, else within four times their difference."""
    if torch.equal(bits(got), bits(want)):
        return True
    spread = (want.double() - plain_again.double()).abs().max()
    return bool((got.double() - want.double()).abs().max() <= 4 * spread)


def check(generated: Generated, make: Callable[[], Sequence[Any]], calls: int = 6) -> None:
    """Every call with new addresses gives what the plain call gives, and all but two were replays."""
    keep = []
    for number in range(calls):
        inputs = list(make())
        keep.append(inputs)
        copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
        more = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
        want, again = generated.run(list(copies)), generated.run(list(more))
        got = generated.call(list(inputs))
        for position, (a, b, c) in enumerate(zip(got, want, again, strict=True)):
            assert same(a, b, c), f"call {number}, output {position}"
        for position, (a, b, c) in enumerate(zip(inputs, copies, more, strict=True)):
            assert not isinstance(a, torch.Tensor) or same(a, b, c), f"call {number}, input {position}"
    assert generated.log.replays == calls - 2, generated.log.reasons


def bf(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE, dtype=torch.float32).to(dtype)


F32 = torch.float32


def out_of(shape: Sequence[int], dtype: torch.dtype, op: Callable[..., Any]) -> Callable[..., Any]:
    """A body whose only output the generated code allocates and an `out=` operator fills."""

    def body(empty: Callable[..., Any], *inputs: Any) -> Any:
        strides = torch.empty(tuple(shape), device="meta").stride()
        out = empty(tuple(shape), strides, dtype)
        op(*inputs, out=out)
        return (out,)

    return body


def owned(op: Callable[..., Any]) -> Callable[..., Any]:
    """A body whose outputs the operator allocates itself."""

    def body(empty: Callable[..., Any], *inputs: Any) -> Any:
        result = op(*inputs)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    return body


FAMILIES: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[Any]]]] = {
    "mm bf16": (out_of((512, 4096), torch.bfloat16, torch.mm), lambda: (bf(512, 1024), bf(1024, 4096))),
    "mm one row": (out_of((1, 4096), torch.bfloat16, torch.mm), lambda: (bf(1, 4096), bf(4096, 4096))),
    "mm fp32": (
        out_of((512, 4096), F32, torch.mm),
        lambda: (bf(512, 1024, dtype=F32), bf(1024, 4096, dtype=F32)),
    ),
    "addmm": (
        out_of((64, 3072), torch.bfloat16, torch.addmm),
        lambda: (bf(3072), bf(64, 768), bf(768, 3072)),
    ),
    "addmm gelu": (
        owned(lambda b, x, w: torch._addmm_activation(b, x, w, use_gelu=True)),
        lambda: (bf(4096), bf(512, 1024), bf(1024, 4096)),
    ),
    "bmm": (out_of((8, 128, 128), torch.bfloat16, torch.bmm), lambda: (bf(8, 128, 256), bf(8, 256, 128))),
    "baddbmm": (
        out_of((8, 128, 128), torch.float16, torch.baddbmm),
        lambda: tuple(bf(*s, dtype=torch.float16) for s in ((8, 128, 128), (8, 128, 256), (8, 256, 128))),
    ),
    "mv": (out_of((4096,), torch.bfloat16, torch.mv), lambda: (bf(4096, 4096), bf(4096))),
    "fp8 scaled mm": (
        owned(lambda a, b, s, t: torch._scaled_mm(a, b.t(), s, t, out_dtype=torch.bfloat16)),
        lambda: (
            bf(64, 256).to(torch.float8_e4m3fn),
            bf(128, 256).to(torch.float8_e4m3fn),
            torch.full((), 2.0, device=DEVICE),
            torch.full((), 3.0, device=DEVICE),
        ),
    ),
    "flash attention": (
        owned(lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[:2]),
        lambda: tuple(bf(4, 16, 256, 64) for _ in range(3)),
    ),
    "memory-efficient attention": (
        owned(lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[:2]),
        lambda: tuple(bf(4, 16, 256, 64) for _ in range(3)),
    ),
    "cudnn attention": (
        owned(lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)[:2]),
        lambda: tuple(bf(4, 16, 256, 64) for _ in range(3)),
    ),
    "convolution": (
        owned(lambda x, w: F.conv2d(x, w, padding=1)),
        lambda: (bf(16, 64, 56, 56), bf(128, 64, 3, 3)),
    ),
    "convolution channels last": (
        owned(lambda x, w: F.conv2d(x, w, padding=1)),
        lambda: (
            bf(16, 64, 56, 56).to(memory_format=torch.channels_last),
            bf(128, 64, 3, 3).to(memory_format=torch.channels_last),
        ),
    ),
    "convolution fp32 stem": (
        owned(lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=3)),
        lambda: (bf(4, 3, 224, 224, dtype=F32), bf(64, 3, 7, 7, dtype=F32), bf(64, dtype=F32)),
    ),
    "depthwise convolution": (
        owned(lambda x, w: F.conv2d(x, w, padding=1, groups=64)),
        lambda: (bf(16, 64, 56, 56), bf(64, 1, 3, 3)),
    ),
    "convolution backward": (
        owned(
            lambda g, x, w: aten.convolution_backward(
                g, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
            )[:2]
        ),
        lambda: (bf(16, 128, 56, 56), bf(16, 64, 56, 56), bf(128, 64, 3, 3)),
    ),
    "layer norm": (
        owned(lambda x, w, b: torch.native_layer_norm(x, (1024,), w, b, 1e-5)),
        lambda: (bf(64, 1024), bf(1024), bf(1024)),
    ),
    "embedding": (
        owned(lambda e, i: F.embedding(i, e)),
        lambda: (bf(1000, 64), torch.randint(0, 1000, (64,), device=DEVICE)),
    ),
    "cat of 32": (owned(lambda *xs: torch.cat(xs, 1)), lambda: tuple(bf(64, 32) for _ in range(32))),
    "sort": (owned(lambda x: torch.sort(x, dim=-1)), lambda: (bf(64, 5000, dtype=F32),)),
    "topk": (owned(lambda x: torch.topk(x, 5, dim=-1)), lambda: (bf(64, 5000, dtype=F32),)),
    # Whole numbers, so that the order of additions, which the scan leaves open, does not show.
    "cumsum": (owned(lambda x: x.cumsum(0)), lambda: (bf(100000, dtype=F32).round(),)),
    "index_put accumulate": (
        owned(lambda x, i, v: x.index_put((i,), v, accumulate=True)),
        lambda: (bf(1000, 64, dtype=F32), torch.randint(0, 1000, (64,), device=DEVICE), bf(64, 64, dtype=F32)),
    ),
    "foreach": (owned(lambda *xs: torch._foreach_add(list(xs), 1.0)), lambda: tuple(bf(33, 32) for _ in range(40))),
    "clone": (owned(lambda x: x.clone()), lambda: (bf(1024, 1024),)),
    "zeros": (owned(lambda x: (torch.zeros_like(x), x + 1)), lambda: (bf(256, 256),)),
    "lstm": (
        owned(lambda x, h, c, *w: torch.lstm(x, (h, c), list(w), True, 1, 0.0, False, False, True)[0]),
        lambda: (bf(8, 20, 64), bf(1, 8, 64), bf(1, 8, 64), bf(256, 64), bf(256, 64), bf(256), bf(256)),
    ),
    "softmax": (owned(lambda x: torch.softmax(x, -1)), lambda: (bf(64, 1000, dtype=F32),)),
    "pooling": (owned(lambda x: F.max_pool2d_with_indices(x, 2)), lambda: (bf(4, 16, 32, 32, dtype=F32),)),
    "grouped mm": (
        owned(lambda a, b, o: torch._grouped_mm(a, b, o)),
        lambda: (bf(64, 128), bf(4, 128, 64), torch.tensor([16, 32, 48, 64], device=DEVICE, dtype=torch.int32)),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_family_equals_the_plain_call_at_new_addresses(family: str) -> None:
    body, make = FAMILIES[family]
    generated = Generated(body)
    check(generated, make)
    engines = {engine for recording in generated.recordings for engine in recording.log.slots}
    assert engines == {"patch"}, (engines, [node.name for node in generated.recordings[0].graph.nodes])


def test_the_launcher_answers_ordinary_calls(path: str) -> None:
    generated = Generated(out_of((512, 4096), torch.bfloat16, torch.mm))
    check(generated, lambda: (bf(512, 1024), bf(1024, 4096)), calls=8)
    in_python = generated.recordings[0].python_replays
    assert in_python == (0 if path == "launcher in C" else 6)


def test_slots_on_the_copy_engine_are_copied_by_the_graph(path: str) -> None:
    generated = Generated(out_of((512, 4096), torch.bfloat16, torch.mm), settings=Settings(engine="copy"))
    check(generated, lambda: (bf(512, 1024), bf(1024, 4096)))
    (recording,) = generated.recordings
    assert recording.log.slots == {"copy": 3} and recording.player.staged == 0
    assert (recording.python_replays == 0) is (path == "launcher in C")
    copies = [node.index for node in recording.graph.nodes if node.kind is NodeKind.MEMCPY]
    assert [[binding.node for binding in slot.bindings] for slot in recording.player.plan.slots] == [
        [copies[0]],
        [copies[1]],
        [copies[-1]],
    ]


def test_written_input_on_the_copy_engine_is_copied_back() -> None:
    def body(empty: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(y)
        out = empty((64, 64), (64, 1), F32)
        torch.mm(x, y, out=out)
        return (out, x, torch.sort(y)[1])

    generated = Generated(body, mutated_inputs=frozenset({0}), settings=Settings(engine="copy"))
    check(generated, lambda: (bf(64, 64, dtype=F32), bf(64, 64, dtype=F32).t()))
    assert set(generated.recordings[0].log.slots) == {"copy"} and generated.recordings[0].player.staged == 0


def test_graph_inside_a_graph_that_mentions_no_slot_costs_no_copy(path: str) -> None:
    inside, doubled = bf(64, 64), bf(64, 64)
    inner = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(inner):
        torch.mul(inside, 2, out=doubled)
    inner.instantiate()

    def body(empty: Callable[..., Any], x: torch.Tensor) -> Any:
        inside.copy_(x)
        if torch.cuda.is_current_stream_capturing():
            add_child(bindings().CUgraph(inner.raw_cuda_graph()))
        else:
            inner.replay()
        out = empty((64, 64), (64, 1), torch.bfloat16)
        torch.add(doubled, x, out=out)
        return (out,)

    generated = Generated(body)
    check_sum(generated, path, lambda x: (x,), 3)
    assert set(generated.recordings[0].log.slots) == {"patch"}


def check_sum(generated: Generated, path: str, inputs: Callable[..., Any], times: int) -> None:
    """So many times the first input, in a graph with a child graph, whatever moves."""
    kept = [inputs(bf(64, 64)) for _ in range(6)]
    for tensors in kept:
        (got,) = generated.call(list(tensors))
        torch.testing.assert_close(got, tensors[0] * times, rtol=0.02, atol=0.02)
    (recording,) = generated.recordings
    nodes = recording.graph.nodes
    assert [node.kind for node in nodes].count(NodeKind.GRAPH) == 1
    assert [node.updatable for node in nodes] == sorted((node.updatable for node in nodes), reverse=True)
    assert not nodes[-1].updatable and recording.player.staged == 0
    assert (recording.python_replays == 0) is (path == "launcher in C")


def test_only_what_a_graph_inside_a_graph_mentions_is_copied(path: str) -> None:
    doubled = bf(64, 64)

    def body(empty: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        if torch.cuda.is_current_stream_capturing():
            with child_graph() as stream, torch.cuda.stream(stream):
                torch.mul(x, 2, out=doubled)
        else:
            torch.mul(x, 2, out=doubled)
        out = empty((64, 64), (64, 1), torch.bfloat16)
        torch.add(doubled, y, out=out)
        return (out,)

    generated = Generated(body)
    check_sum(generated, path, lambda x: (x, x * 2), 4)
    recording = generated.recordings[0]
    assert [slot.engine for slot in recording.player.plan.slots] == [Engine.COPY, Engine.PATCH, Engine.PATCH]
    assert recording.log.nodes["memcpy"] == 1


def test_gaps_of_a_written_input_stay_as_they_are() -> None:
    """The player copies elements there, and the graph would copy bytes."""
    generated = Generated(
        lambda empty, x: (x.mul_(2).sum(0),), mutated_inputs=frozenset({0}), settings=Settings(engine="copy")
    )
    for _ in range(6):
        memory = bf(64, 64, dtype=F32)
        want = memory.clone()
        want[:, ::2] *= 2
        (got,) = generated.call([memory[:, ::2]])
        torch.testing.assert_close(got, want[:, ::2].sum(0))
        assert torch.equal(memory, want)
    assert generated.recordings[0].player.staged > 0


def test_written_input_is_written_in_place() -> None:
    def body(empty: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(y)
        out = empty((64, 64), (64, 1), F32)
        torch.mm(x, y, out=out)
        return (out, x)

    generated = Generated(body, mutated_inputs=frozenset({0}))
    check(generated, lambda: (bf(64, 64, dtype=F32), bf(64, 64, dtype=F32)))
    x, y = bf(64, 64, dtype=F32), bf(64, 64, dtype=F32)
    version = x._version
    _out, returned = generated.call([x, y])
    assert returned is x
    assert x._version == version + 1


def test_undeclared_write_is_found_before_it_is_recorded() -> None:
    def body(empty: Callable[..., Any], x: torch.Tensor) -> Any:
        out = empty((64,), (1,), F32)
        torch.add(x, 1, out=out)
        x.mul_(2)
        return (out,)

    generated = Generated(body)
    check_calls = 7
    for _ in range(check_calls):
        x = bf(64, dtype=F32)
        twin = x.clone()
        (out,) = generated.call([x])
        assert torch.equal(out, twin + 1) and torch.equal(x, twin * 2)
    assert generated.log.replays == check_calls - 3


def test_misaligned_inputs_are_staged_for_that_call_only() -> None:
    generated = Generated(owned(lambda x, y: torch.relu(x) + y), checked_inputs=frozenset({0, 1}))
    base, other = bf(1200, dtype=F32), bf(1200, dtype=F32)
    for number, (i, j) in enumerate([(0, 0), (0, 0), (1, 0), (3, 2), (64, 128), (0, 7), (0, 0)]):
        x, y = base[i : i + 1024], other[j : j + 1024]
        (out,) = generated.call([x, y])
        assert torch.equal(out, torch.relu(x) + y), f"call {number}"
    assert generated.log.replays == 5
    assert generated.recordings[0].player.staged == 4


def test_outputs_survive_later_calls() -> None:
    generated = Generated(out_of((64, 64), F32, torch.mm))
    kept = []
    for _ in range(6):
        x, y = bf(64, 64, dtype=F32), bf(64, 64, dtype=F32)
        kept.append((generated.call([x, y])[0], x @ y))
    torch.cuda.synchronize()
    assert all(torch.equal(got, want) for got, want in kept)


def test_random_numbers_are_those_of_the_plain_call() -> None:
    def body(empty: Callable[..., Any], x: torch.Tensor) -> Any:
        return (torch.native_dropout(x, 0.5, True)[0],)

    generated = Generated(body)
    x = torch.ones(4096, device=DEVICE)
    torch.cuda.manual_seed(7)
    got = [generated.call([x])[0].clone() for _ in range(6)]
    torch.cuda.manual_seed(7)
    want = [generated.run([x])[0].clone() for _ in range(6)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert not torch.equal(got[-1], got[-2])
    assert generated.log.replays == 4


def test_failed_capture_leaves_random_numbers_and_memory_usable() -> None:
    def body(empty: Callable[..., Any], x: torch.Tensor) -> Any:
        y = torch.native_dropout(x, 0.5, True)[0]
        return (y + float(x.sum().item()),)  # a synchronisation: no capture allows it

    generated = Generated(body)
    x = torch.ones(4096, device=DEVICE)
    torch.cuda.manual_seed(7)
    got = [generated.call([x])[0].clone() for _ in range(4)]
    torch.cuda.manual_seed(7)
    want = [generated.run([x])[0].clone() for _ in range(4)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert generated.log.replays == 0 and generated.log.reasons
    check(Generated(lambda empty, x: (torch.native_dropout(x, 0.0, True)[0],)), lambda: (bf(4096, dtype=F32),))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        borrowed = torch.empty(1 << 20, device=DEVICE)
    borrowed.record_stream(torch.cuda.current_stream())
    del borrowed
    torch.cuda.synchronize()
    torch.empty(1, device=DEVICE)
    gc.collect()


def test_interrupt_inside_the_capture_is_the_users() -> None:
    interrupts = iter([True, False, False, False])

    def body(empty: Callable[..., Any], x: torch.Tensor) -> Any:
        if torch.cuda.is_current_stream_capturing() and next(interrupts):
            raise KeyboardInterrupt
        return (torch.native_dropout(x, 0.5, True)[0],)

    generated = Generated(body)
    x = torch.ones(4096, device=DEVICE)
    generated.call([x])
    with pytest.raises(KeyboardInterrupt):
        generated.call([x])
    for _ in range(3):
        out = generated.call([x])[0]
        assert set(out.unique().tolist()) == {0.0, 2.0}


def test_memory_returns_when_the_last_recording_is_gone() -> None:
    def level() -> tuple[int, int]:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def once() -> None:
        generated = Generated(owned(lambda x: torch.softmax((x @ x).relu() @ x, -1)))
        check(generated, lambda: (bf(2048, 2048, dtype=F32),))

    once()
    before = level()
    once()
    after = level()
    assert after[0] - before[0] <= 8 << 20 and after[1] - before[1] <= 8 << 20


def test_stream_switch_waits_for_the_replay_before() -> None:
    generated = Generated(owned(lambda x: (x @ x @ x @ x).relu()))
    x = bf(2048, 2048, dtype=F32)
    want = generated.run([x])[0]
    side = torch.cuda.Stream()
    for number in range(8):
        stream = side if number % 2 else torch.cuda.default_stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            out = generated.call([x])[0]
        stream.synchronize()
        assert torch.equal(out, want), f"call {number}"


def test_kernels_of_every_kind_of_node_are_counted() -> None:
    generated = Generated(owned(lambda x: (x.clone(), torch.zeros_like(x), x + 1)))
    check(generated, lambda: (bf(1024, 1024, dtype=F32),))
    kinds = {node.kind for node in generated.recordings[0].graph.nodes}
    assert NodeKind.KERNEL in kinds and NodeKind.MEMCPY in kinds
