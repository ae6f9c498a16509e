"""A stock process and ours share one cache folder: neither takes what the other generated, and a hit loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch._guards import TracingContext

ROOT = Path(__file__).resolve().parent.parent.parent

# Compiles one training step, through AOTAutograd's cache and then through Inductor's alone, and says what was met.
PROGRAM = """
import functools, json, sys
import torch, torch._functorch.config
from torch._dynamo.utils import counters
from torch._inductor.output_code import CompiledFxGraph

ours = "ours" in sys.argv
if ours:
    import pygraph_inductor
    if "changed" in sys.argv:
        from pygraph_inductor.codegen import options
        options.generation = 1000

graphs, stock = [], CompiledFxGraph.post_compile
@functools.wraps(stock)
def post_compile(self, *args):
    graphs.append(self)
    return stock(self, *args)
CompiledFxGraph.post_compile = post_compile

def step(x, w):
    return torch.sin(x @ w)

def once(aot):
    torch._dynamo.reset(); counters.clear(); graphs.clear()
    with torch._functorch.config.patch(enable_autograd_cache=aot):
        compiled = torch.compile(step, mode="reduce-overhead")
        for _ in range(3):
            x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
            out = compiled(x, w)
            grads = torch.autograd.grad(out.sum(), (x, w))
            expected = step(x, w)
            torch.testing.assert_close(out, expected)
            torch.testing.assert_close(grads, torch.autograd.grad(expected.sum(), (x, w)))
    kind = {graph.fx_kwargs["is_backward"]: graph for graph in graphs}
    known = [getattr(kind[backward].compiled_fn_runner, "pygraph", None) for backward in (False, True)]
    result = {
        "aot": [counters["aot_autograd"]["autograd_cache_" + what] for what in ("hit", "miss")],
        "fx": [counters["inductor"]["fxgraph_cache_" + what] for what in ("hit", "miss")],
        "visible": [one["call"]["visible"] if one else None for one in known],
        "known": [one is not None for one in known],
    }
    if ours:
        result["verdicts"] = [function.verdict for function in pygraph_inductor.report().functions]
    return result

print(json.dumps([once(True), once(False)]))
"""

# Compiles one training step whose backward has the same graph and inputs for a parameter of either layout, and says
# what the caches answered and whether the backward gave the gradient the parameter's layout.
LAYOUTS = """
import json, sys
import torch, torch._functorch.config
import pygraph_inductor
from torch._dynamo.utils import counters

pygraph_inductor.config.transform_gradients = "on" in sys.argv
weight = torch.randn(8, 4).t() if "turned" in sys.argv else torch.randn(4, 8)
weight.requires_grad_()
strides = []
weight.register_hook(lambda gradient: strides.append(gradient.stride()))
with torch._functorch.config.patch(enable_autograd_cache="aot" in sys.argv):
    compiled = torch.compile(lambda x, weight: x * weight, mode="reduce-overhead")
    for _ in range(3):
        compiled(torch.randn(4, 8), weight).square().sum().backward()
print(json.dumps([{
    "aot": [counters["aot_autograd"]["autograd_cache_" + what] for what in ("hit", "miss")],
    "fx": [counters["inductor"]["fxgraph_cache_" + what] for what in ("hit", "miss")],
    "taken": set(strides) == {weight.stride()},
}]))
"""


def run(folder: Path, *arguments: str, program: str = PROGRAM) -> list[dict[str, Any]]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder), "PYGRAPH_SIMULATE": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def assert_misses(answers: list[dict[str, Any]]) -> None:
    through_aot, through_fx = answers
    assert through_aot["aot"] == [0, 1] and through_aot["fx"] == [0, 2]
    assert through_fx["fx"] == [2, 0]  # what was just stored


def assert_hits(answers: list[dict[str, Any]]) -> None:
    through_aot, through_fx = answers
    assert through_aot["aot"] == [1, 0]
    assert through_fx["fx"] == [2, 0]


def assert_ours(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["known"] == [True, True]
        # The forward returns its result first and what it saves behind; all of the backward's is visible.
        assert answer["visible"] == [[0], None]
        assert set(answer["verdicts"]) == {"replayed"}


def assert_stock(answers: list[dict[str, Any]]) -> None:
    assert all(answer["known"] == [False, False] for answer in answers)


def test_ours_behind_stock_generates_anew_and_each_finds_its_own_again(tmp_path):
    for check in (assert_misses, assert_hits):
        stock = run(tmp_path)
        check(stock)
        assert_stock(stock)
        ours = run(tmp_path, "ours")
        check(ours)
        assert_ours(ours)


def test_stock_behind_ours_generates_anew_and_so_does_a_change_of_ours(tmp_path):
    assert_misses(run(tmp_path, "ours"))
    stock = run(tmp_path)
    assert_misses(stock)
    assert_stock(stock)
    assert_misses(run(tmp_path, "ours", "changed"))


def test_what_a_forward_saves_is_part_of_the_key(monkeypatch):
    """Else a graph could be served to a function that returns more of the same outputs and saves fewer."""
    from pygraph_inductor.codegen.graph_pass import GraphPass

    keys = set()
    for count in (1, 2):
        metadata = SimpleNamespace(num_forward=count, tokens={})
        context = SimpleNamespace(fw_metadata=metadata)
        monkeypatch.setattr(TracingContext, "try_get", staticmethod(lambda context=context: context))
        keys.add(GraphPass().uuid())
    assert len(keys) == 2


def test_key_names_the_text_of_our_code_generation(monkeypatch):
    from pygraph_inductor.codegen import graph_pass

    before = graph_pass.GraphPass().uuid()
    assert before is not None
    assert {Path(name).name for name in graph_pass._FILES} >= {"wrapper.py", "visible.py", "generated_code.py"}
    monkeypatch.setattr(graph_pass, "_FILES", graph_pass._FILES[:-1])
    assert graph_pass.GraphPass().uuid() != before


def test_layouts_of_gradients_are_told_apart_where_the_graphs_are_the_same(tmp_path):
    """The layout of a parameter that the backward does not read shows in nothing else that Inductor's key covers."""

    def answers(*arguments: str) -> dict[str, Any]:
        return run(tmp_path, *arguments, program=LAYOUTS)[0]

    assert not answers("turned")["taken"]  # there is something to do
    for arguments in (("on", "turned"), ("on",)):
        for expected in ([0, 2], [2, 0]):
            answer = answers(*arguments)
            assert answer["taken"] and answer["fx"] == expected, arguments


def test_layouts_of_gradients_are_part_of_the_key_of_whole_steps(tmp_path):
    def answers(*arguments: str) -> dict[str, Any]:
        return run(tmp_path, "aot", "turned", *arguments, program=LAYOUTS)[0]

    for arguments in ((), ("on",)):
        for expected in ([0, 1], [1, 0]):
            answer = answers(*arguments)
            assert answer["taken"] == bool(arguments) and answer["aot"] == expected, arguments
