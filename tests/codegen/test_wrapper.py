"""What our wrapper generates and stock does not: partition inputs left alone, and what the user sees written down."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._guards import TracingContext

from pygraph_inductor.codegen import options, registration
from pygraph_inductor.codegen.generated_code import read

from .fake_cuda import Generated, generate


def over_the_host(x):
    """Two partitions: the second gets an intermediate of the first that dies in it."""
    a = x.sin() + x.sum(0)
    a = a @ a
    b = a.sum().cpu() * 2
    return (a.relu() * b.cuda(),)


def freed_then_wanted(x):
    """The second partition's first input dies before a buffer of its size is allocated, in another kernel."""
    a = x.sin() @ x
    b = a.sum().cpu() * 2
    c = torch.sort(a + b.cuda())[0]
    return (c @ c, a.sum(0))


def known(generated: Generated) -> dict:
    [line] = [line for line in generated.source.splitlines() if ".pygraph = " in line]
    return eval(line.partition(" = ")[2])


@pytest.mark.parametrize("function", [over_the_host, freed_then_wanted])
def test_partition_inputs_are_never_reused_as_buffers(cuda, registered, tmp_path, function):
    texts = read(generate(function, (64, 64), folder=tmp_path).source)
    assert len(texts) == 3
    assert [name for name, text in texts.items() if text.reused and name != "call"] == []


def test_stock_would_have_reused_one(cuda, tmp_path):
    """Else the test above shows nothing."""
    assert read(generate(over_the_host, (64, 64), folder=tmp_path).source)["partition_1"].reused


def test_partition_inputs_are_still_dropped_after_their_last_use(cuda, registered, tmp_path):
    for function in (over_the_host, freed_then_wanted):
        source = generate(function, (64, 64), folder=tmp_path).source
        body = source[source.index("def partition_1") :]
        for name in read(source)["partition_1"].inputs:
            dropped = f"del {name}\n" in body
            handed_back = f"{name}," in body[body.index("return") : body.index("\n", body.index("return"))]
            assert dropped or handed_back, name


def test_option_brings_reuse_back(cuda, registered, tmp_path):
    with options.patch(keep_inputs=False):
        assert read(generate(over_the_host, (64, 64), folder=tmp_path).source)["partition_1"].reused


def test_every_function_is_written_down(cuda, registered, tmp_path):
    written = known(generate(over_the_host, (64, 64), folder=tmp_path))
    assert {name: written[name] for name in ("call", "partition_0", "partition_1", "effects")} == {
        "call": {"visible": None},
        "partition_0": {"visible": None},
        "partition_1": {"visible": None},
        "effects": [],
    }


@pytest.mark.parametrize("partition", [True, False])
def test_inputs_that_code_was_compiled_to_find_anywhere_are_written_down(cuda, registered, tmp_path, partition):
    specs = [{"size": (64, 64), "offset": offset} for offset in (1, 0, 4)]
    options = {"graph_partition": partition}
    generated = generate(lambda x, y, z: (x + y, (y + z).sum()), *specs, folder=tmp_path, options=options)
    assert known(generated)["anywhere"] == ["x_1"]


def test_cuts_are_written_down_with_their_reasons(cuda, registered, tmp_path):
    written = known(generate(over_the_host, (64, 64), folder=tmp_path))
    reasons = [cut.partition(": ")[2] for cut in written["cuts"]]
    assert reasons == ["it runs on the CPU", "it runs on the CPU", "it copies between host and device"]
    inside, kernels = written["kernels"]
    assert inside == kernels > 1 and written["rewrites"] == []


def test_whole_graph_has_no_cuts(cuda, registered, tmp_path):
    written = known(generate(lambda x: (x.sin() @ x,), (64, 64), folder=tmp_path))
    assert written["cuts"] == [] and written["kernels"][0] == written["kernels"][1] == 2


def test_module_carries_it(cuda, registered, tmp_path):
    [module] = generate(over_the_host, (64, 64), folder=tmp_path).modules
    assert set(module.runner.pygraph) >= {"call", "partition_0", "partition_1", "effects"}


def test_module_without_partitions_carries_it_at_its_function(cuda, registered, tmp_path):
    [module] = generate(over_the_host, (64, 64), folder=tmp_path, options={"graph_partition": False}).modules
    assert module.call.pygraph["call"] == {"visible": None} and module.call.pygraph["cuts"] == []


def with_returns(monkeypatch, count: int) -> None:
    """As if AOTAutograd had said that a forward's first `count` outputs are the user's."""
    metadata = SimpleNamespace(num_forward=count, tokens={}, bw_donated_idxs=None)
    real = TracingContext.try_get

    def context():
        found = real()
        if found is not None:
            found.fw_metadata = metadata
        return found

    monkeypatch.setattr(TracingContext, "try_get", staticmethod(context))


def saves_activations(x, w):
    a = x @ w
    b = a.relu()
    return b, a, b.sin()


def test_saved_activations_are_not_visible(cuda, registered, tmp_path, monkeypatch):
    with_returns(monkeypatch, 1)
    generated = generate(saves_activations, (64, 64), (64, 64), folder=tmp_path, is_inference=False)
    assert known(generated)["call"]["visible"] == [0]
    seen = known(generated)["partition_0"]["visible"]
    assert len(seen) == 1


def test_saved_buffer_that_is_also_returned_is_visible(cuda, registered, tmp_path, monkeypatch):
    with_returns(monkeypatch, 1)

    def function(x, w):
        a = x @ w
        return a.view(-1), a, a.sin()

    generated = generate(function, (64, 64), (64, 64), folder=tmp_path, is_inference=False)
    assert known(generated)["call"]["visible"] == [0, 1]


@pytest.mark.parametrize("how", [{"is_inference": True}, {"is_inference": False, "is_backward": True}])
def test_everything_is_visible_in_inference_and_backward(cuda, registered, tmp_path, monkeypatch, how):
    with_returns(monkeypatch, 1)
    generated = generate(saves_activations, (64, 64), (64, 64), folder=tmp_path, **how)
    assert known(generated)["call"]["visible"] is None


def test_foreign_registration_is_left_alone(monkeypatch):
    from torch._inductor.codegen import common
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    class Theirs(PythonWrapperCodegen):
        pass

    common.init_backend_registration()
    stock = common.device_codegens["cuda"]
    foreign = common.DeviceCodegen(stock.scheduling, Theirs, stock.cpp_wrapper_codegen, stock.fx_wrapper_codegen)
    monkeypatch.setitem(common.device_codegens, "cuda", foreign)
    assert registration.match(frozenset({"cuda"})) == ["cuda"]
    assert common.device_codegens["cuda"] is foreign
    registration.match(frozenset())
    assert common.device_codegens["cuda"] is foreign


def test_registration_made_after_ours_survives_our_removal(monkeypatch):
    from torch._inductor.codegen import common

    common.init_backend_registration()
    for table in (common.device_codegens, common.custom_backend_passes, common.custom_backend_codegen_configs):
        monkeypatch.setitem(table, "cuda", table["cuda"])  # put back whatever happens below
    registration.match(frozenset({"cuda"}))
    ours = common.device_codegens["cuda"]
    foreign = common.DeviceCodegen(ours.scheduling, object, ours.cpp_wrapper_codegen, ours.fx_wrapper_codegen)
    monkeypatch.setitem(common.device_codegens, "cuda", foreign)
    assert registration.match(frozenset({"cuda"})) == ["cuda"]
    registration.match(frozenset())
    assert common.device_codegens["cuda"] is foreign


def test_removal_puts_the_stock_registration_and_its_cache_key_back():
    from torch._inductor.codegen import common

    common.init_backend_registration()
    before = (
        {device: vars(entry).copy() for device, entry in common.device_codegens.items()},
        list(common.custom_backend_passes.items()),
        list(common.custom_backend_codegen_configs.items()),
    )
    registration.match(frozenset({"cuda", "cpu"}))
    assert registration.registered() == ["cpu", "cuda"]
    assert common.custom_backend_passes["cuda"] is not None
    registration.match(frozenset())
    assert before == (
        {device: vars(entry).copy() for device, entry in common.device_codegens.items()},
        list(common.custom_backend_passes.items()),
        list(common.custom_backend_codegen_configs.items()),
    )
