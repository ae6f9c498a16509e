"""The demo's own checking: it must see a wrong answer, an overwritten one and a graph that was not replayed."""

from __future__ import annotations

import torch

from pygraph_inductor import demo
from pygraph_inductor.demo.model import Shape
from pygraph_inductor.demo.workloads import WORKLOADS, Difference, Workload, check
from pygraph_inductor.reporting import FunctionFacts, RecordingFacts

SMALL = Shape(vocabulary=16, width=8, heads=2, layers=1, batch=2, tokens=4)
CPU = torch.device("cpu")
INFERENCE, TRAINING, DROPOUT = WORKLOADS


def checked(workload: Workload, wrap) -> Difference:
    model = workload.model(SMALL, CPU)
    return check(workload, wrap(model), model, SMALL, CPU, calls=3)


def function(**changes) -> FunctionFacts:
    recording = RecordingFacts("key", {"kernel": 120}, 120, {"patch": 7}, 9, 2048, replays=4)
    values = {"calls": 6, "replays": 4, "recordings": [recording], **changes}
    return FunctionFacts(name="forward 0/0", kind="forward", source="", device="cpu", **values)


def test_eager_equals_itself_in_every_workload():
    for workload in WORKLOADS:
        assert checked(workload, lambda model: model).failures == []


def test_slightly_wrong_scores_are_seen():
    found = checked(INFERENCE, lambda model: lambda tokens: model(tokens) * 1.001)
    assert len(found.failures) == 3
    assert found.verdict.startswith("DIFFERS: call 1, scores: off by")


def test_a_not_a_number_is_seen():
    assert checked(INFERENCE, lambda model: lambda tokens: model(tokens) / 0 * 0).failures


def test_output_of_the_call_before_is_seen():
    def wrap(model):
        before = []

        def call(tokens):
            before.append(model(tokens))
            return before[-2] if len(before) > 1 else before[-1]

        return call

    assert checked(INFERENCE, wrap).failures


def test_output_overwritten_by_a_later_call_is_seen():
    def wrap(model):
        static = torch.empty(SMALL.batch, SMALL.tokens, SMALL.vocabulary)
        return lambda tokens: static.copy_(model(tokens))

    found = checked(INFERENCE, wrap)
    assert len(found.failures) == 2
    assert all("overwritten by a later call" in failure for failure in found.failures)


def test_stale_weights_are_seen():
    def wrap(model):
        frozen = TRAINING.model(SMALL, CPU)
        return lambda tokens: frozen(tokens) + 0 * model(tokens)

    assert any("call 2" in failure for failure in checked(TRAINING, wrap).failures)


def test_dropout_with_another_mask_is_seen():
    def wrap(model):
        return lambda tokens: (torch.rand(1), model(tokens))[1]

    assert checked(DROPOUT, wrap).failures


def test_only_replayed_and_equal_counts_as_good():
    good = demo.Outcome(TRAINING, Difference(), [function()], None)
    assert good.good
    assert not demo.Outcome(TRAINING, Difference(), [], None).good
    assert not demo.Outcome(TRAINING, Difference(), [function(), function(replays=0)], None).good
    assert not demo.Outcome(TRAINING, Difference(failures=["call 1"]), [function()], None).good


def test_table_has_time_columns_only_where_times_were_taken():
    outcome = demo.Outcome(TRAINING, Difference(), [function(), function()], demo.timing.Times(1.0, 2.5, 3.25))
    timed, plain = demo.demo_table([outcome], timed=True), demo.demo_table([outcome], timed=False)
    headings = [str(column.header) for column in timed.columns]
    assert [str(column.header) for column in plain.columns] == [
        h for h in headings if "graphs" not in h and "ms" not in h
    ]
    assert [[str(cell) for cell in column.cells] for column in timed.columns][-2] == ["3.25", ""]
    rendered = demo.table.rendered(timed)
    for part in ("training: forward", "120", "patch 7", "2.0 KiB", "2.50", "replayed 4x"):
        assert part in rendered


def test_demo_model_has_at_least_a_hundred_kernels_worth_of_layers():
    assert Shape().layers >= 6  # 50 launches forward and 105 backward on CPU
