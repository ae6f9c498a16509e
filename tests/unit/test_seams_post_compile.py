"""The seam where graphs are finished: CPU graphs for the simulated driver, and graphs that stock drops silently."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._inductor import config as inductor_config

import pygraph_inductor
from pygraph_inductor.seams import declines, post_compile
from pygraph_inductor.seams.compilation import Compilation, going_on


@pytest.fixture(autouse=True)
def nothing_noted():
    pygraph_inductor.enable()
    declines.clear()
    yield
    declines.clear()


def call_often(function, times: int = 3, **how):
    compiled = torch.compile(function, **how)
    for number in range(times):
        x = torch.full((8, 8), float(number))
        torch.testing.assert_close(compiled(x), function(x))
    return pygraph_inductor.report().functions


def add(x):
    return (x + 1).relu()


@pytest.mark.parametrize("how", [{"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}])
def test_cpu_graphs_are_simulated_where_graphs_are_asked_for(how):
    with pygraph_inductor.config.patch(simulate=True):
        [function] = call_often(add, **how)
    assert function.verdict == "replayed"
    assert function.name == "inference 0/0"
    assert function.source == f"test_seams_post_compile.py:{add.__code__.co_firstlineno + 1} in add"


def test_cpu_graphs_are_left_alone_in_default_mode():
    with pygraph_inductor.config.patch(simulate=True):
        assert call_often(add) == []


def test_always_acts_on_cpu_graphs_in_default_mode_only_where_they_are_simulated():
    with pygraph_inductor.config.patch(simulate=True, always=True):
        [function] = call_often(add)
        assert function.verdict == "replayed"
    torch._dynamo.reset()
    with pygraph_inductor.config.patch(always=True):
        functions = call_often(add)
    assert [function.verdict for function in functions[1:]] == ["plain: it runs on the CPU"]


def test_cpu_graphs_are_not_touched_without_the_simulation_and_one_line_says_so(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    functions = call_often(add, mode="reduce-overhead")
    torch._dynamo.reset()
    functions = call_often(lambda x: x * 2, mode="reduce-overhead")
    assert [function.verdict for function in functions] == ["plain: it runs on the CPU"] * 2
    assert [record.getMessage() for record in caplog.records if record.name == "pygraph_inductor"] == [
        declines.NO_CUDA + "."
    ]


def test_nothing_is_said_about_cpu_graphs_beside_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    declines.note_cpu_graph()
    assert declines.lines() == []


def test_forward_and_backward_are_told_apart():
    with pygraph_inductor.config.patch(simulate=True):
        compiled = torch.compile(lambda x: x.sin().cos(), mode="reduce-overhead")
        for _ in range(3):
            x = torch.randn(8, requires_grad=True)
            compiled(x).sum().backward()
    functions = pygraph_inductor.report().functions
    assert [(function.name, function.verdict) for function in functions] == [
        ("forward 0/0", "replayed"),
        ("backward 0/0", "replayed"),
    ]


def test_trees_leave_cpu_graphs_alone():
    with pygraph_inductor.config.patch(simulate=True, graph_manager="trees"):
        assert call_often(add, mode="reduce-overhead") == []


@pytest.mark.skipif(not hasattr(torch._dynamo, "override_cudagraphs"), reason="from torch 2.12 on")
def test_annotation_that_turns_graphs_off_is_respected():
    @torch._dynamo.override_cudagraphs(fwd=False)
    def annotated(x):
        return (x + 1).relu()

    with pygraph_inductor.config.patch(simulate=True):
        assert call_often(annotated, mode="reduce-overhead") == []


def test_customized_partition_wrappers_are_left_alone_with_one_line(monkeypatch, caplog):
    import torch._inductor.utils as utils

    wrapped = []

    def wrapper(function, metadata):
        wrapped.append(metadata)
        return function

    utils.set_customized_partition_wrappers(wrapper)
    try:
        functions = call_often(add, mode="reduce-overhead")
    finally:
        utils.set_customized_partition_wrappers(None)
    assert declines.CUSTOMIZED_WRAPPERS in pygraph_inductor.report().declined
    assert [function.verdict for function in functions] == [f"plain: {declines.CUSTOMIZED_WRAPPERS}"]


def test_failure_of_ours_leaves_the_graph_alone_with_one_line(monkeypatch, caplog):
    from pygraph_inductor.seams import describe

    monkeypatch.setattr(describe, "facts_of", lambda *args: 1 / 0)
    with pygraph_inductor.config.patch(simulate=True):
        call_often(add, mode="reduce-overhead")
    assert "ZeroDivisionError" in caplog.text
    torch._dynamo.reset()
    with pygraph_inductor.config.patch(simulate=True, strict=True), pytest.raises(Exception, match="division by zero"):
        call_often(add, mode="reduce-overhead")


def test_cpp_wrapper_is_declined_with_one_line(caplog):
    with pygraph_inductor.config.patch(simulate=True), inductor_config.patch(cpp_wrapper=True):
        functions = call_often(add, mode="reduce-overhead")
    assert functions == []
    assert pygraph_inductor.report().declined == [declines.CPP_WRAPPER]


@pytest.mark.parametrize(("off", "given"), [({}, True), ({"backward_off": True}, True), ({"forward_off": True}, False)])
def test_backward_told_to_have_no_graph_is_given_its_seeds_where_its_forward_may_have_one(monkeypatch, off, given):
    """torch._dynamo.override_cudagraphs(fwd=True, bwd=False): the forward's replay leaves the seeds on the device."""
    seen = []
    monkeypatch.setattr(post_compile, "_give_seeds_on_host", seen.append)
    monkeypatch.setattr(post_compile, "_report_dropped", lambda *_: None)
    graph = SimpleNamespace(device_types={"cuda"})
    with inductor_config.patch({"triton.cudagraphs": not off}), going_on(Compilation(**off)):
        post_compile.wrap(lambda *_: None)(graph, [], {}, {"is_backward": True, "cudagraphs": False})
    assert bool(seen) is given
