"""The seam at Inductor's entry: what it reads, what it turns on, and that a backward is compiled by the same knobs."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.compile_fx
from torch._inductor import config as inductor_config

import pygraph_inductor
from pygraph_inductor.codegen import registration
from pygraph_inductor.seams import compile_fx, declines
from pygraph_inductor.seams.compilation import current, entered


@pytest.fixture(autouse=True)
def nothing_noted():
    pygraph_inductor.enable()
    declines.clear()
    yield
    declines.clear()
    registration.match(frozenset())


def model(device: str = "cuda") -> torch.fx.GraphModule:
    """A graph with one value on `device`; nothing is on it for real."""
    graph = torch.fx.Graph()
    node = graph.call_function(torch.zeros, (8,))
    node.meta["example_value"] = torch._subclasses.FakeTensorMode().from_tensor(torch.zeros(8))
    if device == "cuda":
        with torch._subclasses.FakeTensorMode():
            node.meta["example_value"] = torch.empty(8, device="cuda")
    node.meta["stack_trace"] = '  File "/home/me/model.py", line 12, in forward\n    return torch.zeros(8)\n'
    graph.output(node)
    return torch.fx.GraphModule({}, graph)


class Stock:
    """Stands for torch's compile_fx: applies options and calls itself, as it does, and keeps what it saw."""

    def __init__(self) -> None:
        self.compile_fx = compile_fx.wrap(self.original)
        self.graphs_on: list[bool] = []
        self.seen: list[Any] = []
        self.inner: Any = None

    def original(
        self,
        model_: Any,
        example_inputs_: Any,
        inner_compile: Any = None,
        config_patches: dict[str, Any] | None = None,
        decompositions: Any = None,
        ignore_shape_env: bool = False,
    ) -> str:
        if config_patches:
            with inductor_config.patch(config_patches):
                inner = inductor_config.patch(config_patches)(inner_compile)
                return self.compile_fx(model_, example_inputs_, inner_compile=inner)
        assert entered()
        self.graphs_on.append(inductor_config.triton.cudagraphs)
        self.seen.append(current())
        self.inner = inner_compile
        return "compiled"

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        arguments = {"inner_compile": lambda: (inductor_config.triton.cudagraphs, current()), **kwargs}
        assert self.compile_fx(*(args or (model(), [])), **arguments) == "compiled"
        assert not entered()
        return self.seen[-1]


def test_default_mode_stays_as_it_is():
    stock = Stock()
    stock.compile()
    assert stock.graphs_on == [False]


def test_always_turns_graphs_on_for_the_compilation_and_its_backward():
    stock = Stock()
    with pygraph_inductor.config.patch(always=True):
        stock.compile()
    assert stock.graphs_on == [True]
    assert not inductor_config.triton.cudagraphs
    assert stock.inner()[0] is True


def test_always_keeps_the_users_other_options():
    stock = Stock()
    with pygraph_inductor.config.patch(always=True):
        stock.compile(config_patches={"max_autotune": True})
    assert stock.graphs_on == [True]


@pytest.mark.parametrize("options", [{"triton.cudagraphs": False}, {"triton.cudagraphs": False, "max_autotune": True}])
def test_always_respects_a_no(options):
    stock = Stock()
    with pygraph_inductor.config.patch(always=True):
        stock.compile(config_patches=options)
    assert stock.graphs_on == [False]


def test_always_leaves_graphs_alone_that_touch_no_cuda_device():
    stock = Stock()
    with pygraph_inductor.config.patch(always=True):
        stock.compile(model("cpu"), [torch.zeros(2)])
    assert stock.graphs_on == [False]


def test_backward_is_compiled_in_another_thread_by_the_knobs_of_its_forward():
    stock = Stock()
    with pygraph_inductor.config.patch(strict=True, simulate=True):
        stock.compile(model("cpu"), [])
    seen = []
    thread = threading.Thread(target=lambda: seen.append(stock.inner()[1]))
    thread.start()
    thread.join()
    assert seen[0].settings.strict and seen[0].simulate
    assert seen[0].began_ns > 0 and dataclasses.replace(seen[0], began_ns=0) == stock.seen[0]


def test_place_in_the_users_code_is_read_from_the_graph():
    assert Stock().compile().source == "model.py:12 in forward"


@pytest.mark.parametrize(
    "fwd, bwd, off", [(None, None, (False, False)), (False, None, (True, True)), (True, False, (False, True))]
)
def test_annotations_of_the_user_are_read(fwd, bwd, off):
    annotated = model()
    annotated.meta["cudagraph_annotation"] = SimpleNamespace(fwd=fwd, bwd=bwd)
    compilation = Stock().compile(annotated, [])
    assert (compilation.forward_off, compilation.backward_off) == off


@pytest.mark.parametrize("option, line", [("cpp_wrapper", declines.CPP_WRAPPER), ("fx_wrapper", declines.FX_WRAPPER)])
def test_wrappers_that_are_not_python_are_declined_with_one_line(option, line, caplog):
    stock = Stock()
    for _ in range(2):
        compilation = stock.compile(config_patches={option: True, "triton.cudagraphs": True})
        assert compilation.declined == line
    assert [record.getMessage() for record in caplog.records] == [line + "."]
    with inductor_config.patch({option: True}):
        assert stock.compile().declined == line


def test_aot_inductor_is_declined_with_one_line(caplog):
    from torch._inductor.virtualized import V

    with V.set_aot_compilation(True):
        compilation = Stock().compile(config_patches={"triton.cudagraphs": True})
    assert compilation.declined == declines.AOT_INDUCTOR
    assert [record.getMessage() for record in caplog.records] == [declines.AOT_INDUCTOR + "."]


def test_nothing_is_said_about_a_wrapper_where_no_graphs_were_asked_for(caplog):
    Stock().compile(config_patches={"cpp_wrapper": True})
    assert caplog.records == [] and declines.lines() == []


def test_always_does_not_turn_graphs_on_for_what_is_declined():
    stock = Stock()
    with pygraph_inductor.config.patch(always=True):
        stock.compile(config_patches={"cpp_wrapper": True})
    assert stock.graphs_on == [False]


def test_failure_of_ours_leaves_the_compilation_to_stock_with_one_line(monkeypatch, caplog):
    monkeypatch.setattr(compile_fx, "place_of", lambda traces: 1 / 0)
    stock = Stock()
    assert stock.compile().declined
    assert "ZeroDivisionError" in caplog.text
    with pygraph_inductor.config.patch(strict=True), pytest.raises(ZeroDivisionError):
        stock.compile()


def test_what_stock_raises_passes_through_and_leaves_no_trace():
    def original(model_, example_inputs_, inner_compile=None, config_patches=None):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_fx.wrap(original)(model(), [])
    assert not entered()


GRAPHS = {"triton.cudagraphs": True}


@pytest.mark.parametrize("simulate, devices", [(False, ["cuda"]), (True, ["cpu", "cuda"])])
def test_code_generation_serves_what_the_knobs_ask_for(monkeypatch, simulate, devices):
    monkeypatch.setattr(declines, "of_process", lambda: None)
    stock = Stock()
    with pygraph_inductor.config.patch(simulate=simulate):
        stock.compile(config_patches=GRAPHS)
        assert registration.registered() == devices
    with pygraph_inductor.config.patch(graph_manager="trees"):
        stock.compile(config_patches=GRAPHS)
        assert registration.registered() == []


@pytest.mark.parametrize("options", [None, {"triton.cudagraphs": False}, {**GRAPHS, "cpp_wrapper": True}])
def test_code_generation_is_stock_where_no_graphs_are_asked_for_or_served(monkeypatch, options):
    """Default mode shares its caches with a stock process."""
    monkeypatch.setattr(declines, "of_process", lambda: None)
    stock = Stock()
    stock.compile(config_patches=GRAPHS)
    assert registration.registered() == ["cuda"]
    stock.compile(config_patches=options)
    assert registration.registered() == []


def test_code_generation_is_stock_where_the_process_is_declined(monkeypatch):
    monkeypatch.setattr(declines, "of_process", lambda: declines.OLD_DRIVER)
    Stock().compile(config_patches=GRAPHS)
    assert registration.registered() == []


def test_annotation_that_turns_graphs_on_counts_as_asking(monkeypatch):
    monkeypatch.setattr(declines, "of_process", lambda: None)
    annotated = model()
    annotated.meta["cudagraph_annotation"] = SimpleNamespace(fwd=True, bwd=None)
    assert Stock().compile(annotated, []).asked
    assert registration.registered() == ["cuda"]


def test_backend_that_is_taken_by_somebody_else_is_reported(monkeypatch):
    monkeypatch.setattr(registration, "match", lambda devices: ["cuda"])
    Stock().compile()
    assert any(line.startswith("code generation for cuda: another package") for line in declines.lines())
