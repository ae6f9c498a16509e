"""The benchmark's runner: processes, the gate, limits, resuming. Its workers run tiny workloads on the CPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from scripts.bench import results, run
from scripts.bench.process import ASKING, DYING, METHODS, Process
from scripts.bench.registry import Workload, all_workloads
from scripts.bench.results import Memory, VariantResult, load
from scripts.bench.run import Options, Run, part

CPU = torch.device("cpu")


def silent(*_: object) -> None:
    pass


@pytest.fixture
def options(tmp_path):
    variants = ("eager", "inductor", "ours")
    return Options(device="cpu", out=tmp_path / "out", cache=tmp_path / "cache", variants=variants, seconds=0.2)


def warm_up_server(options: Options) -> None:
    """The server of forks imports everything with its first process, which must not count against a short limit."""
    process = Run(replace(options, work=here(answers)), silent).start("first", ("probe", "WIDE"), threads=1)
    while process.running():
        time.sleep(run.POLL)
    assert process.found() == ({}, None)


def test_a_batch_is_probed_timed_and_written(options, monkeypatch):
    monkeypatch.setattr(run.facts, "commit", lambda given: {"id": "0" * 40, "sources": "feed"})
    told = []
    found = Run(options, lambda w, state, _: told.append(state)).all([all_workloads()["WIDE"]])
    assert [result.status for result in found] == ["ok"], found[0].reason
    assert load(options.out) == found
    assert told == ["compiling no graphs", "compiling ours", "preparing", "timing", "ok"]
    for name in options.variants:
        timing = found[0].timing(name)
        assert timing is not None
        assert len(timing.rounds_throughput_us) >= 5
    ours = found[0].variants["ours"]
    assert ours.accuracy is not None
    assert ours.accuracy.against_plain == 0.0
    assert ours.startup is not None
    assert ours.graphs is not None
    assert ours.graphs.recordings == 1
    [decision] = ours.decisions  # the CPU has no clock that says anything about a GPU
    assert decision.origin == "not measured" and {one.name for one in decision.variants} == {"graph", "copy", "plain"}
    assert all(one.host_us is None and one.expected_host_us for one in decision.variants)

    told.clear()
    again = Run(options, lambda w, state, _: told.append(state)).all([all_workloads()["WIDE"]])
    assert again == found
    assert told == ["measured before"]


def test_a_run_that_was_out_of_time_is_completed_by_the_next(options):
    """What has been timed is not timed again: only processes that did not come to their turn are started."""
    first = Run(replace(options, probe=False), silent).all([all_workloads()["WIDE"]])
    assert first[0].variants["inductor"].skips == {}
    assert first[0].variants["ours"].decisions
    told = []
    [found] = Run(options, lambda w, state, _: told.append(state)).all([all_workloads()["WIDE"]])
    assert told == ["compiling no graphs", "compiling ours", "ok"]
    assert load(options.out) == [found]
    assert found.variants["inductor"].skips, "the probe has told"
    assert found.variants["ours"].startup is None, "everything was in the cache"
    for name in options.variants:
        assert found.timing(name) == first[0].timing(name)
    assert found.variants["ours"].decisions == first[0].variants["ours"].decisions
    assert found.seconds > first[0].seconds


def saved_by_a_run_that_was_out_of_time(options: Options) -> results.Result:
    """Timed, and wrong, without probes."""
    work = Run(options, silent)
    item = work.begin(all_workloads()["WIDE"])
    item.result.status = "wrong"
    for name in options.variants:
        item.result.variant(name).accuracy = results.Accuracy(0.5, 0.5, 0.1, None)
    item.result.variant("ours").status, item.result.variant("ours").reason = "wrong", "far from eager"
    return work.finish(item)


def test_completing_says_nothing_about_start_up_from_a_shared_cache(options):
    """The process that timed all variants had compiled them: what comes later would seem quicker."""
    saved_by_a_run_that_was_out_of_time(options)
    alone = VariantResult(startup=results.Startup(1.0, 2.0, "shared"), memory=Memory(1, 2, 3, 4, 5))
    for cold in (False, True):
        work = Run(replace(options, cold=cold), silent)
        work.commit["sources"] = "another" if cold else work.commit["sources"]
        item = work.begin(all_workloads()["WIDE"], load(options.out)[0])
        process = mock.Mock(seconds=1.0, interrupted=False)
        process.found.return_value = ({"variants": {"ours": results.encode(alone)}}, None)
        work.probed(item, "ours", process)
        assert (item.result.variants["ours"].startup is not None) == cold
        assert item.result.variants["ours"].memory == alone.memory
        assert not item.lacks("ours")


def test_what_is_wrong_stays_wrong_when_it_is_completed(options):
    """Also where a probe has something to say that is no failure."""
    saved_by_a_run_that_was_out_of_time(options)
    work = Run(options, silent)
    item = work.begin(all_workloads()["WIDE"], load(options.out)[0])
    for reason in ("profiler: no trace", None):
        found = results.encode(VariantResult(reason=reason))
        work.merge(item, {"variants": {"ours": found, "inductor": dict(found)}}, None)
    ours, plain = item.result.variants["ours"], item.result.variants["inductor"]
    assert (ours.status, ours.reason) == ("wrong", "far from eager")
    assert (plain.status, plain.reason) == ("ok", "profiler: no trace")


@pytest.mark.parametrize("budget", [1.0, 12.0])
def test_what_cannot_be_completed_in_time_stays_as_it_was(options, monkeypatch, budget):
    before = saved_by_a_run_that_was_out_of_time(options)
    monkeypatch.setattr(run, "MARGIN", 5.0)
    told: list[str] = []
    quick = replace(options, budget=budget, work=here(sleeps))
    [found] = Run(quick, lambda w, state, _: told.append(state)).all([all_workloads()["WIDE"]])
    assert found == before == load(options.out)[0]
    assert told[-1] == "measured before"


def test_what_lacks_a_package_now_keeps_the_result_it_has(options, monkeypatch):
    before = saved_by_a_run_that_was_out_of_time(options)
    monkeypatch.setattr(Workload, "missing", lambda self: ["torchvision"])
    assert Run(options, silent).all([all_workloads()["WIDE"]]) == [before] == load(options.out)


@pytest.mark.parametrize("key", ["torch", "cpu"])
def test_results_of_another_machine_or_version_are_not_completed(options, key):
    saved_by_a_run_that_was_out_of_time(options)
    work = Run(options, silent)
    assert work.before(all_workloads()["WIDE"]) is not None
    work.environment[key] = "another"
    assert work.before(all_workloads()["WIDE"]) is None


def test_a_cold_cache_is_empty_after_a_run_that_was_stopped(options):
    work = Run(replace(options, cold=True, work=here(answers)), silent)
    left = options.cache / "cold" / "WIDE.ours" / "fxgraph"
    left.mkdir(parents=True)
    process = work.start_probe(work.begin(all_workloads()["WIDE"]), "ours")
    assert not left.exists()
    process.kill("enough")


def test_the_time_of_a_workload_begins_with_its_batch(options, monkeypatch):
    monkeypatch.setattr(run.facts, "environment", lambda device: {"device": device})
    quick = replace(options, probe=False, work=here(says_how_long), batch=1)
    first, second = Run(quick, silent).all([all_workloads()["WIDE"], all_workloads()["EOS"]])
    assert second.seconds < first.seconds + 1.0


@pytest.mark.parametrize("budget, expected", [(None, 12.0), (100.0, 12.0), (17.0, 8.0), (10.0, 3.0)])
def test_doubt_takes_no_time_from_those_that_are_timed_later(options, budget, expected):
    """Of a budget of 17 seconds, 3 are this process's turn and 6 for the next workload."""
    work = Run(replace(options, seconds=3.0, budget=budget), silent)
    item = work.begin(all_workloads()["WIDE"])
    item.timer = mock.Mock(ready=True)
    item.timer.found.return_value = ({}, None)
    work.timed(item, [], reserved=6.0)
    [most, limit] = item.timer.go.call_args.args
    assert most == pytest.approx(expected, abs=0.5)
    assert most < limit


def test_a_run_without_timing_keeps_what_it_has_when_time_is_up(options, monkeypatch):
    warm_up_server(options)
    monkeypatch.setattr(run, "MARGIN", 0.0)
    told: list[tuple[str, str]] = []
    quick = replace(options, time=False, work=here(answers), jobs=2)
    work = Run(quick, lambda workload, state, _: told.append((workload.name, state)))
    items = [work.begin(all_workloads()[name]) for name in ("WIDE", "TKE")]
    work.deadline = time.monotonic() + 4
    assert [result.workload for result in work.batch(items)] == ["WIDE"]
    assert ("TKE", run.NOT_REACHED) in told
    assert [result.workload for result in load(options.out)] == ["WIDE"]


def test_decisions_of_the_process_that_times_count(options):
    """Probes run side by side, and decide in the noise of each other."""
    work = Run(options, silent)
    item = work.begin(all_workloads()["WIDE"])
    for chosen in ("plain", "graph"):
        decision = results.Decision("inference 0/0", "", chosen, "measured", "")
        work.merge(item, {"variants": {"ours": results.encode(VariantResult(decisions=[decision]))}}, None)
    work.merge(item, {"variants": {"ours": results.encode(VariantResult())}}, None)
    assert [one.chosen for one in item.result.variants["ours"].decisions] == ["graph"]


def sleeps(arguments, gate) -> int:
    time.sleep(60)
    return 0


def dies(arguments, gate) -> int:
    raise MemoryError("no more of it")


def answers(arguments, gate) -> int:
    """At once, except for one workload that takes long to get ready."""
    if "TKE" in arguments:
        time.sleep(60)
    if arguments[0] == "time":
        gate.wait()
    Path(arguments[arguments.index("--out") + 1]).write_text("{}")
    return 0


def goes_on(arguments, gate) -> int:
    """Does not come to an end after its answer."""
    gate.wait()
    answer = {"variants": {"ours": results.encode(VariantResult(memory=Memory(1, 2, 3, 4, 5)))}}
    Path(arguments[arguments.index("--out") + 1]).write_text(json.dumps(answer))
    time.sleep(60)
    return 0


def says_how_long(arguments, gate) -> int:
    """Takes a while, and writes for how long it may time."""
    time.sleep(1.5)
    Path(arguments[arguments.index("--out") + 1]).with_suffix(".most").write_text(str(gate.wait()))
    return answers(["probe", *arguments[1:]], gate)


def ticks(arguments, gate) -> int:
    """One workload writes the time again and again; the other, once let go, takes a while."""
    out = Path(arguments[arguments.index("--out") + 1])
    if "TKE" in arguments:
        for _ in range(400):
            with out.with_suffix(".ticks").open("a") as file:
                file.write(f"{time.monotonic()}\n")
            time.sleep(0.01)
        gate.wait()
    else:
        time.sleep(1.0)
        gate.wait()
        begun = time.monotonic()
        time.sleep(1.0)
        out.with_suffix(".timed").write_text(f"{begun} {time.monotonic()}")
    out.write_text("{}")
    return 0


def probes_forever(arguments, gate) -> int:
    """One workload's second probe does not end; everything else is done at once."""
    if arguments[:2] == ["probe", "TKE"] and "ours" in arguments:
        time.sleep(60)
    if arguments[0] == "time":
        gate.wait()
    Path(arguments[arguments.index("--out") + 1]).write_text("{}")
    return 0


def says_what_it_has(arguments, gate) -> int:
    modules = ["torch._inductor.compile_fx", "scripts.bench.workloads.pyhpc"]
    found = [*(name in sys.modules for name in modules), ASKING in os.environ]
    Path(arguments[-1]).write_text(json.dumps({"has": found}))
    return 0


def here(work: Callable[..., int]) -> str:
    return f"{work.__module__}:{work.__qualname__}"


def test_what_does_not_end_is_ended_and_reported(options, monkeypatch):
    quick = replace(options, limit=0.5, probe=False, work=here(sleeps))
    monkeypatch.setattr(run.facts, "environment", lambda device: {"device": device})
    started = time.monotonic()
    (found,) = Run(quick, silent).all([all_workloads()["WIDE"]])
    assert time.monotonic() - started < 20
    assert found.status == "timeout"
    assert load(options.out)[0].status == "timeout"


def test_what_had_answered_before_its_time_was_up_keeps_its_answer(options, monkeypatch):
    """A profiler that takes too long must not cost what was timed."""
    monkeypatch.setattr(run.facts, "environment", lambda device: {"device": device})
    monkeypatch.setattr(run, "MARGIN", 0.0)
    monkeypatch.setattr(run, "TURN", 1.0)
    warm_up_server(options)
    started = time.monotonic()
    (found,) = Run(replace(options, probe=False, work=here(goes_on), budget=6.0), silent).all([all_workloads()["WIDE"]])
    assert time.monotonic() - started < 30
    assert found.status == "ok" and found.variants["ours"].memory == Memory(1, 2, 3, 4, 5)


def test_a_worker_that_dies_is_reported_with_its_last_line_and_the_rest_go_on(options, monkeypatch):
    monkeypatch.setattr(run.facts, "environment", lambda device: {"device": device})
    both = [all_workloads()["WIDE"], all_workloads()["TKE"]]
    found = Run(replace(options, probe=False, work=here(dies)), silent).all(both)
    assert [result.status for result in found] == ["failed", "failed"]
    assert "MemoryError: no more of it" in found[0].reason


def test_a_spent_budget_starts_nothing(options):
    told = []
    spent = replace(options, budget=1.0)
    assert Run(spent, lambda w, state, _: told.append(state)).all([all_workloads()["WIDE"]]) == []
    assert told == ["not reached within the time budget"]


def test_while_one_is_timed_the_others_stand_still(options, monkeypatch):
    """And the time in which they were stopped does not count against their limit."""
    monkeypatch.setattr(run.facts, "environment", lambda device: {"device": device})
    warm_up_server(options)
    quick = replace(options, probe=False, work=here(ticks), jobs=2, batch=2, limit=7.0)
    found = Run(quick, silent).all([all_workloads()["TKE"], all_workloads()["WIDE"]])
    assert sorted((one.workload, one.status) for one in found) == [("TKE", "ok"), ("WIDE", "ok")]
    logs = options.out / "logs"
    begun, ended = map(float, (logs / "WIDE.time.answer.timed").read_text().split())
    seen = [float(line) for line in (logs / "TKE.time.answer.ticks").read_text().split()]
    assert seen[0] < begun and ended < seen[-1]
    assert not [one for one in seen if begun < one < ended]


def test_a_probe_that_does_not_end_costs_only_its_own_workload(options, monkeypatch):
    monkeypatch.setattr(run.facts, "environment", lambda device: {"device": device})
    monkeypatch.setattr(run, "MARGIN", 0.0)
    monkeypatch.setattr(run, "TURN", 1.0)
    quick = replace(options, work=here(probes_forever), jobs=2, batch=2, budget=12.0)
    told = []
    found = Run(quick, lambda w, state, _: told.append((w.name, state))).all(
        [all_workloads()["TKE"], all_workloads()["WIDE"]]
    )
    assert [(one.workload, one.status) for one in found] == [("WIDE", "ok")]
    assert told[-1] == ("TKE", "not reached within the time budget")


def test_a_process_that_has_only_begun_stands_still_too():
    """It belongs to its parent's group until it makes one of its own."""
    with subprocess.Popen(["sleep", "60"]) as child:
        process = Process.__new__(Process)
        process._process, process.started = child, time.monotonic()
        try:
            with process.standing_still():
                _, status = os.waitpid(child.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
            assert process.interrupted
        finally:
            child.kill()


def test_a_process_that_does_not_even_die_is_given_up():
    process = Process.__new__(Process)
    process._process, process.killed = mock.Mock(pid=2**22 + 1), None
    process.answer = Path("there is none")
    process._process.is_alive.return_value = True
    process.kill("too long")
    process._process.join.assert_called_once_with(DYING)
    assert not process.running()
    assert process.found() == ({}, "timeout: too long")


def test_the_start_up_of_a_probe_that_stood_still_is_not_kept(options):
    work = Run(options, silent)
    data = results.encode(VariantResult(startup=results.Startup(1.0, 2.0, "shared"), memory=Memory(1, 2, 3, 4, 5)))
    for interrupted in (True, False):
        item = work.begin(all_workloads()["WIDE"])
        process = mock.Mock(seconds=1.0, interrupted=interrupted)
        process.found.return_value = ({"variants": {"ours": dict(data)}}, None)
        work.probed(item, "ours", process)
        assert (item.result.variants["ours"].startup is None) == interrupted
        assert item.result.variants["ours"].memory == Memory(1, 2, 3, 4, 5)


@pytest.mark.parametrize("odd", [{"skips": 3}, {"status": 1}, {"memory": {"steady_reserved": 1.5}}])
def test_an_answer_that_cannot_be_read_is_its_own_workloads_failure(options, odd):
    work = Run(options, silent)
    item = work.begin(all_workloads()["WIDE"])
    work.merge(item, {"variants": {"ours": results.encode(VariantResult()) | odd}}, None)
    assert item.result.status == "failed"
    assert "cannot be read" in item.result.reason


@pytest.mark.parametrize(
    "spare, expected",
    [
        (5.0, [("WIDE", "stock"), ("WIDE", "ours"), ("EOS", "stock")]),
        (40.0, [("TKE", "stock"), ("TKE", "ours"), ("EOS", "stock")]),
    ],
)
def test_probes_of_one_workload_come_together_and_short_ones_first_if_not_all_fit(
    options, monkeypatch, spare, expected
):
    work = Run(replace(options, jobs=3), silent)
    items = [work.begin(all_workloads()[name]) for name in ("TKE", "WIDE", "EOS")]
    for item, seconds in zip(items, (9.0, 4.0, 6.0), strict=True):
        item.probing_s, item.probes = seconds, 1
    monkeypatch.setattr(Run, "start_probe", lambda self, item, name: mock.Mock())
    queue, probing = [(item, name) for name in ("stock", "ours") for item in items], []
    work.start_probes(queue, probing, others=0, spare=spare)
    assert [(item.workload.name, name) for item, name, _ in probing] == expected


def test_what_takes_too_long_to_wait_is_prepared_while_others_are_probed(options, monkeypatch):
    work = Run(replace(options, budget=100.0, seconds=7.0), silent)
    waiting = [work.begin(all_workloads()[name]) for name in ("TKE", "WIDE")]
    monkeypatch.setattr(run, "TURN", 3.0)
    for seconds, in_time in ((70.0, {"TKE", "WIDE"}), (90.0, {"WIDE"})):
        waiting[0].probing_s, waiting[0].probes = seconds, 1
        assert work.in_time(waiting) == in_time


def test_without_timing_a_workload_is_done_after_its_probes(options, monkeypatch):
    monkeypatch.setattr(run.facts, "environment", lambda device: {"device": device})
    told = []
    quick = replace(options, time=False, cold=True, variants=("stock", "ours"), work=here(answers))
    (found,) = Run(quick, lambda w, state, _: told.append(state)).all([all_workloads()["WIDE"]])
    assert told == ["compiling stock graphs", "compiling ours", "ok"]
    assert found.configuration["throughput"] is None and found.configuration["cache"] == "cold"
    assert load(options.out) == [found]


def test_variants_that_are_compared_come_together_where_nothing_is_known_yet(options, monkeypatch):
    monkeypatch.setattr(run.facts, "environment", lambda device: {"device": device})
    told = []
    quick = replace(options, time=False, cold=True, variants=("stock", "ours"), work=here(answers), batch=2)
    both = [all_workloads()["WIDE"], all_workloads()["EOS"]]
    Run(quick, lambda w, state, _: told.append((w.name, state.removeprefix("compiling ")))).all(both)
    begun = [one for one in told if one[1] in ("stock graphs", "ours")]
    assert begun == [(name, label) for name in ("WIDE", "EOS") for label in ("stock graphs", "ours")]


def test_processes_have_imported_what_they_need_before_they_begin(tmp_path):
    process = Process("one", here(says_what_it_has), [], tmp_path, {}, 60.0, METHODS[0])
    while process.running():
        time.sleep(0.05)
    assert process.found() == ({"has": [True, True, True]}, None), process.log.read_text()
    assert ASKING not in os.environ, "other code of this process asks as ever"


def test_processes_that_take_much_of_the_gpu_are_not_prepared_together(options, monkeypatch):
    monkeypatch.setattr(run.facts, "environment", lambda device: {"device": device, "gpu_memory": 100})
    work = Run(replace(options, jobs=8), silent)
    waiting = [work.begin(all_workloads()[name]) for name in ("TKE", "WIDE", "EOS", "MLP8")]
    for item, size, seconds in zip(waiting, (50, 30, 20, 5), (4.0, 3.0, 2.0, 1.0), strict=True):
        item.probing_s = seconds
        item.result.variant("ours").memory = Memory(0, 0, 0, 0, size)
    monkeypatch.setattr(Run, "start_timer", lambda self, item: item)
    timers = []
    work.start_timers(waiting, timers, {"EOS"}, others=0)
    assert [item.workload.name for item in timers] == ["TKE", "MLP8"]  # what took longest, then what fits beside it
    timers.clear()
    work.start_timers(waiting, timers, set(), others=7)
    assert [item.workload.name for item in timers] == ["WIDE"]  # one more process may run


def test_variants_of_one_process_do_not_peak_together(options):
    item = Run(options, silent).begin(all_workloads()["WIDE"])
    assert item.bytes_wanted() == 0
    item.result.variant("inductor").memory = Memory(0, 10, 0, 25, 30)
    assert item.bytes_wanted() == 30 + 15  # the floor's
    item.result.variant("ours").memory = Memory(0, 20, 0, 25, 60)
    assert item.bytes_wanted() == 10 + 60 + 15


def test_what_is_ready_is_timed_though_others_are_not(options, monkeypatch):
    """A workload that takes long to compile must not cost the others their turn."""
    monkeypatch.setattr(run.facts, "environment", lambda device: {"device": device})
    monkeypatch.setattr(run, "MARGIN", 0.0)
    quick = replace(options, probe=False, work=here(answers), jobs=2, batch=2, budget=2 * run.TURN + 4.0)
    told = []
    started = time.monotonic()
    found = Run(quick, lambda w, state, _: told.append((w.name, state))).all(
        [all_workloads()["WIDE"], all_workloads()["TKE"]]
    )
    assert time.monotonic() - started < quick.budget
    assert [(one.workload, one.status) for one in found] == [("WIDE", "ok")]
    assert told[-1] == ("TKE", "not reached within the time budget")
    assert [one.workload for one in load(options.out)] == ["WIDE"]


def test_a_missing_package_skips_the_workload_visibly(options, monkeypatch):
    workload = all_workloads()["VM"]
    monkeypatch.setattr(Workload, "missing", lambda self: ["torchvision"])
    (found,) = Run(options, silent).all([workload])
    assert (found.status, found.reason) == ("skipped", "needs torchvision, which is not installed")


def test_another_configuration_is_measured_again(options):
    first = Run(options, silent)
    result = first.begin(all_workloads()["WIDE"])
    first.finish(result)
    assert first.before(all_workloads()["WIDE"]) is not None
    assert Run(replace(options, seconds=9.0), silent).before(all_workloads()["WIDE"]) is None


def test_what_was_timed_on_other_values_for_each_variant_is_measured_again(options):
    first = Run(options, silent)
    result = first.begin(all_workloads()["WIDE"])
    del result.result.configuration["values"]  # as in files from before all got the same ones
    first.finish(result)
    assert first.before(all_workloads()["WIDE"]) is None


def test_parts_cover_everything_once():
    workloads = list(all_workloads().values())
    parts = [part(workloads, f"{i}/4") for i in range(1, 5)]
    assert sorted(w.name for one in parts for w in one) == sorted(w.name for w in workloads)
    with pytest.raises(SystemExit, match="--part"):
        part(workloads, "5/4")


def test_cold_caches_are_handed_on(tmp_path):
    for name, text in (("a/x.json", "1"), ("b/x.json", "2"), ("b/y.json", "3")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    run.share(tmp_path / "a", tmp_path / "shared")
    run.share(tmp_path / "b", tmp_path / "shared")
    assert json.loads((tmp_path / "shared" / "x.json").read_text()) == 1
    assert json.loads((tmp_path / "shared" / "y.json").read_text()) == 3


def test_compare_prints_what_got_worse(tmp_path, capsys):
    from scripts.bench.__main__ import main
    from tests.unit.bench_data import result

    results.collect([result("A", 100, 80, 50, 45)], tmp_path / "old.json")
    results.collect([result("A", 100, 80, 60, 45)], tmp_path / "new.json")
    assert main(["compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")]) == 1
    assert "worse" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "old.json"), str(tmp_path / "old.json")]) == 0


def test_collect_names_the_file_after_gpu_and_commit(tmp_path, monkeypatch, capsys):
    import scripts.bench.__main__ as cli
    from tests.unit.bench_data import result

    results.save(tmp_path / "parts", result("A", 100, 80, 50, 45))
    monkeypatch.setattr(cli, "DATA", tmp_path / "data")
    assert cli.main(["collect", str(tmp_path / "parts")]) == 0
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["some-gpu-0123456789ab.json"]


@pytest.mark.parametrize("name", ["engines", "host_cost", "judge", "table_refresh"])
def test_what_needs_a_gpu_says_so_before_it_begins(name, monkeypatch, tmp_path):
    module = importlib.import_module(f"scripts.bench.{name}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", [name, "--out", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit, match="torch finds no CUDA device"):
        module.main()
    assert list(tmp_path.iterdir()) == []


def test_the_packages_command_finds_the_checkout(capsys):
    from pygraph_inductor.__main__ import main

    assert main(["bench", "list", "MLP8"]) == 0
    assert "eight-layer MLP" in capsys.readouterr().out


def test_the_packages_command_says_that_it_needs_the_checkout(monkeypatch, capsys):
    from pygraph_inductor import __main__ as cli

    monkeypatch.setattr(cli.os.path, "exists", lambda path: False)
    assert cli.main(["bench", "list"]) == 2
    assert "needs the checkout" in capsys.readouterr().err


def test_a_machine_without_a_gpu_is_told_what_to_do(monkeypatch, options):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit, match="make bench DEVICE=sim"):
        Run(replace(options, device="cuda"), silent)
