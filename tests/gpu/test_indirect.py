"""Twins on the device: the same bits as the kernels themselves, from addresses that a graph's first node writes.

The plain call runs the kernels, the replay their twins; `agree` compares them on addresses that move in every call.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import pygraph_inductor
from pygraph_inductor.driver import table
from pygraph_inductor.driver.devices import driver_for
from pygraph_inductor.driver.protocol import TABLE_WRITER, TWIN, NodeKind
from pygraph_inductor.recording import engines as planning
from pygraph_inductor.recording.function import RecordedFunction
from pygraph_inductor.recording.record import Recording
from pygraph_inductor.replay.plan import Engine
from pygraph_inductor.selection import calibrating
from pygraph_inductor.selection.cost_model import Coefficients
from pygraph_inductor.selection.probing import Case, Turns
from tests.gpu import models
from tests.gpu.child_graphs import child_graph
from tests.gpu.comparing import CALLS, DEVICE, Agreement, Counting, agree, compiled, plainly, same_bits

pytestmark = pytest.mark.timeout(300)
F16, BF16, F64, I64 = torch.float16, torch.bfloat16, torch.float64, torch.int64


@pytest.fixture(autouse=True)
def indirectly() -> Iterator[None]:
    """Every slot that can be is found through a table; errors of ours are not hidden by the plain call."""
    with pygraph_inductor.config.patch(engine="indirect", selection=False, strict=True):
        yield


def randn(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE).to(dtype)


def below(limit: int, *size: int) -> torch.Tensor:
    return torch.randint(0, limit, size, device=DEVICE)


def recordings() -> list[Recording]:
    """All recordings that are alive."""
    # By its very type: asking a dead weak proxy whether it is one raises.
    return [one for one in gc.get_objects() if type(one) is Recording and not one.closed]


def names(recording: Recording) -> list[str]:
    """What the driver calls the nodes of the graph that is replayed."""
    return [node.name for node in recording.graph.nodes]


def count(kind: Callable[[str], bool]) -> int:
    return sum(kind(name) for recording in recordings() for name in names(recording))


def is_twin(name: str) -> bool:
    return name.endswith(TWIN)


def is_table(name: str) -> bool:
    return name == TABLE_WRITER


def expect_twins(at_least: int = 1) -> None:
    """Twins are in the graphs, a table is in front of them, and no twin holds a slot's address itself."""
    assert count(is_twin) >= at_least, [names(recording) for recording in recordings()]
    for recording in recordings():
        nodes = names(recording)
        if any(map(is_twin, nodes)):
            assert is_table(nodes[0])
        slots = [slot for slot in recording.player.plan.slots if slot.engine is Engine.INDIRECT]
        for slot in slots:
            bound = [nodes[binding.node] for binding in slot.bindings]
            assert bound.count(TABLE_WRITER) == 1
            assert sum(map(is_twin, bound)) == 0 or _is_also_given_directly(slot, recording)


def _is_also_given_directly(slot: Any, recording: Recording) -> bool:
    """A twin may be given a view that begins inside the slot: that address is rewritten."""
    nodes = names(recording)
    return all(binding.addend for binding in slot.bindings if is_twin(nodes[binding.node]))


def expect_templates_twin(agreement: Agreement, at_least: int = 1) -> None:
    """Twins of templates are in the graphs. Which configuration tuning takes is chance: in some, a twin would spill."""
    logs = [log for function in agreement.counting.functions for log in function.recordings]
    refused = [why for log in logs for kernel, why in log.without_twins.items() if kernel.startswith(TEMPLATE)]
    assert set(refused) <= {"its twin would need more registers than there are"}
    assert count(lambda name: name.startswith(TEMPLATE) and is_twin(name)) + len(refused) >= at_least


@dataclass(frozen=True)
class Shape:
    """A program whose kernels have one of the shapes that Inductor makes. With `template`, one of them is a template:
    Inductor's other kernels around it have twins in any case.
    """

    function: Callable[..., Any]
    make: Callable[[], Sequence[torch.Tensor]]
    twins: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    template: bool = False


def _in_place(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(y)
    return x * 2


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (1024,), weight, bias).to(BF16)


def _fp8(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    narrow = x.to(torch.float8_e4m3fn)
    return narrow, (x * 2).to(torch.float8_e5m2), narrow.float() + 1


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Causal, and each head has a bias of its own, which the template reads besides."""
    return flex_attention(
        q, k, v, score_mod=lambda score, b, h, i, j: torch.where(i >= j, score + bias[h], -float("inf"))
    )


TEMPLATE = "triton_tem"
ONLY_TRITON = {
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON",
}
SHAPES: dict[str, Shape] = {
    "pointwise": Shape(lambda x, y: torch.relu(x + y) * 2, lambda: (randn(1000, 257), randn(1000, 257))),
    "pointwise, wide": Shape(lambda x, y: x * y + 1, lambda: (randn(1 << 20), randn(1 << 20))),
    "pointwise, mixed types": Shape(
        lambda x, y, z: x.float() + y + z, lambda: (randn(64, 64, dtype=F16), randn(64, dtype=F64), below(9, 64, 64))
    ),
    "two tiles": Shape(lambda x, y: x.t() + y, lambda: (randn(513, 300), randn(300, 513))),
    "strided": Shape(lambda x: x[3:, ::2] * 2, lambda: (randn(131, 64),)),
    "persistent reduction": Shape(_layer_norm, lambda: (randn(128, 1024), randn(1024), randn(1024))),
    "looped reduction": Shape(lambda x: (x.sum(-1), x.amax(-1)), lambda: (randn(16, 30000),)),
    "reduction over the outer dimension": Shape(lambda x: x.sum(0), lambda: (randn(5000, 64),), twins=2),
    "softmax": Shape(lambda x: torch.softmax(x, -1), lambda: (randn(64, 1000),)),
    "welford": Shape(lambda x: torch.var_mean(x, -1), lambda: (randn(16, 9000),)),
    "scan": Shape(lambda x: torch.cumsum(x, -1), lambda: (randn(32, 500),)),
    "split scan": Shape(lambda x: torch.cumsum(x, 0), lambda: (randn(1 << 20),)),
    "sort": Shape(lambda x: torch.sort(x, -1), lambda: (randn(64, 128),)),
    "gather": Shape(lambda x, i: x[i] * 2, lambda: (randn(1000, 64, dtype=BF16), below(1000, 77))),
    "embedding": Shape(
        lambda w, i: torch.nn.functional.embedding(i, w) + 1, lambda: (randn(1000, 64), below(1000, 4, 77))
    ),
    "atomics": Shape(
        lambda t, i, v: t.index_add(0, i, v), lambda: (randn(64, 64), below(64, 500), randn(500, 64)), twins=2
    ),
    "in place": Shape(_in_place, lambda: (randn(300, 300), randn(300, 300))),
    "bool": Shape(lambda x, m: (torch.where(m, x, 0.0), m.logical_not()), lambda: (randn(4096), randn(4096) > 0)),
    "fp8": Shape(_fp8, lambda: (randn(64, 64),)),
    "foreach": Shape(lambda *x: torch._foreach_add(x, 2.0), lambda: (randn(64), randn(3, 5), randn(1000))),
    "combo kernel": Shape(
        lambda x, y: (x.sin(), y + 1), lambda: (randn(64, 8), randn(100)), options={"combo_kernels": True}
    ),
    "cooperative reduction": Shape(
        lambda x: x.sum(), lambda: (randn(1 << 20),), options={"triton.force_cooperative_reductions": True}
    ),
    "random numbers": Shape(lambda x: torch.nn.functional.dropout(x, 0.5), lambda: (randn(300, 300),)),
    "three tiles": Shape(
        lambda x, y: x.permute(2, 1, 0) + y,
        lambda: (randn(40, 50, 70), randn(70, 50, 40)),
        options={"triton.max_tiles": 3, "triton.prefer_nd_tiling": True},
    ),
    "matmul template": Shape(
        lambda x, w: torch.relu(x @ w),
        lambda: (randn(512, 256, dtype=F16), randn(256, 512, dtype=F16)),
        options=ONLY_TRITON,
        template=True,
    ),
    "bmm template": Shape(
        lambda x, w: torch.relu(x @ w),
        lambda: (randn(6, 256, 128, dtype=F16), randn(6, 128, 192, dtype=F16)),
        options=ONLY_TRITON,
        template=True,
    ),
    "flex attention": Shape(
        _attention, lambda: (*(randn(2, 4, 256, 64, dtype=F16) for _ in range(3)), randn(4)), template=True
    ),
}


def with_options(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    return torch.compile(function, options={"triton.cudagraphs": True, **options})


@pytest.mark.parametrize("name", SHAPES)
def test_twins_give_the_same_bits_on_addresses_that_move(name: str) -> None:
    shape = SHAPES[name]
    with torch.no_grad():
        call = with_options(shape.function, shape.options)
        agreement = agree(call, lambda _: tuple(shape.make()), replays=CALLS - 2)
    if shape.template:
        expect_templates_twin(agreement)
    else:
        expect_twins(shape.twins)


def test_flex_attention_has_twins_forwards_and_backwards() -> None:
    call = compiled(_attention)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
        out = call(q, k, v, bias)
        return [out.detach(), *torch.autograd.grad(out.float().square().sum(), (q, k, v))]

    def make(_: int) -> list[torch.Tensor]:
        return [*(randn(2, 4, 256, 64, dtype=F16).requires_grad_() for _ in range(3)), randn(4)]

    agreement = agree(step, make, replays=2 * (CALLS - 2))
    expect_templates_twin(agreement, 2)


def test_reductions_of_rows_and_columns_in_one_kernel_have_a_twin() -> None:
    """Inductor's "mix order" reduction, which it makes of large tensors only."""
    import torch._inductor.config as inductor_config
    from torch._inductor import metrics

    if not hasattr(inductor_config.triton, "mix_order_reduction"):
        pytest.skip("this torch has none")

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = x * y
        return product.sum(1), product.sum(0)

    made = metrics.codegen_mix_order_reduction
    # What comes from a cache is not counted.
    with inductor_config.patch(force_disable_caches=True), torch.no_grad():
        call = with_options(function, {"triton.mix_order_reduction": True})
        agree(call, lambda _: (randn(8192, 1024), randn(8192, 1024)), replays=CALLS - 2)
    assert metrics.codegen_mix_order_reduction > made
    expect_twins()


def three_reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Over rows, columns, rows: no two of them can be one kernel, and each uses `x`."""
    first = torch.softmax(x, 1)
    second = torch.softmax(first + x, 0)
    return first, second, torch.softmax(second * x, 1)


def test_one_node_is_updated_whatever_moved() -> None:
    with torch.no_grad():
        call = compiled(three_reductions)
        agreement = agree(call, lambda _: (randn(300, 300),), replays=CALLS - 2)
    (facts,) = agreement.counting.functions
    (log,) = facts.recordings
    assert log.twins >= 3 and set(log.slots) == {"indirect"}
    # Once more for the replay that verified it. The rest of the nodes has never been touched.
    assert log.updates == log.replays + 1


def long_work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Milliseconds on the device. Kernels read `x` until the end, when they write the outputs."""
    z = y
    for number in range(12):
        z = torch.softmax(z * 2 + x, number % 2)
    return z, z - y


LONG = (4096, 4096)
BACK_TO_BACK = 12


class BackToBack:
    """Calls of `long_work` from its graph that wait for nothing, each with tensors that are where none were before."""

    def __init__(self, streams: Sequence[torch.cuda.Stream]) -> None:
        self.counting = Counting()
        self.call = compiled(long_work)
        for stream in streams:
            for _ in range(3):
                with torch.cuda.stream(stream):
                    self.call(randn(*LONG), randn(*LONG))
                torch.cuda.synchronize()
        self.replays_before = self.counting.replays
        self.inputs = [(randn(*LONG), randn(*LONG)) for _ in range(BACK_TO_BACK)]
        for stream in streams:  # blocks for the results: whoever asks the driver for memory may wait for the device
            with torch.cuda.stream(stream):
                room = [torch.empty(LONG, device=DEVICE) for _ in range(2 * BACK_TO_BACK)]
                del room
        self.results: dict[int, tuple[torch.Tensor, ...]] = {}
        self.ends = {number: torch.cuda.Event() for number in range(BACK_TO_BACK)}
        torch.cuda.synchronize()

    def run(self, number: int) -> None:
        self.results[number] = self.call(*self.inputs[number])
        self.ends[number].record()

    def ended(self) -> int:
        """The calls that the device is done with."""
        return sum(end.query() for end in self.ends.values())

    def check(self) -> None:
        torch.cuda.synchronize()
        assert self.counting.replays - self.replays_before >= BACK_TO_BACK - 2, self.counting
        expect_twins(12)
        for number, pair in enumerate(self.inputs):
            with plainly():
                wanted = self.call(*pair)
            for got, want in zip(self.results[number], wanted, strict=True):
                assert same_bits(got, want), f"call {number}"


@pytest.mark.parametrize("held", [True, False], ids=["before any runs", "while others run"])
def test_table_is_refreshed_for_replays_to_come_and_not_for_one_that_still_runs(held: bool) -> None:
    """With `held`, all calls are submitted before the first one may begin; else the device falls behind by itself."""
    with torch.no_grad():
        calls = BackToBack([torch.cuda.current_stream()])
        updates = sum(log.updates for function in calls.counting.functions for log in function.recordings)
        if held:
            torch.cuda._sleep(1 << 29)  # a fraction of a second
        for number in range(BACK_TO_BACK):
            calls.run(number)
        ended = calls.ended()
        calls.check()
    assert ended <= (0 if held else BACK_TO_BACK // 2), "the host was too slow for this to test anything"
    (log,) = calls.counting.functions[0].recordings
    assert set(log.slots) == {"indirect"}
    assert log.updates - updates == BACK_TO_BACK  # the node that writes the table, in each call


@pytest.mark.parametrize("held", [True, False], ids=["before any runs", "while others run"])
def test_table_is_refreshed_for_replays_on_two_streams_by_turns(held: bool) -> None:
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    with torch.no_grad():
        calls = BackToBack(streams)
        for stream in streams if held else ():
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1 << 29)
        for number in range(BACK_TO_BACK):
            with torch.cuda.stream(streams[number % 2]):
                calls.run(number)
        calls.check()


def test_table_is_refreshed_for_replays_of_two_threads_on_their_streams() -> None:
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    with torch.no_grad():
        calls = BackToBack(streams)

        def work(first: int) -> None:
            with torch.no_grad(), torch.cuda.stream(streams[first]):
                for number in range(first, BACK_TO_BACK, 2):
                    calls.run(number)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(work, range(2)))
        calls.check()


def test_patching_updates_every_kernel_of_the_same_program() -> None:
    with pygraph_inductor.config.patch(engine="patch"), torch.no_grad():
        call = compiled(three_reductions)
        agreement = agree(call, lambda _: (randn(300, 300),), replays=CALLS - 2)
    (log,) = agreement.counting.functions[0].recordings
    assert log.twins == 0 and log.updates >= 3 * (log.replays + 1)
    assert count(is_table) == count(is_twin) == 0


def test_library_kernels_of_a_slot_in_the_table_are_patched() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.relu(x) @ w, x @ w, x.sum(0)

    with torch.no_grad():
        call = compiled(function)
        agree(call, lambda _: (randn(256, 256), randn(256, 256)), replays=CALLS - 2)
    expect_twins(2)


@pytest.mark.parametrize("engine", ["indirect", "auto"])
def test_kernels_in_a_child_graph_read_the_table(engine: str) -> None:
    """Nobody can tell them new addresses, so what the model would rather do does not matter."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, 1) + y, y.sum(0), torch.relu(x)

    with torch.no_grad(), pygraph_inductor.config.patch(engine=engine):
        call = compiled(function)
        before = recorded_functions()
        call(randn(300, 300), randn(300, 300))
        (newest,) = (one for one in recorded_functions() if not any(one is old for old in before))
        launch_inside(child_graph, newest)
        agree(call, lambda _: (randn(300, 300), randn(300, 300)), replays=CALLS - 2)
    expect_twins(2)
    (recording,) = [one for one in recordings() if any(map(is_twin, names(one)))]
    assert {slot.engine for slot in recording.player.plan.slots} == {Engine.INDIRECT}
    kernels = [node for node in recording.graph.nodes if node.kind is NodeKind.KERNEL]
    assert [node.updatable for node in kernels] == [True] + [False] * (len(kernels) - 1)
    assert recording.player.staged == 0 and "memcpy" not in recording.log.nodes


def recorded_functions() -> list[RecordedFunction]:
    return [one for one in gc.get_objects() if type(one) is RecordedFunction]


def launch_inside(graph: Callable[[], AbstractContextManager[torch.cuda.Stream]], function: RecordedFunction) -> None:
    """Let its captures put all its kernels into such a graph inside theirs."""
    run, namespace = function._run, function._facts.namespace

    def inside(inputs: list[Any]) -> Any:
        if not torch.cuda.is_current_stream_capturing():
            return run(inputs)
        with graph() as stream, mock.patch.dict(namespace, get_raw_stream=lambda _: stream.cuda_stream):
            return run(inputs)

    function._run = inside


def test_misaligned_input_is_staged_for_its_call() -> None:
    def make(number: int) -> tuple[torch.Tensor, ...]:
        return (randn(4097)[1:] if number in (3, 5) else randn(4096),)

    with torch.no_grad():
        call = compiled(lambda x: torch.softmax(x, 0) * 2)
        agree(call, make, calls=8, replays=5)
    expect_twins()


def test_more_slots_than_one_node_of_the_table_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 inputs and 40 outputs, one of each in a kernel, and nodes that take 64."""
    monkeypatch.setattr(table, "_SIZES", (16, 64))
    with torch.no_grad():
        call = compiled(lambda *tensors: tuple(torch.softmax(one, 0) for one in tensors))
        agree(call, lambda _: tuple(randn(64) for _ in range(40)), calls=5, replays=3)
    expect_twins()
    assert [names(recording).count(TABLE_WRITER) for recording in recordings()] == [2]


def test_twins_of_kernels_with_hundreds_of_tensors() -> None:
    """300 inputs and 300 outputs, in a handful of kernels, whose twins may be refused because they spill."""
    with torch.no_grad():
        call = compiled(lambda *tensors: torch._foreach_mul(tensors, 2.0))
        agree(call, lambda _: tuple(randn(64) for _ in range(300)), calls=5, replays=3)


def test_kernel_of_the_user_is_patched_and_reported() -> None:
    triton_kernels = pytest.importorskip("tests.gpu.triton_kernels", reason="no Triton")

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.empty_like(x)
        triton_kernels.scale_and_add[(triton_kernels.blocks(x.numel()),)](x, y, out, x.numel(), BLOCK=256)
        return out, x + y

    with torch.no_grad():
        call = compiled(function)
        agreement = agree(call, lambda _: (randn(64, 64), randn(64, 64)), replays=CALLS - 2)
    expect_twins()
    (log,) = agreement.counting.functions[0].recordings
    assert list(log.without_twins.values()) == ["it is written by the user"]


def test_code_from_inductors_cache_has_twins_as_well() -> None:
    """The kernels of the second compilation come from files: nothing but the module's text says what they are."""
    import torch._inductor.config as inductor_config
    from torch._dynamo.utils import counters

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 3.25, 1) + 0.875

    with inductor_config.patch(fx_graph_cache=True), torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            gc.collect()
            call = compiled(function)
            agree(call, lambda _: (randn(77, 91),), replays=CALLS - 2)
            expect_twins()
    assert counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"] >= 1


def test_twins_outlive_a_collection_and_other_twins() -> None:
    """A graph runs functions of modules that go with the objects that loaded them."""
    call = compiled(three_reductions)
    with torch.no_grad():
        for _ in range(4):
            call(randn(64, 64))
        for size in range(65, 69):
            other = compiled(lambda x: x.sum(0) * 2)
            for _ in range(3):
                other(randn(size, 32))
            del other
            gc.collect()
        x = randn(64, 64)
        for got, want in zip(call(x), three_reductions(x), strict=True):
            torch.testing.assert_close(got, want)
    expect_twins()


@pytest.mark.parametrize(("load", "chosen"), [(0.0, True), (1000.0, False)])
def test_auto_follows_the_model(monkeypatch: pytest.MonkeyPatch, load: float, chosen: bool) -> None:
    dear_updates = Coefficients(node_update=50.0, indirect_load=load)
    monkeypatch.setattr(planning, "coefficients", lambda driver, folder: dear_updates)
    with pygraph_inductor.config.patch(engine="auto"), torch.no_grad():
        call = compiled(three_reductions)
        agreement = agree(call, lambda _: (randn(300, 300),), replays=CALLS - 2)
    assert (count(is_twin) > 0) is chosen
    (log,) = agreement.counting.functions[0].recordings
    assert ("indirect" in log.slots) is chosen
    assert log.why


def sixty_reductions(x: torch.Tensor) -> torch.Tensor:
    """Over rows and columns by turns: half of the kernels read `x`, the last one has the output."""
    y = x
    for number in range(60):
        y = torch.softmax(y * 2 + x, number % 2)
    return y.sum(0)


# Else Inductor lets what the columns' maxima were kept in be the output in the end: then every kernel has its address.
NOT_REUSED = {"allow_buffer_reuse": False, "inplace_buffers": False}


@pytest.mark.parametrize("copying", [2.0, 1000.0])
def test_auto_copies_a_small_input_with_many_readers(monkeypatch: pytest.MonkeyPatch, copying: float) -> None:
    costs = Coefficients(node_update=0.2, table_node=4.0, copy_launch=copying)
    monkeypatch.setattr(planning, "coefficients", lambda driver, folder: costs)
    with pygraph_inductor.config.patch(engine="auto"), torch.no_grad():
        call = with_options(sixty_reductions, NOT_REUSED)
        agreement = agree(call, lambda _: (randn(64, 64),), replays=CALLS - 2)
    (log,) = agreement.counting.functions[0].recordings
    assert log.kernels >= 60 and log.staged == 0
    assert log.slots == ({"copy": 1, "patch": 1} if copying == 2.0 else {"patch": 2}), log.why
    # In each replay and in the one that verified it: the copy and the few kernels that have the output, or half of all.
    if copying == 2.0:
        assert log.updates <= 5 * (log.replays + 1)
    else:
        assert log.updates >= 30 * (log.replays + 1)


@pytest.mark.model
@pytest.mark.parametrize("name", ["bert", "bert_dropout", "recommender", "checkpointed"])
def test_training(name: str) -> None:
    torch.manual_seed(0)
    work = models.TRAINING[name]()
    call = compiled(work.call)

    def step(*batch: Any) -> list[Any]:
        work.model.zero_grad(set_to_none=True)
        loss = call(*batch)
        loss.backward()
        return [loss.detach(), *(p.grad for p in work.model.parameters())]

    with torch._dynamo.config.patch(work.settings):
        agree(step, lambda _: work.inputs(), state=list(work.model.buffers()), replays=2 * (CALLS - 2))
    expect_twins(2)


def test_coefficients_measured_here_are_plausible() -> None:
    """Wide bounds: what is tested is that the probe's kernels, twin and table run, and that differences have a sign."""
    driver = driver_for(torch.device(DEVICE, torch.cuda.current_device()))
    measured = calibrating.measure(driver, rounds=20)
    assert 0.02 < measured.node_update
    assert 1e5 < measured.bytes_per_us < 2e7
    if "PYTEST_XDIST_WORKER" not in os.environ:  # beside other tests, the host's share of a call is anything
        assert measured.node_update < 3.0
        assert measured.indirect_load < 2.0
        assert measured.table_node < 20.0
        assert measured.table_update < 20.0
        assert 0.3 < measured.copy_launch < 20.0
    assert not any(one.name == "calibration" for one in pygraph_inductor.report().functions)


@pytest.mark.parametrize("engine", ["patch", "indirect", "copy"])
def test_case_of_the_cost_model_runs_the_kernels_of_its_engine(engine: str) -> None:
    driver = driver_for(torch.device(DEVICE, torch.cuda.current_device()))
    gc.collect()
    with driver.guard(), Turns(driver) as turns:
        turns.add(Case(engine, 3, slots=5, moving=True))
        turns.round()
        (recording,) = recordings()
        kinds = Counter(names(recording))
        assert kinds["touch"] == (0 if engine == "indirect" else 15), kinds
        assert kinds["touch_indirect"] == (15 if engine == "indirect" else 0), kinds
        assert kinds[TABLE_WRITER] == (engine == "indirect"), kinds
        copies = [node for node in recording.graph.nodes if node.kind is NodeKind.MEMCPY]
        assert len(copies) == (5 if engine == "copy" else 0), kinds
        del recording
    gc.collect()
    assert not recordings()
