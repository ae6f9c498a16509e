"""What a process that times does: variants that do not disturb each other, right answers, rounds."""

from __future__ import annotations

import time
from dataclasses import replace
from unittest import mock

import pytest
import torch

import pygraph_inductor
from pygraph_inductor import config, environment
from scripts.bench import correct, measure
from scripts.bench.measure import Rounds, Runner, Series, back_to_back, interleave
from scripts.bench.registry import Draw, Program, Setting, all_workloads
from scripts.bench.variants import EAGER, INDUCTOR, OURS, TECHNIQUES, VARIANTS, Variant, active, compiled, unavailable
from scripts.bench.worker import WARM_UP, warm

CPU = torch.device("cpu")


def test_a_technique_that_this_build_lacks_is_not_available():
    assert unavailable(Variant("x", "x", without="addresses")) is None
    with mock.patch.dict(TECHNIQUES, teleport=("teleport", False)):
        assert "no 'teleport'" in unavailable(Variant("x", "x", without="teleport"))


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_technique_is_switched_off_by_a_knob_that_exists(name):
    knob, off = TECHNIQUES[name]
    assert unavailable(VARIANTS[f"ours-no-{name}"]) is None
    assert off != getattr(config, knob)
    assert off in environment.CHOICES.get(knob, (off,))
    with active(VARIANTS[f"ours-no-{name}"]):
        assert getattr(config, knob) == off


def test_the_package_acts_only_while_its_variant_runs():
    assert pygraph_inductor.enabled()
    with active(INDUCTOR):
        assert not pygraph_inductor.enabled()
    assert pygraph_inductor.enabled()
    with active(VARIANTS["ours-no-addresses"], simulate=True):
        assert (config.engine, config.simulate) == ("copy", True)
    assert not config.simulate


def test_variants_of_one_function_do_not_share_code():
    """Equal backends would: Dynamo then serves the second variant with the first one's code."""
    body = lambda x: x * 3 - 1
    x, stats = torch.ones(2), torch._dynamo.utils.counters["stats"]
    for _ in range(2):
        with active(INDUCTOR):
            compiled(INDUCTOR, body)(x)
    assert stats["unique_graphs"] == 2


def program_of(function) -> tuple[Program, Setting]:
    setting = Setting(CPU, 2, torch.float32, None, True)
    return Program(function, lambda draw: (draw.normal(4),)), setting


def judge(function, reference) -> tuple[correct.Outcome, correct.Outcome, Setting]:
    one, setting = program_of(function)
    other, _ = program_of(reference)
    found = correct.outcome(Runner(OURS, one, function), setting)
    return found, correct.outcome(Runner(EAGER, other, reference), setting), setting


def test_a_stale_answer_is_wrong():
    first = []

    def stale(x: torch.Tensor) -> torch.Tensor:
        first.append(x * 2)
        return first[0].clone()

    found, eager, setting = judge(stale, lambda x: x * 2)
    accuracy = correct.accuracy(all_workloads()["MLP8"], setting, found, eager, eager, is_plain=False)
    assert "against eager" in correct.complaint(accuracy, ours=True)


def test_an_overwritten_output_is_wrong():
    buffer = torch.empty(4)
    found, eager, setting = judge(lambda x: torch.mul(x, 2, out=buffer), lambda x: x * 2)
    accuracy = correct.accuracy(all_workloads()["MLP8"], setting, found, eager, eager, is_plain=False)
    assert accuracy.against_eager == 0.0
    assert correct.complaint(accuracy, ours=True) == "an output was overwritten by a later iteration"
    assert correct.complaint(accuracy, ours=False) is None


def test_nan_where_eager_has_none_is_wrong():
    found, eager, _ = judge(lambda x: x / 0 * 0, lambda x: x * 2)
    assert correct.error(found, eager) == float("inf")


def test_a_right_answer_is_right():
    found, eager, setting = judge(lambda x: x + x, lambda x: x * 2)
    accuracy = correct.accuracy(all_workloads()["MLP8"], setting, found, eager, eager, is_plain=False)
    assert correct.complaint(accuracy, ours=True) is None
    assert accuracy.survives


def test_two_draws_of_one_seed_agree():
    _, setting = program_of(lambda x: x)
    a, b = Draw(setting, 3), Draw(setting, 3)
    assert torch.equal(a.normal(5), b.normal(5))
    assert a.host_number(0, 1) == b.host_number(0, 1)


def test_a_variant_that_fails_while_timed_is_out_and_the_others_go_on():
    def breaks(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 30:
            raise RuntimeError("enough")
        return x

    calls: list[int] = []
    good, setting = program_of(lambda x: x)
    bad, _ = program_of(breaks)
    runners = [Runner(EAGER, good, good.function), Runner(INDUCTOR, bad, breaks)]
    rounds = interleave(runners, Draw(setting), CPU, seconds=0.05)
    assert len(rounds.series["eager"].throughput) >= 5
    assert str(rounds.failed["inductor"]) == "enough"
    assert "inductor" not in rounds.series


def test_rounds_go_on_while_it_is_not_clear_whether_ours_is_slower(monkeypatch):
    program, setting = program_of(lambda x: x)
    runner = Runner(EAGER, program, program.function)

    def took() -> float:
        started = time.perf_counter()
        interleave([runner], Draw(setting), CPU, seconds=0.4)
        return time.perf_counter() - started

    monkeypatch.setattr(measure, "MAX_ROUNDS", 10**9)
    clear = took()
    monkeypatch.setattr(measure, "in_doubt", lambda rounds: True)
    assert clear < 1.2 < 1.6 <= took()
    started = time.perf_counter()
    interleave([runner], Draw(setting), CPU, seconds=0.4, most=0.8)
    assert 0.8 <= time.perf_counter() - started < 1.6


@pytest.mark.parametrize(
    "ours, doubt",
    [
        ([100.0] * 6, False),
        ([110.0] * 6, False),
        ([90.0, 100.0, 120.0, 95.0, 130.0, 99.0], True),
        ([100.0, 140.0, 100.0, 100.0, 100.0, 100.0], True),
        ([100.0] * 20 + [140.0], False),
        (None, False),
    ],
)
def test_doubt_whether_ours_is_slower(ours, doubt):
    """The better baseline takes 100 in every round, the other one twice as long."""
    count = len(ours or [0])
    series = {"inductor": Series(throughput=[200.0] * count), "stock": Series(throughput=[100.0] * count)}
    if ours:
        series["ours"] = Series(throughput=ours)
    assert measure.in_doubt(Rounds(series)) == doubt


def test_no_iteration_sees_inputs_of_another():
    seen: list[torch.Tensor] = []
    program, setting = program_of(lambda x: seen.append(x))
    interleave([Runner(EAGER, program, program.function)], Draw(setting), CPU, seconds=0.0)
    assert len({tensor.data_ptr() for tensor in seen}) == len(seen)  # all are alive


def test_all_variants_of_a_round_get_the_same_values_and_no_two_rounds_do(monkeypatch):
    """Where the work depends on them, variants would else be compared by chance."""
    monkeypatch.setattr(measure, "block_length", lambda runner, draw, device: 3 if runner.variant == EAGER else 5)
    seen: dict[str, list[float]] = {"eager": [], "inductor": []}
    program, setting = program_of(lambda x: x)
    runners = [
        Runner(variant, program, lambda x, name=variant.name: seen[name].append(float(x[0])))
        for variant in (EAGER, INDUCTOR)
    ]
    interleave(runners, Draw(setting), CPU, seconds=0.0)
    per_round = {"eager": 3 + 3, "inductor": 5 + 5}  # in flight, and one at a time
    rounds = [
        {name: values[n * per_round[name] : (n + 1) * per_round[name]] for name, values in seen.items()}
        for n in range(measure.MIN_ROUNDS)
    ]
    for one in rounds:
        assert one["eager"][:3] == one["inductor"][:3] and one["eager"][3:] == one["inductor"][5:8]
    assert len({value for one in rounds for value in one["inductor"]}) == 10 * len(rounds)


def test_time_in_flight_is_not_the_time_to_fill_the_pipe():
    calls: list[float] = []

    def slow_at_first(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002 if len(calls) % 5 else 0.1)
        calls.append(time.perf_counter())
        return x

    program, setting = program_of(slow_at_first)
    inputs = [program.fresh(Draw(setting)) for _ in range(5)]
    took = back_to_back(Runner(EAGER, program, slow_at_first), inputs, CPU)
    assert 2000 <= took < 20000
    assert len(calls) == 5


def test_all_variants_are_compiled_with_the_same_values():
    """What they are may decide for what sizes and addresses code is made."""
    program, setting = program_of(lambda x: x * 2)
    draw, seen = Draw(setting), []
    program = replace(program, drive=lambda call, inputs: seen.append(inputs[0].clone()))
    for variant in (EAGER, INDUCTOR):
        warm(variant, program, draw, simulate=False)
    first, second = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert len(first) == WARM_UP and all(map(torch.equal, first, second))
    assert not torch.equal(first[0], first[1])
