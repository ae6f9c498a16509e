"""Random programs between host and device: rewritten, cut at random, ordered, and every piece recorded and replayed.

There is no device here, so what the rewrites made of a program for one is compiled for the CPU, where its uploads and
numbers are cuts as they would be there, and other cuts come at random. What shows must be what the program does itself.
"""

from __future__ import annotations

import collections
import copy
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo import config as dynamo_config
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.scheduler import Scheduler

import pygraph_inductor
from pygraph_inductor.codegen import registration
from pygraph_inductor.driver.devices import driver_for
from pygraph_inductor.recording.function import RecordedFunction
from pygraph_inductor.replay.mirrors import following
from pygraph_inductor.seams import describe, post_compile
from pygraph_inductor.transform import constants, mirrors
from pygraph_inductor.transform.apply import ALL, apply
from pygraph_inductor.transform.operators import UPLOAD
from tests.codegen.fake_cuda import fake_cuda
from tests.codegen.mixed_programs import contents, drawn, traced
from tests.codegen.test_random_rewrites import on_the_cpu

PROGRAMS = int(os.environ.get("RANDOM_RECORDED_REWRITES", "4"))
SEED = int(os.environ.get("RANDOM_SEED", "20240607"))
CALLS = 6
CPU = torch.device("cpu")


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The rule for cuts, by a seed that the test sets; and pieces that are recorded one by one, as on a device."""
    state: dict[str, Any] = {"seed": "", "pieces": 0}
    stock = Scheduler.should_partition

    def should_partition(scheduler: Any, node: Any) -> str | None:
        if not registration.registered():
            return stock(scheduler, node)
        # A result of an operator with several is where the operator is.
        parts = [one.node.inputs[0] if isinstance(one.node, ir.MultiOutput) else one.node for one in node.get_nodes()]
        for part in parts:
            if isinstance(part, ir.FallbackKernel) and part.op_overload is UPLOAD:
                return "it is an upload"
            if getattr(part, "unbacked_bindings", None):
                return "it asks for a number"
        drawn_for = f"{state['seed']} {parts[0].get_name()}"
        return "at random" if random.Random(drawn_for).random() < 0.35 else None

    def simulate(graph: Any, compilation: Any) -> None:
        def recording(partition: Any) -> Callable[..., Any]:
            mapping = enumerate(partition.input_index_mapping)
            written = tuple(number for number, given in mapping if given in graph.mutated_input_idxs)
            declared = describe.Declared("inference", CPU, (), written, source_code=graph.source_code)

            def recorded(run: Callable[..., Any]) -> Any:
                state["pieces"] += 1
                return RecordedFunction(run, describe.facts_of(run, declared, compilation), driver_for(CPU)).entry()

            return recorded

        graph.recursively_apply_fns([recording(partition) for partition in graph.partition_maps])

    monkeypatch.setattr(Scheduler, "should_partition", should_partition)
    monkeypatch.setattr(post_compile, "_simulate", simulate)
    # Random numbers of the CPU would be drawn in another order (torch 2.11).
    for name in ("maybe_reorder_for_minimizing_partition", "reorder_for_partition_with_simple_dependency"):
        monkeypatch.setattr(Scheduler, name, lambda self, nodes: nodes)
    monkeypatch.setattr(constants, "place", lambda value, device: value.clone())
    return state


def check(seed: str, seen: collections.Counter[str]) -> None:
    chance = random.Random(seed)
    mixed = drawn(chance, 24)
    with fake_cuda():
        module = traced(mixed)
        before = copy.deepcopy(module.graph)
        apply(module, ALL, strict=True, static=mixed.static)
    positions = mirrors.mirrored(module.graph)
    original, rewritten = on_the_cpu(fx.GraphModule(module, before)), on_the_cpu(module)
    torch._dynamo.reset()
    compiled = torch.compile(rewritten, mode="reduce-overhead", dynamic=False)
    call = following(lambda inputs: compiled(*inputs), positions, CPU, 1 << 20)
    state = contents(chance)
    copied = [one.clone() for one in state]
    earlier = len(pygraph_inductor.report().functions)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for number in range(CALLS):
        fresh = contents(chance)
        for position, value in enumerate(fresh):
            if position not in mixed.static or chance.random() < 0.2:
                # What stays in its place changes its content, what does not comes as another tensor.
                state[position] = state[position].copy_(value) if position in mixed.static else value.clone()
                copied[position] = value.clone()
        torch.manual_seed(number)
        wanted = [*original(*copied), *copied, torch.get_rng_state()]
        torch.manual_seed(number)
        with torch.no_grad():
            results = call([*state])
        got = [*results, *state, torch.get_rng_state()]
        for position, (a, b) in enumerate(zip(got, wanted, strict=True)):
            where = f"call {number}, value {position}"
            torch.testing.assert_close(
                a, b, rtol=1e-9, atol=1e-9, equal_nan=True, msg=lambda text, w=where: f"{w}: {text}"
            )
        own = {one.untyped_storage()._cdata for one in state}
        kept += [(one, one.clone()) for one in results if one.untyped_storage()._cdata not in own]
    for now, then in kept:
        torch.testing.assert_close(now, then, rtol=0, atol=0, equal_nan=True, msg="a later call wrote over a result")
    functions = pygraph_inductor.report().functions[earlier:]
    seen["functions"] += len(functions)
    seen["replays"] += sum(one.replays for one in functions)
    seen["mirrored"] += bool(positions)
    seen["uploads"] += len(list(module.graph.find_nodes(op="call_function", target=UPLOAD)))
    seen.update(reason for one in functions for reason in one.reasons)


def test_random_rewritten_programs_show_what_they_do_themselves(cuts):
    seen: collections.Counter[str] = collections.Counter()
    options = inductor_config.patch(fx_graph_cache=False, fallback_random=True)
    with (
        options,
        pygraph_inductor.config.patch(simulate=True, selection=False),
        dynamo_config.patch(capture_scalar_outputs=True),
    ):
        for number in range(PROGRAMS):
            cuts["seed"] = f"{SEED} {number}"
            try:
                check(cuts["seed"], seen)
            except Exception as error:
                raise AssertionError(f"program {cuts['seed']!r}") from error
    print(dict(seen))
    assert cuts["pieces"] > PROGRAMS and seen["replays"] >= 4 * PROGRAMS and seen["uploads"] >= PROGRAMS // 2
