"""What the seam at `cudagraphify` tells recording, for code that Inductor generates for CUDA."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensorMode

import pygraph_inductor
from pygraph_inductor import settings
from pygraph_inductor.codegen.generated_code import read
from pygraph_inductor.driver import devices
from pygraph_inductor.seams import cudagraphify, declines, describe
from pygraph_inductor.seams.compilation import from_knobs, going_on

from .fake_cuda import compile_module, generate, tensors
from .recorder import Recorder, in_place_of_recording
from .test_wrapper import freed_then_wanted, over_the_host


@pytest.fixture
def recorder(cuda, registered, monkeypatch) -> Recorder:
    return in_place_of_recording(monkeypatch)


@pytest.fixture(autouse=True)
def nothing_noted():
    declines.clear()
    yield
    declines.clear()


def names(facts, positions) -> set[str]:
    with open(facts.namespace["__file__"]) as file:
        texts = read(file.read())
    function = "partition_" + facts.name.rpartition(" ")[2] if "partition" in facts.name else "call"
    return {texts[function].inputs[position] for position in positions}


def test_every_partition_is_handed_over_with_its_name(recorder, tmp_path):
    generated = generate(over_the_host, (64, 64), folder=tmp_path)
    [module] = generated.modules
    assert [facts.name for facts in recorder.facts] == [
        "inference graph 0, partition 0",
        "inference graph 0, partition 1",
    ]
    assert [run.__name__ for run in recorder.runs] == ["partition_0", "partition_1"]
    assert module.runner.partitions == recorder.runs
    assert all(facts.namespace is vars(module) for facts in recorder.facts)


def test_whole_graph_is_handed_over_where_partition_is_off(recorder, tmp_path):
    options = {"graph_partition": False}
    generated = generate(lambda x, y: (x @ y,), (64, 64), (64, 64), folder=tmp_path, options=options)
    [module] = generated.modules
    assert recorder.only.name == "inference graph 0"
    assert recorder.only.namespace is vars(module)
    assert recorder.runs == [module.call]


def test_facts_about_inputs_and_outputs(recorder, tmp_path):
    def function(x, w, y):
        y.add_(x)
        return x @ w, y * 2

    generate(function, (64, 64), (64, 64), (64, 64), folder=tmp_path, static_input_idxs=(1,))
    facts = recorder.only
    assert facts.kind == "inference"
    assert facts.device == torch.device("cuda", 0)
    assert names(facts, facts.static_inputs) == {"w_1"}
    assert names(facts, facts.mutated_inputs) == {"y_1"}
    assert facts.reused_inputs == frozenset()
    assert facts.visible_outputs is None
    assert facts.allocators == ("empty_strided_cuda",)
    assert facts.namespace["empty_strided_cuda"]
    assert facts.refusal is None and not facts.once_only


def test_reuse_of_donated_inputs_is_found_in_the_text(cuda, monkeypatch, tmp_path):
    """Stock's code, as somebody else's registration would leave it."""
    recorder = in_place_of_recording(monkeypatch)
    generate(over_the_host, (64, 64), folder=tmp_path)
    assert recorder.facts[1].reused_inputs == {0}
    assert recorder.facts[1].visible_outputs is None


@pytest.mark.parametrize("how, kind", [({"is_inference": False}, "forward"), ({"is_backward": True}, "backward")])
def test_kind_is_told(recorder, tmp_path, how, kind):
    from torch._inductor.cudagraph_utils import BoxedDeviceIndex

    how = {"is_inference": False, "boxed_forward_device_index": BoxedDeviceIndex(0), **how}
    generate(lambda x: (x.sin(),), (64, 64), folder=tmp_path, **how)
    assert recorder.only.kind == kind


def fakes(*offsets: int) -> list[torch.Tensor]:
    """Inputs of a call, each so many elements behind the beginning of its memory."""
    return tensors(FakeTensorMode(), [{"size": (64, 64), "offset": offset} for offset in offsets])


def checked(facts, *offsets: int) -> set[int]:
    """The positions that are aligned by a function whose first call has such inputs."""
    found = facts.checked_inputs
    return set(found(fakes(*offsets)) if callable(found) else found)


def test_checked_inputs_are_what_inductor_wants_aligned(recorder, tmp_path):
    from torch._inductor.compile_fx import get_input_idxs_to_check

    generate(lambda x, y: (x + y.sum(),), (64, 64), (64, 64), folder=tmp_path, static_input_idxs=(1,))
    assert names(recorder.only, recorder.only.static_inputs) == {"y_1"}
    static = tuple(recorder.only.static_inputs)
    assert checked(recorder.only, 0, 0) == set(get_input_idxs_to_check(fakes(0, 0), static))


@pytest.mark.parametrize("partition", [True, False])
@pytest.mark.parametrize("first", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_checked_inputs_are_those_of_the_code_whatever_the_first_call_has(recorder, tmp_path, first, partition):
    """Code for any address gets no copies, and code for aligned ones never sees another."""
    specs, options = [{"size": (64, 64), "offset": 1}, (64, 64)], {"graph_partition": partition}
    generate(lambda x, y: (x + y.sum(),), *specs, folder=tmp_path, options=options)
    assert names(recorder.only, checked(recorder.only, *first)) == {"y_1"}
    assert names(recorder.only, recorder.only.anywhere_inputs) == {"x_1"}


def test_static_inputs_are_not_expected_anywhere(recorder, tmp_path):
    """The code knows them to be aligned, and nobody checks."""
    generate(lambda x, y: (x + y.sum(),), (64, 64), (64, 64), folder=tmp_path, static_input_idxs=(0, 1))
    assert checked(recorder.only, 0, 0) == set() == recorder.only.anywhere_inputs


@pytest.mark.parametrize("partition", [True, False])
def test_backward_aligns_what_a_forward_saved_unless_it_was_compiled_for_any_address(recorder, tmp_path, partition):
    """Inductor takes what is static for aligned; but this may be a tensor of the caller's, who may misalign it."""
    specs = [(64, 64), {"size": (64, 64), "offset": 1}, (64, 64)]
    how = {"static_input_idxs": (0, 1), "is_inference": False, "is_backward": True}
    generate(
        lambda x, y, tangent: (x.cos() * tangent + y,),
        *specs,
        folder=tmp_path,
        options={"graph_partition": partition},
        **how,
    )
    assert names(recorder.only, checked(recorder.only, 1, 1, 1)) == {"x_1", "tangent_1"}
    assert names(recorder.only, recorder.only.anywhere_inputs) == {"y_1"}


def test_backward_of_another_wrapper_aligns_all_that_a_forward_saved(recorder, tmp_path, monkeypatch):
    monkeypatch.setattr(describe, "_written_down", lambda namespace: {})
    specs = [(64, 64), {"size": (64, 64), "offset": 1}, (64, 64)]
    how = {"static_input_idxs": (0, 1), "is_inference": False, "is_backward": True}
    generate(lambda x, y, tangent: (x.cos() * tangent + y,), *specs, folder=tmp_path, **how)
    assert len(checked(recorder.only, 1, 1, 1)) == 3 and not recorder.only.anywhere_inputs


def test_what_an_operator_is_given_is_not_expected_anywhere(recorder, tmp_path):
    """It may launch kernels that were compiled by themselves, for other addresses, under the same names."""
    specs = [{"size": (64, 64), "offset": 1}] * 2
    generate(lambda x, y: (x.sin() + y.cos(), y.view(32, 128) @ y.view(128, 32)), *specs, folder=tmp_path)
    assert names(recorder.only, recorder.only.anywhere_inputs) == {"x_1"}
    assert not checked(recorder.only, 0, 0)


def test_code_that_asserts_that_inputs_are_aligned_is_not_taken_for_code_for_any_address(recorder, tmp_path):
    """Nobody has to align them then, and Inductor's list is empty."""
    option = "alignment_asserts_inputs"
    if not hasattr(inductor_config, option):
        pytest.skip("needs torch 2.15")
    generate(lambda x, y: (x + y.sum(),), (64, 64), (64, 64), folder=tmp_path, options={option: True})
    assert not checked(recorder.only, 0, 0) and not recorder.only.anywhere_inputs


def test_what_a_partition_gets_from_another_is_judged_by_the_first_call(recorder, tmp_path):
    generate(over_the_host, (64, 64), folder=tmp_path)
    first, second = recorder.facts
    assert checked(first, 1) == {0}, "the graph's own"
    assert len(second.checked_inputs(fakes(0, 0))) == 2 and list(second.checked_inputs(fakes(1, 0))) == [1]
    assert not first.anywhere_inputs and not second.anywhere_inputs


def three_pieces(x, y, z):
    """Inputs of the graph in every piece; and what runs on the host counts as a piece, too, for Inductor."""
    a = (x @ y).sum().cpu() * 2
    b = (a.cuda() + y @ z).sum().cpu() * 2
    return (b.cuda() + z @ x, x + z)


@pytest.mark.parametrize("function, count", [(over_the_host, 1), (freed_then_wanted, 1), (three_pieces, 3)])
@pytest.mark.parametrize("misaligned", [(), (0,), (1,), (0, 2)])
def test_every_partition_is_told_about_its_own_inputs(recorder, tmp_path, function, count, misaligned):
    specs = [{"size": (64, 64), "offset": int(number in misaligned)} for number in range(count)]
    generate(function, *specs, folder=tmp_path)
    assert len(recorder.facts) > 1
    for facts in recorder.facts:
        with open(facts.namespace["__file__"]) as file:
            everything = read(file.read())
        text = everything["partition_" + facts.name.rpartition(" ")[2]]
        graph, own = everything["call"].inputs, text.inputs
        expected = [graph.index(name) if name in graph else None for name in own]
        for first in (0, 1):
            aligned = checked(facts, *[first] * len(own))
            assert {own[one] for one in aligned if expected[one] is not None} == {
                own[one] for one, of_graph in enumerate(expected) if of_graph is not None and of_graph not in misaligned
            }
        for_triton = {one for one, uses in text.uses.items() if {use.kind for use in uses} <= {"triton", "returned"}}
        assert facts.anywhere_inputs == for_triton.intersection(
            one for one, of_graph in enumerate(expected) if of_graph in misaligned
        )


def test_graph_that_does_not_tell_is_judged_by_the_first_call(recorder, tmp_path, monkeypatch):
    monkeypatch.setattr(describe, "aligned_inputs", lambda graph, function: (None, frozenset()))
    generate(lambda x: (x.sin(),), (64, 64), folder=tmp_path)
    assert checked(recorder.only, 0) == {0} and checked(recorder.only, 1) == set()


def test_options_about_dynamic_shapes_are_passed_on(recorder, tmp_path):
    # Partition off: with it on, upstream itself keeps what is dynamic out of partitions.
    options = {
        "graph_partition": False,
        "triton.cudagraph_capture_sizes": (8, 16),
        "triton.cudagraph_skip_dynamic_graphs": True,
    }
    generate(lambda x: (x.sin(),), (64, 64), folder=tmp_path, options=options)
    assert recorder.only.capture_sizes == (8, 16)
    assert recorder.only.skip_dynamic
    generate(lambda x: (x.cos(),), (64, 64), folder=tmp_path)
    assert recorder.facts[-1].capture_sizes is None
    assert not recorder.facts[-1].skip_dynamic


def test_knobs_travel_with_the_function(recorder, tmp_path):
    with pygraph_inductor.config.patch(engine="copy", max_recordings=3):
        compilation = from_knobs()
    with going_on(compilation):
        generate(lambda x: (x.sin(),), (64, 64), folder=tmp_path)
    assert recorder.only.settings == settings.Settings(engine="copy", max_recordings=3)


def test_place_in_the_users_code_is_named(recorder, tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            return (x + 1).sin()

    compile_module(Model(), (64, 64), folder=tmp_path, options={"triton.cudagraphs": True})
    assert recorder.only.source.startswith("test_cudagraphify.py:")
    assert recorder.only.source.endswith("in forward")
    assert recorder.only.name == "inference 0/0, partition 0"


@pytest.mark.parametrize("pieces", [1, 2])
def test_functions_of_a_graph_share_the_time_that_compiling_it_took(recorder, tmp_path, pieces):
    class Model(torch.nn.Module):
        def forward(self, x):
            return over_the_host(x)[0] if pieces == 2 else x.sin() @ x

    started = time.perf_counter_ns()
    with pygraph_inductor.config.patch(transform=False):
        compile_module(Model(), (64, 64), folder=tmp_path, options={"triton.cudagraphs": True})
    took = time.perf_counter_ns() - started
    assert len(recorder.facts) == pieces
    shares = [facts.compile_ns for facts in recorder.facts]
    assert all(1e6 < share < took / pieces for share in shares), "no compilation takes less than a millisecond"


def test_time_that_is_not_known_is_none(recorder, tmp_path):
    generate(lambda x, y: (x @ y,), (64, 64), (64, 64), folder=tmp_path)  # comes by no door of ours
    assert recorder.only.compile_ns == 0


def test_default_mode_is_left_alone(recorder, tmp_path):
    compile_module(torch.nn.ReLU(), (8, 64), folder=tmp_path)
    assert recorder.facts == []
    assert pygraph_inductor.report().functions == []


def test_always_acts_in_default_mode(recorder, tmp_path):
    with pygraph_inductor.config.patch(always=True):
        compile_module(torch.nn.ReLU(), (8, 64), folder=tmp_path)
    assert recorder.only.kind == "inference"


def test_always_leaves_those_alone_who_said_no(recorder, tmp_path):
    with pygraph_inductor.config.patch(always=True):
        compile_module(torch.nn.ReLU(), (8, 64), folder=tmp_path, options={"triton.cudagraphs": False})
    assert recorder.facts == []


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_that_ask_for_graphs_get_them(recorder, tmp_path, mode):
    compile_module(torch.nn.ReLU(), (8, 64), folder=tmp_path, mode=mode)
    assert recorder.only.kind == "inference"


def handed_to_the_trees(monkeypatch) -> list[object]:
    handed = []
    import torch._inductor.cudagraph_trees as trees

    def implementation(model, inputs, static_input_idxs, **kwargs):
        handed.append(model)
        return lambda inputs: "from the trees"

    monkeypatch.setattr(trees, "cudagraphify_impl", implementation)
    return handed


def test_trees_stay_available(recorder, tmp_path, monkeypatch):
    handed = handed_to_the_trees(monkeypatch)
    with pygraph_inductor.config.patch(graph_manager="trees"):
        generated = generate(lambda x: (x.sin(),), (64, 64), folder=tmp_path)
        [module] = generated.modules
    assert recorder.facts == []
    assert module.call([]) if not module.runner.partitions else True
    assert module.runner.partitions[0]([]) == "from the trees"
    assert len(handed) == 1


@pytest.mark.parametrize(
    "line, change",
    [
        (declines.ROCM, lambda patch: patch.setattr(torch.version, "hip", "6.4")),
        (declines.XPU, lambda patch: patch.setattr(torch.version, "xpu", "2025", raising=False)),
        (declines.NO_TRITON, lambda patch: patch.setattr(declines, "_is_importable", lambda module: False)),
        (declines.NO_CACHING_ALLOCATOR, lambda patch: patch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")),
        (
            declines.OLD_DRIVER,
            lambda patch: patch.setattr(declines, "_graphs_can_be_rewritten", lambda: declines.OLD_DRIVER),
        ),
    ],
    ids=["rocm", "xpu", "triton", "allocator", "driver"],
)
def test_contexts_we_decline_get_stock_graphs_and_one_line(recorder, tmp_path, monkeypatch, caplog, line, change):
    handed_to_the_trees(monkeypatch)
    change(monkeypatch)
    for function_ in (torch.sin, torch.cos):
        generated = generate(lambda x: (function_(x),), (64, 64), folder=tmp_path)
        [module] = generated.modules
        assert module.runner.partitions[0]([]) == "from the trees"
    assert recorder.facts == []
    assert pygraph_inductor.report().declined == [line]
    assert [record.getMessage() for record in caplog.records if record.name == "pygraph_inductor"] == [line + "."]


def test_function_without_kernels_stays_as_it_is(recorder, tmp_path):
    """From torch 2.14 on Inductor says so; before, such a graph has no partition."""
    generated = generate(lambda x: (x.view(-1), 3), (64, 64), folder=tmp_path)
    assert generated.modules and recorder.facts == []
    [facts] = pygraph_inductor.report().functions
    assert facts.verdict.startswith("plain: ")


def test_failure_of_ours_falls_back_to_the_aligned_plain_call_with_one_warning(cuda, tmp_path, monkeypatch, caplog):
    def broken(*args):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(describe, "facts_of", broken)
    generated = generate(lambda x: (x.sin(),), (64, 64), folder=tmp_path)
    [module] = generated.modules
    [record] = [record for record in caplog.records if record.name == "pygraph_inductor"]
    assert "broken on purpose" in record.getMessage()
    [facts] = pygraph_inductor.report().functions
    assert facts.verdict == "plain: RuntimeError: broken on purpose"
    with pytest.raises((AssertionError, RuntimeError), match=r"GPU|CUDA"):  # what follows needs a device
        module.call([torch.empty(64, 64)])


@pytest.mark.parametrize("kind", ["inference", "backward"])
def test_after_our_failure_no_input_is_misaligned_not_even_in_the_first_call(kind):
    """Nor is what a forward saved, which may be its caller's."""
    declared = describe.Declared(kind, torch.device("cpu"), static_inputs=(0,), mutated_inputs=(1,))
    seen: list[torch.Tensor] = []

    def model(inputs):
        seen.extend(inputs)
        inputs[1].add_(1)
        inputs.clear()
        return ()

    run = cudagraphify._plain(model, declared, from_knobs(), RuntimeError("on purpose"))
    for offset in (1, 2, 0):
        x, y = (torch.arange(20.0)[offset:] for _ in range(2))
        run([x, y, 3])
        assert seen[-3].data_ptr() % 16 == seen[-2].data_ptr() % 16 == 0
        assert torch.equal(seen[-3], x) and torch.equal(y, x + 1)


def test_strict_raises_our_failure(cuda, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "driver_for", lambda device: 1 / 0)
    with pygraph_inductor.config.patch(strict=True), pytest.raises(ZeroDivisionError):
        generate(lambda x: (x.sin(),), (64, 64), folder=tmp_path)


def test_collectives_in_a_group_of_ranks_are_refused_with_one_warning(recorder, monkeypatch, caplog):
    text = dataclasses.replace(
        read_text("torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '0')"), allocators=()
    )
    assert describe._refusal(text, []) is None
    monkeypatch.setattr(describe, "_ranks", lambda: 8)
    reason = describe._refusal(text, [])
    assert reason == "collectives while a process group of 8 ranks is initialised: all_reduce_"


def read_text(line: str):
    from pygraph_inductor.codegen.generated_code import read

    return read(f"def call(args):\n    buf0, = args\n    {line}\n    return (buf0,)\n")["call"]


def test_effects_on_the_host_are_refused():
    text = read_text("torch.ops.mine.log.default(buf0)")
    other = read_text("torch.ops.mine.other.default(buf0)")
    known = {"effects": ["torch.ops.mine.log.default"]}
    assert describe._effects(known, text, text) == ["torch.ops.mine.log.default"]
    assert "effects on the host" in describe._refusal(text, ["torch.ops.mine.log.default"])
    assert describe._effects(known, other, text) == []
    # What cannot be found anywhere may be anywhere.
    assert describe._effects(known, other, other) == ["torch.ops.mine.log.default"]
