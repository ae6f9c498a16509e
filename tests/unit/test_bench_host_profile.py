"""Which functions a call runs, as Python's profiler sees it."""

from __future__ import annotations

import pytest

from scripts.bench import host_cost_page, host_profile


def _inner(number: int) -> int:
    return sum(range(number))


def _call() -> int:
    return _inner(2000) + _inner(10)


def test_functions_of_a_call_are_counted_per_call_and_the_longest_come_first() -> None:
    waits = []
    found = host_profile.functions(lambda: [_call() for _ in range(5)], lambda: waits.append(_inner(9)), calls=5)
    times = {one["function"].split()[-1]: one["times"] for one in found}
    assert times["_inner"] == 2.0 and times["_call"] == 1.0
    [inner] = [one["function"] for one in found if one["function"].endswith("_inner")]
    assert inner.startswith("tests/unit/test_bench_host_profile.py:")
    assert [one["own"] for one in found] == sorted((one["own"] for one in found), reverse=True)
    assert len(waits) == host_profile.BURSTS and not any("<lambda>" in one["function"] for one in found)
    lines = host_cost_page._functions({"a row": {"functions": found}, "another": {}})
    assert "### a row" in lines and "### another" not in lines and any("_inner` | 2.0 |" in line for line in lines)
    assert host_cost_page._functions({"another": {}}) == []


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/opt/torch/lib/python3.12/site-packages/torch/_dynamo/eval_frame.py", "torch/_dynamo/eval_frame.py:7 f"),
        ("/home/somebody/src/pygraph_inductor/replay/player.py", "pygraph_inductor/replay/player.py:7 f"),
        ("/tmp/inductor/5c/c" + "5" * 25 + "a" * 26 + ".py", "generated code:7 f"),
        ("/somewhere/else.py", "else.py:7 f"),
        ("~", "f"),
    ],
)
def test_functions_are_named_from_their_package_on(file: str, shown: str) -> None:
    assert host_profile._name(file, 7, "f") == shown
