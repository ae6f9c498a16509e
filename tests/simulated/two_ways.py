"""Compiled programs run twice: plainly, as stock PyTorch runs them, and from graphs of the simulated driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import pygraph_inductor
from tests.simulated.hand_written import contents

CALLS = 6


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, mode="reduce-overhead", **options)


def shown(value: Any) -> Any:
    """Everything about a value that two runs have to agree on."""
    if isinstance(value, torch.Tensor):
        return (
            value.dtype,
            tuple(value.size()),
            value.stride(),
            value.storage_offset(),
            value.requires_grad,
            contents(value.detach()).tolist(),
        )
    if isinstance(value, (tuple, list)):
        return [shown(one) for one in value]
    return value


def run(program: Callable[[], Callable[[int], Any]], simulate: bool, calls: int = CALLS) -> list[Any]:
    """What each call of the program's step shows. The program is set up anew, from the same seed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    seen = []
    with pygraph_inductor.config.patch(simulate=simulate):
        step = program()
        kept = []
        for number in range(calls):
            results = step(number)
            seen.append(shown(results))
            kept.append(results)
        # Once more, now that later calls have had their chance to overwrite them.
        seen.append([contents(t.detach()).tolist() for results in kept for t in results if isinstance(t, torch.Tensor)])
        seen.append(torch.get_rng_state().tolist())
    return seen


def check(program: Callable[[], Callable[[int], Any]], calls: int = CALLS, functions: int | None = 1) -> list[Any]:
    """The program shows the same both ways, and every compiled function was replayed. Returns the functions' facts."""
    want = run(program, simulate=False, calls=calls)
    earlier = len(pygraph_inductor.report().functions)
    got = run(program, simulate=True, calls=calls)
    for number, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a == b, f"call {number}" if number < calls else "what was kept, or the random state"
    facts = pygraph_inductor.report().functions[earlier:]
    if functions is not None:
        assert len(facts) == functions, [one.name for one in facts]
        assert all(one.verdict == "replayed" for one in facts), [(one.name, one.verdict, one.reasons) for one in facts]
    return facts
