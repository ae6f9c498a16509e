"""Every workload is built, tiny, and runs one iteration eagerly; every full size has shapes that fit together."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from scripts.bench import correct, registry
from scripts.bench.measure import Runner
from scripts.bench.registry import Draw, all_workloads, choose
from scripts.bench.variants import EAGER

CPU = torch.device("cpu")
WORKLOADS = all_workloads()
PAPER = {
    "XLNET-I", "XLNET-T", "MMC", "ST", "DALLE2", "EOS", "TKE", "VM", "DR-I", "DR-T", "MTCG-I", "MTCG-T", "DLRM",
    "MBERT", "TEFD", "ALNET", "DCGAN", "BERT", "LCNET", "DNET", "DBV2", "BSCG", "DGPT2", "STCLM", "DMLM",
}  # fmt: skip
# Sizes or values that depend on data cannot be followed without data.
NEED_DATA = {"VM", "MOE", "UNET", "BSCG", "ADAM", "ADAM-CAP", "ADAMW-LR"}


def needed(name: str) -> registry.Workload:
    workload = WORKLOADS[name]
    for package in workload.needs:
        pytest.importorskip(package, reason=f"{name} needs {package} (the bench extra)")
    return workload


def test_all_of_the_papers_workloads_are_here():
    assert {w.name for w in WORKLOADS.values() if w.paper} == PAPER
    assert len(WORKLOADS) >= len(PAPER) + 10


@pytest.mark.parametrize("name", WORKLOADS)
def test_one_iteration_runs(name):
    workload = needed(name)
    program, setting = workload.program(CPU, tiny=True)
    draw = Draw(setting)
    before = [tensor.clone() for tensor in program.state()]
    with registry.preserved(program):
        seen = program.observe(program.drive(program.function, program.fresh(draw)))
        assert seen
        assert all(torch.isfinite(tensor).all() for tensor in seen if tensor.is_floating_point())
        changed = any(not torch.equal(a, b) for a, b in zip(before, program.state(), strict=True))
    if workload.mode == "update" or name == "DECODE-S":
        assert changed, "it is about state changed in place"
    assert all(torch.equal(a, b) for a, b in zip(before, program.state(), strict=True))


def assert_same(first: correct.Outcome, second: correct.Outcome) -> None:
    for one, other in zip(first.seen, second.seen, strict=True):
        assert len(one) == len(other)
        assert all(correct.same(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", WORKLOADS)
def test_checking_twice_gives_the_same_outcome(name):
    """Variants are checked one after the other: what one leaves behind would be the next one's error."""
    program, setting = needed(name).program(CPU, tiny=True)
    eager = Runner(EAGER, program, program.function)
    assert_same(correct.outcome(eager, setting), correct.outcome(eager, setting))


@pytest.mark.parametrize("name", ["ADAM", "ADAM-CAP", "ADAMW-LR"])
def test_step_counts_that_were_moved_are_put_back(name):
    """Dynamo puts the counts of an optimizer on the device, as new tensors, when the step is first compiled there."""
    program, setting = WORKLOADS[name].program(CPU, tiny=True)
    eager = Runner(EAGER, program, program.function)
    optimizer = inspect.getclosurevars(program.function).nonlocals["optimizer"]
    before = correct.outcome(eager, setting)
    with registry.preserved(program):
        for state in optimizer.state.values():
            state["step"] = state["step"].clone()
        eager.iterate(program.fresh(Draw(setting)))
    for _ in range(2):
        assert_same(before, correct.outcome(eager, setting))


@pytest.mark.parametrize("name", ["t", "before", "after", "sigma"])
def test_a_samplers_number_that_stays_what_it_was_is_seen(name):
    """A graph that had frozen it would be wrong, and the comparison with eager must say so."""
    program, setting = WORKLOADS["DDIM"].program(CPU, tiny=True)
    position = list(inspect.signature(program.function).parameters).index(name)
    seen: list[torch.Tensor] = []

    def frozen(*inputs):
        seen.append(inputs[position])
        return program.function(*inputs[:position], seen[0], *inputs[position + 1 :])

    right, wrong = (correct.outcome(Runner(EAGER, program, call), setting) for call in (program.function, frozen))
    assert len({float(number) for number in seen}) == len(seen) // correct.ITERATIONS
    assert all(number.device == CPU and number.dim() == 0 for number in seen)
    assert correct.error(wrong, right) > 0.1


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_iteration_gets_new_tensors(name):
    program, setting = needed(name).program(CPU, tiny=True)
    draw = Draw(setting)
    first, second = program.fresh(draw), program.fresh(draw)
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if isinstance(a, torch.Tensor)]
    assert pairs
    assert all(a.data_ptr() != b.data_ptr() for a, b in pairs)
    assert any(not torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", sorted(WORKLOADS.keys() - NEED_DATA))
def test_full_size_fits_together(name, monkeypatch):
    """With tensors that have shapes and no values: a wrong size shows here and not after minutes on a GPU."""
    workload = needed(name)
    monkeypatch.setattr(nn.Module, "to", lambda module, *_: module)  # fake parameters cannot be converted in place
    setting = dataclasses.replace(workload.setting(CPU, tiny=False), dtype=torch.float32, autocast=None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        program = workload.build(setting)
        assert program.observe(program.drive(program.function, program.fresh(Draw(setting))))
    if workload.batch > 1 and workload.mode != "update" and not name.startswith(("EOS", "TKE", "GNN", "WIDE")):
        assert setting.batch == workload.batch


# torchvision suppresses boxes in half precision on a GPU only.
@pytest.mark.parametrize("name", sorted(WORKLOADS.keys() - {"VM"}))
def test_precision_of_the_full_size_fits_together(name):
    """Tiny sizes run in float32; a dtype that does not match elsewhere would show on the GPU only."""
    workload = needed(name)
    dtype, autocast = workload.dtypes()
    setting = dataclasses.replace(workload.setting(CPU, tiny=True), dtype=dtype, autocast=autocast)
    program = workload.build(setting)
    assert program.observe(program.drive(program.function, program.fresh(Draw(setting))))


def test_weights_are_the_same_every_time():
    (a, _), (b, _) = (WORKLOADS["MLP8"].program(CPU, tiny=True) for _ in range(2))
    pairs = zip(a.function.parameters(), b.function.parameters(), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)


def test_workloads_are_chosen_by_name_suite_mode_and_tag():
    assert [w.name for w in choose(["ST", "dlrm", "st"])] == ["ST", "DLRM"], "in the order in which they are named"
    assert {w.suite for w in choose(suites=["timm"])} == {"TIMM"}
    assert {w.mode for w in choose(modes=["training"])} == {"training"}
    assert {w.name for w in choose(tags=["paper"])} == PAPER
    assert {w.name for w in choose(tags=["llm"])} == {"PREFILL", "DECODE-S", "DECODE-P", "MOE"}


def test_an_unknown_workload_is_refused_with_the_known_ones():
    with pytest.raises(SystemExit, match=r"no workload called NOPE; there are: .*XLNET-I"):
        choose(["nope"])
