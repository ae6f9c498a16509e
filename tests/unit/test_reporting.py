"""The facts: what the report says about functions, and that warnings come once."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from pygraph_inductor.reporting import FunctionFacts, RecordingFacts, Report, facts, table


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    """A registry of our own: other tests' functions are neither seen nor lost."""
    monkeypatch.setattr(facts, "_functions", type(facts._functions)(maxlen=facts.LIMIT))
    monkeypatch.setattr(facts, "_warned", {})


def function(name: str = "forward 0/0", **changes) -> FunctionFacts:
    return FunctionFacts(name=name, kind="forward", source="model.py:12 in forward", device="cuda:0", **changes)


def recording(**changes) -> RecordingFacts:
    values = dict(key="f32[4]", nodes={"kernel": 3, "memcpy": 1}, kernels=3, slots={"patch": 2, "static": 1, "copy": 0})
    return RecordingFacts(**{**values, "bindings": 5, "bytes_borrowed": 1536, **changes})


def test_verdict_says_replayed_once_a_replay_happened():
    assert function(replays=1, recordings=[recording()], reasons=["anything"]).verdict == "replayed"


def test_verdict_says_recorded_before_the_first_replay():
    assert function(recordings=[recording()]).verdict == "recorded"


def test_verdict_names_the_first_reason_of_a_plain_function():
    assert function(calls=2, reasons=["float input 0", "later"]).verdict == "plain: float input 0"


def test_verdict_of_a_function_called_once():
    assert function(calls=1).verdict == "not called twice"


def test_a_reason_is_kept_once():
    one = function()
    one.add_reason("float input 0")
    one.add_reason("float input 0")
    one.add_reason("input 1 is on the host")
    assert one.reasons == ["float input 0", "input 1 is on the host"]


def test_snapshot_is_not_changed_by_later_calls():
    live = facts.register(function(recordings=[recording()]))
    [seen] = facts.snapshot()
    live.calls += 1
    live.recordings[0].replays += 1
    live.recordings[0].nodes["memset"] = 1
    live.reasons.append("later")
    assert (seen.calls, seen.recordings[0].replays, seen.reasons) == (0, 0, [])
    assert "memset" not in seen.recordings[0].nodes


def test_registry_forgets_the_oldest_beyond_its_limit():
    for number in range(facts.LIMIT + 3):
        facts.register(function(str(number)))
    seen = facts.snapshot()
    assert len(seen) == facts.LIMIT == 10_000
    assert (seen[0].name, seen[-1].name) == ("3", str(facts.LIMIT + 2))


def test_clear_forgets_functions_and_warnings(caplog):
    one = facts.register(function())
    assert facts.warn_once(one, "input 3 is a float", "this call runs plainly", "config.strict")
    facts.clear()
    assert facts.snapshot() == []
    assert facts.warn_once(one, "input 3 is a float", "this call runs plainly", "config.strict")


def test_registering_from_many_threads_loses_nothing():
    threads = [threading.Thread(target=lambda: [facts.register(function()) for _ in range(200)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(facts.snapshot()) == 1600


def test_warning_names_graph_source_reason_action_and_knob(caplog):
    with caplog.at_level(logging.WARNING, "pygraph_inductor"):
        facts.warn_once(function(), "input 3 is a float.", "the call runs plainly", "pygraph_inductor.config.strict")
    [entry] = caplog.records
    assert (entry.name, entry.levelname) == ("pygraph_inductor", "WARNING")
    assert entry.getMessage() == (
        "forward 0/0 (model.py:12 in forward): input 3 is a float; the call runs plainly."
        " To change this: pygraph_inductor.config.strict."
    )


def test_warning_comes_once_per_graph_and_event(caplog):
    with caplog.at_level(logging.WARNING, "pygraph_inductor"):
        for _ in range(3):
            facts.warn_once(function(), "input 3 is a float", "plain")
        facts.warn_once(function(), "input 4 is a float", "plain")
        facts.warn_once(function("backward 0/0"), "input 3 is a float", "plain")
    assert len(caplog.records) == 3


def test_remembered_warnings_are_bounded(monkeypatch):
    monkeypatch.setattr(facts, "LIMIT", 4)
    monkeypatch.setattr(facts.LOGGER, "warning", lambda *args: None)
    for number in range(9):
        facts.warn_once(function(), f"event {number}", "plain")
    assert len(facts._warned) == 4


def test_report_is_json_with_verdicts():
    report = Report([function(replays=2, recordings=[recording()])], {"torch": "2.14.1"}, ["cpp_wrapper: stock"])
    data = json.loads(json.dumps(report.to_dict()))
    assert data["functions"][0]["verdict"] == "replayed"
    assert data["functions"][0]["recordings"][0]["bytes_borrowed"] == 1536
    assert data["installed"] == {"torch": "2.14.1"}
    assert data["declined"] == ["cpp_wrapper: stock"]


def test_report_text_has_a_row_per_function_and_a_line_per_fact():
    plain = function("[odd] name", reasons=["float input 0"])
    text = str(Report([function(replays=2, recordings=[recording()]), plain], {"torch": "2.14.1"}, ["cpp_wrapper"]))
    for part in ("forward 0/0", "replayed", "patch 2, static 1", "1.5 KiB", "torch: 2.14.1", "declined: cpp_wrapper"):
        assert part in text
    assert "plain: float" in text
    assert "copy 0" not in text
    assert "[odd] name" in text


@pytest.mark.parametrize(
    "count, text",
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (3 << 30, "3.0 GiB"), (1 << 40, "1.0 TiB")],
)
def test_bytes_are_readable(count, text):
    assert table.readable_bytes(count) == text
