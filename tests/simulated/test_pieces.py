"""Random programs in random pieces, in the order with the fewest of them: the same numbers as in one piece.

There is no device here to cut a graph at, so the rule is replaced: it leaves nodes outside at random.
"""

from __future__ import annotations

import collections
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.scheduler import Scheduler

import pygraph_inductor
from pygraph_inductor.codegen import fewer_pieces, registration
from pygraph_inductor.partition import order
from tests.simulated import two_ways

PROGRAMS = int(os.environ.get("RANDOM_PIECES", "8"))
SEED = int(os.environ.get("RANDOM_SEED", "20240607"))
INPUTS = 4
# With torch 2.11, fusion loses that an input is read before it is written.
LOST = "11 16"


class Rule:
    """Takes the place of Inductor's rule in code of ours, and counts what became of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seed = ""
        self.seen: collections.Counter[str] = collections.Counter()
        stock = Scheduler.should_partition

        def should_partition(scheduler: Any, node: Any) -> str | None:
            if not registration.registered():
                return stock(scheduler, node)
            return "at random" if random.Random(f"{self.seed} {node.get_name()}").random() < 0.35 else None

        def better(scheduler: Any) -> list[Any] | None:
            outside = [scheduler.should_partition(node) is not None for node in scheduler.nodes]
            found = stock_better(scheduler)
            if found is not None:
                left = [scheduler.should_partition(node) is not None for node in found]
                assert order.pieces(left) < order.pieces(outside)
                assert {*found} == {*scheduler.nodes} and len(found) == len(scheduler.nodes)
                self.seen["orders"] += 1
                self.seen["saved"] += order.pieces(outside) - order.pieces(left)
            return found

        def without_inputs(signature: Any) -> Any:
            result = stock_without(signature)
            self.seen["dropped"] += len(signature.output_nodes) - len(result.output_nodes)
            self.seen["pieces"] += not signature.skip_cudagraph
            return result

        stock_better, stock_without = fewer_pieces._better_order, fewer_pieces._without_inputs
        monkeypatch.setattr(Scheduler, "should_partition", should_partition)
        # Else there is nothing left to do, and random numbers of the CPU are drawn in another order (torch 2.11).
        for name in ("maybe_reorder_for_minimizing_partition", "reorder_for_partition_with_simple_dependency"):
            monkeypatch.setattr(Scheduler, name, lambda self, nodes: nodes)
        monkeypatch.setattr(fewer_pieces, "_better_order", better)
        monkeypatch.setattr(fewer_pieces, "_without_inputs", without_inputs)


def drawn(chance: random.Random) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function of some matrices; most of what it does is one node, however the compiler fuses."""
    statements = [(chance.choice(_OPERATIONS), [chance.random() for _ in range(3)]) for _ in range(22)]
    returned = [chance.random() for _ in range(4)]

    def function(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)

        def pick(number: float, among: int | None = None) -> torch.Tensor:
            return values[int(number * (among or len(values)))]

        for name, numbers in statements:
            one, other = pick(numbers[0]), pick(numbers[1])
            if name == "product":
                values.append(one @ other / 8)
            elif name == "sort":
                values.append(one.sort(0)[0])
            elif name == "indices":
                values.append(other.gather(0, one.topk(8, 0)[1]))
            elif name == "sum":
                values.append(one.sin() + other.cumsum(1))
            elif name == "view":
                values.append(one.t())
            elif name == "written":
                pick(numbers[0], INPUTS).add_(other.cos())
            elif name == "part written":
                pick(numbers[0], INPUTS)[2:4].copy_(other[:2])
            elif name == "random":
                values.append(torch.rand(8, 8, dtype=torch.float64) + one)
            elif name == "shuffled":
                values.append(one.gather(0, torch.randperm(8)[:, None].expand(8, 8)))  # torch 2.11 fails on one[…]
        return tuple(pick(number) for number in returned)

    return function


_OPERATIONS = [
    *("product", "product", "product", "sort", "sort", "indices", "sum", "sum"),
    *("view", "written", "part written", "random", "shuffled"),
]


def steps(function: Callable[..., Any]) -> Callable[[], Callable[[int], Any]]:
    def prepare() -> Callable[[int], Any]:
        call = two_ways.compiled(function, dynamic=False)

        def step(number: int) -> list[Any]:
            inputs = [torch.randn(8, 8, dtype=torch.float64) for _ in range(INPUTS)]
            with torch.no_grad():
                outputs = call(*inputs)
            same = [(a is b, a.data_ptr() == b.data_ptr()) for a in outputs for b in (*outputs, *inputs)]
            return [*outputs, *inputs, same, [one._version for one in inputs]]

        return step

    return prepare


def test_random_pieces_give_what_one_piece_gives(monkeypatch):
    rule = Rule(monkeypatch)
    ordered = pygraph_inductor.config.patch(transform_order=True)
    with ordered, inductor_config.patch(fx_graph_cache=False, fallback_random=True):
        for seed in [LOST, *(f"{SEED} {number}" for number in range(PROGRAMS))]:
            rule.seed = seed
            two_ways.check(steps(drawn(random.Random(rule.seed))), calls=4, functions=None)
            rule.seen["programs"] += 1
    print(dict(rule.seen))
    assert rule.seen["pieces"] > 2 * PROGRAMS and rule.seen["dropped"] > PROGRAMS
    assert rule.seen["orders"] >= PROGRAMS // 2 and rule.seen["saved"] >= PROGRAMS // 2


def put_together(chance: random.Random) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function that concatenates, and concatenates that again: parts are written in place, where a cut may be."""
    statements = [(chance.choice(_PARTS), [chance.random() for _ in range(3)]) for _ in range(10)]
    returned = [chance.random() for _ in range(3)]

    def function(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)

        def pick(number: float) -> torch.Tensor:
            return values[int(number * len(values))]

        for name, numbers in statements:
            one, other, third = map(pick, numbers)
            if name == "product":
                values.append(one @ other / 8)
            elif name == "halves":
                values.append(torch.cat([one[4:].sin(), other[:4]]))
            elif name == "products":
                values.append(torch.cat([one[:4] @ other / 8, third[4:] @ other / 8]))
            elif name == "nested":
                inner = torch.cat([one[:2] @ other / 8, third[:2].cos()])
                values.append(torch.cat([inner, other.sort(0)[0][:4]]))
            else:
                values.append(one.sort(0)[0] + other)
        return tuple(pick(number) for number in returned)

    return function


_PARTS = ["product", "halves", "products", "nested", "sort"]


def test_what_is_put_together_in_place_is_whole_in_random_pieces(monkeypatch):
    rule = Rule(monkeypatch)
    with inductor_config.patch(fx_graph_cache=False):
        for number in range(PROGRAMS):
            rule.seed = f"{SEED} together {number}"
            two_ways.check(steps(put_together(random.Random(rule.seed))), calls=4, functions=None)
    assert rule.seen["pieces"] > PROGRAMS
