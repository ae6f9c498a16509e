"""The callable in front of a function's launchers, which holds eight of them."""

from __future__ import annotations

import array
import gc
import weakref
from typing import Any

import pytest

from pygraph_inductor.replay import native

WORDS = 23  # a launcher's program begins with so many; zeros mean nothing of anything
KEPT = 8


@pytest.fixture
def compiled() -> Any:
    found = native.module()
    if found is None:
        pytest.skip("no C compiler")
    return found


def launcher(compiled: Any, *objects: Any) -> Any:
    return compiled.Launcher(bytes(8 * WORDS), objects, array.array("Q"))


def step(inputs: list[Any]) -> str:
    return "slow"


def test_the_oldest_launcher_is_dropped(compiled: Any) -> None:
    front = compiled.Front(step)
    launchers = [launcher(compiled) for _ in range(KEPT + 3)]
    for one in launchers:
        front.add(one)
    assert [front.holds(one) for one in launchers] == [False] * 3 + [True] * KEPT
    front.remove(launchers[-1])
    assert not front.holds(launchers[-1])


class AddsAnother:
    """Garbage that calls back: as a graph that is destroyed, which lets other threads run."""

    def __init__(self, front: Any, another: Any) -> None:
        self.front = front
        self.another = another

    def __del__(self) -> None:
        self.front.add(self.another)


def test_what_a_dropped_launcher_runs_may_add_another(compiled: Any) -> None:
    front = compiled.Front(step)
    another, new = launcher(compiled), launcher(compiled)
    front.add(launcher(compiled, AddsAnother(front, another)))
    others = [launcher(compiled) for _ in range(KEPT - 1)]
    for one in others:
        front.add(one)
    front.add(new)
    # The one whose end added another is gone, and the oldest of the others with it.
    assert [front.holds(one) for one in (another, new, *others)] == [True, True, False, *[True] * (KEPT - 2)]
    alive = [weakref.ref(front)]
    del front
    gc.collect()
    assert alive[0]() is None


def test_a_program_that_does_not_read_to_its_end_is_refused(compiled: Any) -> None:
    for words in (0, WORDS - 1, WORDS + 1):
        with pytest.raises(ValueError, match="does not read to its end"):
            compiled.Launcher(bytes(8 * words), (), array.array("Q"))
