"""Calls of a function of which it is not decided yet whether its graph pays: each is compared with the plain call."""

from __future__ import annotations

import threading
from typing import Any

import torch

from tests.simulated.hand_written import cloned, contents, same_bits
from tests.simulated.timed import Clock, Timed


def body(namespace: dict[str, Any], a: Any, b: Any) -> Any:
    """Writes to `b`, draws random numbers, returns a fresh tensor and `b` itself."""
    out = namespace["empty_strided_cpu"]((6,), (1,), torch.float32)
    namespace["cpp_fused_0"](out, a, b)
    namespace["cpp_fused_0"](b, out)
    noise = namespace["empty_strided_cpu"]((6,), (1,), torch.float32)
    namespace["cpp_fused_0"](noise, torch.rand(6), out)
    return (out, b, noise)


WRITES = {"mutated_inputs": frozenset({1})}


def inputs() -> list[Any]:
    return [torch.randn(6), torch.randn(6)]


def checked_call(function: Timed, kept: list[Any] | None = None) -> str:
    """One call with new inputs, compared with the plain call in every visible respect; what answered it."""
    values = inputs()
    copies = cloned(values)
    random = torch.get_rng_state()
    want = super(Timed, function).run(list(copies))
    random_after = torch.get_rng_state()
    torch.set_rng_state(random)
    before = len(function.clock.executions)
    got = function(*values)
    assert torch.equal(torch.get_rng_state(), random_after)
    assert all(map(same_bits, got, want)) and all(map(same_bits, values, copies))
    assert got[1] is values[1]
    if kept is not None:
        kept.append((got, [contents(value) for value in got]))
    executions = function.clock.executions[before:]
    return executions[0] if len(executions) == 1 else "recording"


def calls(function: Timed, count: int) -> list[str]:
    return [checked_call(function) for _ in range(count)]


def until_decided(function: Timed, most: int = 100) -> list[str]:
    made = []
    while not (function.log.decisions and function.decision.chosen):
        made.append(checked_call(function))
        assert len(made) < most, "no decision"
    return made


def front_holds(function: Timed) -> bool:
    return any(function._entry.holds(one.launcher) for one in function.recordings)


def called_by_threads(clock: Clock, calls: int) -> Timed:
    """A function that four threads called so often at once; each call had its own answer."""

    def pure(namespace: dict[str, Any], a: Any, b: Any) -> Any:
        out = namespace["empty_strided_cpu"]((6,), (1,), torch.float32)
        namespace["cpp_fused_0"](out, a, b)
        return (out,)

    function = Timed(pure, clock)
    wrong: list[str] = []
    # Made before: threads that draw random numbers during a verification would look like the function's own.
    prepared = [[inputs() for _ in range(calls)] for _ in range(4)]

    def work(mine: list[Any]) -> None:
        for values in mine:
            [want] = super(Timed, function).run(list(values))
            [got] = function(*values)
            if not same_bits(got, want):
                wrong.append("wrong")

    threads = [threading.Thread(target=work, args=(mine,)) for mine in prepared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    return function


def of_size(namespace: dict[str, Any], size: int, a: Any) -> Any:
    out = namespace["empty_strided_cpu"]((size,), (1,), torch.float32)
    namespace["cpp_fused_0"](out, a)
    return (out,)


def sized_call(function: Timed, size: int) -> str:
    a = torch.randn(size)
    [want] = super(Timed, function).run([size, a])
    before = len(function.clock.executions)
    [got] = function(size, a)
    assert same_bits(got, want)
    executions = function.clock.executions[before:]
    return executions[0] if len(executions) == 1 else "recording"


def stored(tmp_path: Any, graph: str = "g") -> dict[str, Any]:
    return {"graph_hash": graph, "decisions_folder": str(tmp_path / "decisions"), **WRITES}
