"""Random programs between host and device, rewritten: values, writes, random numbers and places stay what they were."""

from __future__ import annotations

import collections
import copy
import itertools
import os
import random

import torch
from torch import fx

from pygraph_inductor.transform import constants, mirrors
from pygraph_inductor.transform.apply import ALL, apply
from pygraph_inductor.transform.host_values import device_of, moved_to
from pygraph_inductor.transform.mirrors import MIRRORS
from pygraph_inductor.transform.switches import Limits, turned_on

from .mixed_programs import contents, drawn, traced
from .rewritten import retargeted

PROGRAMS = int(os.environ.get("RANDOM_REWRITES", "120"))
SEED = int(os.environ.get("RANDOM_SEED", "20240607"))
SWITCHES = (*sorted(ALL | {MIRRORS}),)


def on_the_cpu(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph with everything on the CPU, where copies between devices are copies still.

    Converting to the type that a tensor has gives the tensor itself, as with Inductor.
    """
    graph = copy.deepcopy(module.graph)
    for node in list(graph.nodes):
        if moved_to(node) is not None:
            with graph.inserting_after(node):
                cloned = graph.call_function(torch.ops.aten.clone.default, (node,))
            node.replace_all_uses_with(cloned)
            cloned.meta.update(node.meta)
            cloned.args = (node,)
    for node in graph.find_nodes(op="call_function", target=torch.ops.prims.convert_element_type.default):
        if node.args[0].meta["val"].dtype == node.args[1]:
            node.replace_all_uses_with(node.args[0])
    return retargeted(fx.GraphModule(module, graph))


def shared(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Which tensors have memory in common."""
    storages = [one.untyped_storage()._cdata for one in tensors]
    pairs = itertools.combinations(range(len(tensors)), 2)
    return [(one, other) for one, other in pairs if storages[one] == storages[other]]


def called(graph: fx.GraphModule, inputs: list[torch.Tensor], more: list[torch.Tensor]) -> list[object]:
    """Everything that shows: results, inputs afterwards, the state of the generator."""
    torch.manual_seed(7)
    results = graph(*inputs, *more)
    return [*results, *inputs, torch.get_rng_state(), shared([*results, *inputs, *more])]


def check(seed: str, seen: collections.Counter[str]) -> None:
    chance = random.Random(seed)
    mixed = drawn(chance)
    module = traced(mixed)
    before = copy.deepcopy(module.graph)
    off = chance.sample(SWITCHES, chance.choice([0, 0, 0, 1, 2]))
    limits = chance.choice([Limits()] * 4 + [Limits(uploads=200), Limits(mirrors=70)])
    with turned_on(ALL, limits):
        outcomes = apply(module, ALL - set(off), strict=True, static=mixed.static)
    for old, new in zip(before.output_node().args[0], module.graph.output_node().args[0], strict=True):
        old, new = old.meta["val"], new.meta["val"]
        assert (old.device, old.dtype, old.size(), old.stride()) == (new.device, new.dtype, new.size(), new.stride())
    positions = mirrors.mirrored(module.graph)
    assert set(positions) <= mixed.static
    original, rewritten = on_the_cpu(fx.GraphModule(module, before)), on_the_cpu(module)
    for _ in range(2):
        inputs = contents(chance)
        more = [inputs[position].clone() for position in positions]
        kept = [one.clone() for one in more]
        wanted = called(original, [one.clone() for one in inputs], [])
        got = called(rewritten, [one.clone() for one in inputs], more)
        assert got.pop() == wanted.pop()
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(more, kept, rtol=0, atol=0, equal_nan=True)
    seen["programs"] += 1
    seen["rewritten"] += any(one.applied for one in outcomes)
    seen["mirrored"] += bool(positions)
    seen["crossings"] += sum(moved_to(node) is not None for node in before.nodes)
    seen["crossings left"] += sum(moved_to(node) is not None for node in module.graph.nodes)
    seen.update(one.rewrite for one in outcomes if one.applied)
    assert all(device_of(node) is not None for node in mirrors.used(module.graph))


def test_random_programs_show_the_same_after_rewriting(cuda, monkeypatch):
    monkeypatch.setattr(constants, "place", lambda value, device: value.clone())
    seen: collections.Counter[str] = collections.Counter()
    for number in range(PROGRAMS):
        seed = f"{SEED} {number}"
        try:
            check(seed, seen)
        except Exception as error:
            raise AssertionError(f"program {seed!r}") from error
    print(dict(seen))
    assert seen["rewritten"] > 0.9 * PROGRAMS and seen["mirrored"] > 0.1 * PROGRAMS
    assert seen["crossings left"] < 0.5 * seen["crossings"]
    assert ALL - {"constants"} <= set(seen)
