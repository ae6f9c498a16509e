"""Bounds that skip a measurement hold whatever the calls cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pygraph_inductor.driver.protocol import Timing
from pygraph_inductor.selection.cost_model import Coefficients
from pygraph_inductor.selection.judge import Rules, Variant, judge
from pygraph_inductor.selection.prediction import (
    A_CALL,
    A_COPY,
    A_LAUNCH,
    A_NODE,
    A_REPLAY,
    A_SLOT,
    AN_INPUT,
    AN_OUTPUT,
    MOST_A_CALL,
    MOST_A_LAUNCH,
    MOST_AN_INPUT,
    Prediction,
    predict,
)


@settings(deadline=None)  # about values, and machines can be busy
@given(st.floats(0, 1e5), st.integers(0, 50), st.floats(0, 1), st.floats(0, 1e5), st.floats(0, 1e3))
def test_what_is_hopeless_would_have_lost(added, launches, part_of_most, device, host_of_graph):
    """`device`: the kernels' own time. The plain host time is any that launches can take."""
    prediction = Prediction(added, MOST_A_LAUNCH * launches)
    if prediction.hopeless is None or not launches:
        return
    host = part_of_most * prediction.launching
    plain = Timing(round(host * 1e3), round(max(device, host) * 1e3), False)
    graph = Timing(round(host_of_graph * 1e3), round((device + added) * 1e3), False)
    samples = {Variant.PLAIN: [plain] * 30, Variant.GRAPH: [graph] * 30}
    verdict = judge(samples, Rules("auto", 0.02), final=True)
    assert verdict is not None
    table = {one.variant: one.cost.median for one in verdict.table}
    assert table[Variant.GRAPH] >= table[Variant.PLAIN] - 1


def test_only_staged_slots_count_and_written_ones_twice():
    import torch

    from pygraph_inductor.replay.plan import Engine, Layout, Plan, Slot

    def slot(engine, is_output=False, written=False):
        return Slot(0, is_output, Layout((1 << 20,), (1,), torch.float32), engine, 256, 0, written, ())

    def added(*slots):
        return predict(Plan(slots, (), (), tuple), ["kernel"] * 3, Coefficients(bytes_per_us=1 << 20)).added

    assert added(slot(Engine.PATCH), slot(Engine.STATIC)) == 0
    assert added(slot(Engine.COPY)) == 4
    assert added(slot(Engine.COPY, written=True)) == 8
    assert added(slot(Engine.COPY, is_output=True, written=True)) == 4
    most = MOST_A_CALL + 2 * MOST_A_LAUNCH
    assert predict(Plan((), (), (), tuple), ["kernel", "empty", "memcpy"], Coefficients()).launching == most
    inputs = Plan((slot(Engine.PATCH), slot(Engine.PATCH, is_output=True)), (), (), tuple)
    assert predict(inputs, ["kernel"] * 2, Coefficients()).launching == most + MOST_AN_INPUT
    assert predict(Plan((), (), (), tuple), ["empty"], Coefficients()).hopeless == "it launches nothing"


def test_expected_host_time_counts_launches_outputs_updated_nodes_and_staged_slots():
    import torch

    from pygraph_inductor.replay.plan import Allocation, Binding, Engine, Layout, Plan, Slot

    layout = Layout((1 << 20,), (1,), torch.float32)

    def slot(engine, *nodes, written=False):
        return Slot(0, False, layout, engine, 256, 0, written, tuple(Binding(node, 0, 0, 0) for node in nodes))

    c = Coefficients(bytes_per_us=1 << 20)

    def expected(*slots, twins=0, outputs=0, ours=0):
        """`ours`: nodes that the plain call has no launch for."""
        plan = Plan(slots, (Allocation(layout, None),) * outputs, (), tuple)
        found = {one.variant: one for one in predict(plan, ["kernel"] * (3 + ours), c, twins).expected}
        plainly = A_CALL + 3 * A_LAUNCH + len(slots) * AN_INPUT
        assert found[Variant.PLAIN].host == pytest.approx(plainly) and found[Variant.PLAIN].added == 0
        rest = found[Variant.GRAPH].host - A_REPLAY - A_NODE * (3 + ours) - A_SLOT * len(slots)
        return pytest.approx(rest, abs=1e-6), pytest.approx(found[Variant.GRAPH].added)

    assert expected(slot(Engine.STATIC, 0, 1)) == (0, 0)
    shared = expected(slot(Engine.PATCH, 0, 1), slot(Engine.PATCH, 1), outputs=2)
    assert shared == (2 * AN_OUTPUT + 2 * c.node_update, 0)
    table = expected(slot(Engine.INDIRECT, 0), slot(Engine.INDIRECT, 0), twins=5, ours=1)
    assert table == (c.node_update, c.table_node + 5 * c.indirect_load)
    staged = expected(slot(Engine.COPY), slot(Engine.COPY, written=True))
    assert staged == (c.python_replay + 3 * A_COPY, 12 + 3 * c.copy_launch)
    copied = expected(slot(Engine.COPY, 0), slot(Engine.COPY, 1, 9, written=True), ours=3)
    assert copied == (3 * c.node_update, 12 + 3 * c.copy_launch)


def test_graph_with_copies_of_all_tensors_is_ruled_out_unless_it_is_expected_to_cost_less():
    import torch

    from pygraph_inductor.replay.plan import Allocation, Binding, Engine, Layout, Plan, Slot

    small = Layout((16,), (1,), torch.float32)

    def slot(engine, *nodes, layout=small, written=False):
        return Slot(0, False, layout, engine, 256, 0, written, tuple(Binding(node, 0, 0, 0) for node in nodes))

    def predicted(*slots):
        return predict(Plan(slots, (Allocation(small, None),), (), tuple), ["kernel"] * 1000, Coefficients())

    c = Coefficients()
    few, many = slot(Engine.PATCH, 0, 1), slot(Engine.PATCH, *range(900))
    assert not predicted(few).may_win_by_copies and predicted(many).may_win_by_copies
    by_variant = {one.variant: one for one in predicted(many, few).expected}
    copies = by_variant[Variant.COPY]
    one_each = A_REPLAY + AN_OUTPUT + 2 * c.node_update + A_NODE * (1000 + 2)
    assert copies.host == pytest.approx(one_each + 2 * A_SLOT)
    assert abs(copies.added - 2 * c.copy_launch) < 0.1
    written = {one.variant: one for one in predicted(slot(Engine.PATCH, 0, written=True)).expected}[Variant.COPY]
    assert written.host == pytest.approx(one_each + A_SLOT), "there and back"

    large = Layout((1 << 28,), (1,), torch.float32)
    assert not predicted(many, slot(Engine.STATIC, 0, layout=large)).may_win_by_copies, "weights would be copied, too"
    assert Variant.COPY not in {one.variant for one in predicted(slot(Engine.COPY, 0)).expected}, "it is that already"
    assert not predicted(slot(Engine.COPY, 0)).may_win_by_copies and not predicted().may_win_by_copies
