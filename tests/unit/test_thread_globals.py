"""Globals that mean something else to one thread: whatever the order of coming and going, the original is back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pygraph_inductor.driver.thread_globals import meaning, original_of


def original(x: int) -> str:
    return f"original {x}"


@pytest.fixture
def namespace() -> dict[str, Any]:
    return {"f": original, "g": original}


def named(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda inner: lambda x: f"{name}({inner(x)})"


class Other:
    """Another thread, the same one for everything it is told to do."""

    def __init__(self) -> None:
        self.meanings = contextlib.ExitStack()
        self._executor = ThreadPoolExecutor(max_workers=1)

    def do(self, work: Callable[[], Any]) -> Any:
        return self._executor.submit(work).result()

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *_: Any) -> None:
        self.do(self.meanings.close)
        self._executor.shutdown()


def test_meaning_is_of_one_thread(namespace):
    with Other() as other, meaning(namespace, {"f": named("mine")}):
        assert namespace["f"](1) == "mine(original 1)" and namespace["g"](1) == "original 1"
        assert other.do(lambda: namespace["f"](2)) == "original 2"
    assert namespace["f"] is original


def test_meanings_nest(namespace):
    with meaning(namespace, {"f": named("outer")}):
        with meaning(namespace, {"f": named("inner")}):
            assert namespace["f"](1) == "inner(outer(original 1))"
        assert namespace["f"](1) == "outer(original 1)"
    assert namespace["f"] is original


@pytest.mark.parametrize("first_out", ["mine", "theirs"])
def test_threads_that_come_and_go_in_any_order(namespace, first_out):
    with Other() as other:
        mine = contextlib.ExitStack()
        mine.enter_context(meaning(namespace, {"f": named("mine")}))
        other.do(lambda: other.meanings.enter_context(meaning(namespace, {"f": named("theirs")})))
        assert namespace["f"](1) == "mine(original 1)" and other.do(lambda: namespace["f"](1)) == "theirs(original 1)"
        if first_out == "mine":
            mine.close()
            assert namespace["f"](1) == "original 1" and other.do(lambda: namespace["f"](1)) == "theirs(original 1)"
            other.do(other.meanings.close)
        else:
            other.do(other.meanings.close)
            assert namespace["f"](1) == "mine(original 1)" and other.do(lambda: namespace["f"](1)) == "original 1"
            mine.close()
    assert namespace["f"] is original


def test_original_is_seen_through(namespace):
    with meaning(namespace, {"f": named("mine")}):
        assert namespace["f"] is not original
        assert original_of(namespace["f"]) is original and original_of(3) == 3


def test_exceptions_put_the_original_back(namespace):
    with pytest.raises(KeyboardInterrupt), meaning(namespace, {"f": named("mine"), "g": named("mine")}):
        raise KeyboardInterrupt
    assert namespace == {"f": original, "g": original}
