"""The ways to refresh a table, with the driver's functions replaced: what is told to whom, and in which order."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.bench import table_refresh
from scripts.bench.table_refresh import Calls, Nodes, Ring

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
POINTER = ctypes.c_void_p


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return table_refresh.compiled(tmp_path_factory.mktemp("refresh"))


class Driver:
    """Notes calls. `fails`: the one that answers with an error."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.copied: list[list[int]] = []
        self._keep: list[Any] = []
        self._fails = fails

    def function(self, name: str, *types: Any) -> int:
        def called(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            if name == "copy":
                self.copied.append(list((ctypes.c_uint64 * (arguments[2] // 8)).from_address(arguments[1])))
            return 7 if name == self._fails else 0

        made = ctypes.CFUNCTYPE(ctypes.c_int, *types)(called)
        self._keep.append(made)
        address = ctypes.cast(made, POINTER).value
        assert address
        return address

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


def addresses(*values: int) -> Any:
    return (ctypes.c_uint64 * len(values))(*values)


def ring(functions: ctypes.CDLL, driver: Driver, memory: list[Any]) -> Ring:
    calls = Calls(
        wait=driver.function("wait", POINTER),
        copy=driver.function("copy", ctypes.c_uint64, POINTER, ctypes.c_size_t, POINTER),
        record=driver.function("record", POINTER, POINTER),
    )
    places = [(100 + number, ctypes.addressof(one)) for number, one in enumerate(memory)]
    return Ring(functions, calls, places, table=1 << 40, stream=55)


def test_place_in_the_ring_is_written_after_its_event_and_before_its_copy(functions: ctypes.CDLL) -> None:
    driver = Driver()
    memory = [addresses(0, 0) for _ in range(3)]
    tell = ring(functions, driver, memory)
    for number in range(7):
        tell(addresses(number, number + 1000))
    assert driver.names() == ["wait", "copy", "record"] * 7
    for number in range(7):
        wait, copy, record = driver.calls[3 * number : 3 * number + 3]
        event = 100 + number % 3
        assert wait[1] == record[1] == event and record[2] == copy[4] == 55
        assert copy[1:4] == (1 << 40, ctypes.addressof(memory[number % 3]), 16)
    assert driver.copied == [[number, number + 1000] for number in range(7)]


def test_memory_stays_as_it_is_while_its_event_has_not_happened(functions: ctypes.CDLL) -> None:
    """Looked at where the host would wait: the copy of the call before may still read."""
    driver = Driver()
    memory = [addresses(0)]
    seen = []
    note = driver.function

    def function(name: str, *types: Any) -> int:
        if name != "wait":
            return note(name, *types)
        made = ctypes.CFUNCTYPE(ctypes.c_int, *types)(lambda event: seen.append(memory[0][0]) or 0)
        driver._keep.append(made)
        address = ctypes.cast(made, POINTER).value
        assert address
        return address

    driver.function = function  # type: ignore[method-assign]
    tell = ring(functions, driver, memory)
    for number in (5, 6, 7):
        tell(addresses(number))
    assert seen == [0, 5, 6] and memory[0][0] == 7


@pytest.mark.parametrize(("fails", "made"), [("wait", 1), ("copy", 2), ("record", 3)])
def test_error_of_the_driver_ends_it(functions: ctypes.CDLL, fails: str, made: int) -> None:
    driver = Driver(fails)
    memory = [addresses(3)]
    with pytest.raises(RuntimeError, match="answered 7"):
        ring(functions, driver, memory)(addresses(9))
    assert len(driver.calls) == made
    assert memory[0][0] == (3 if fails == "wait" else 9), "nothing is written before the event has happened"


def nodes(functions: ctypes.CDLL, driver: Driver, words: Any) -> Callable[[Any], None]:
    places = [ctypes.addressof(words) + 8 * number for number in (2, 0, 1)]
    setter = driver.function("set", POINTER, POINTER, POINTER)
    return Nodes(functions, setter, 77, [(1, 11), (2, 12)], places)


def test_every_word_is_written_and_every_node_set(functions: ctypes.CDLL) -> None:
    driver, words = Driver(), addresses(0, 0, 0)
    nodes(functions, driver, words)(addresses(20, 21, 22))
    assert list(words) == [21, 22, 20]
    assert driver.calls == [("set", 77, 1, 11), ("set", 77, 2, 12)]


def test_node_that_is_refused_is_an_error(functions: ctypes.CDLL) -> None:
    driver, words = Driver("set"), addresses(0, 0, 0)
    with pytest.raises(RuntimeError, match="answered 7"):
        nodes(functions, driver, words)(addresses(1, 2, 3))
    assert len(driver.calls) == 1


def test_times_are_of_telling_and_of_the_whole() -> None:
    told: list[int] = []
    order: list[str] = []
    host, latency = table_refresh.timed(
        lambda table: (told.append(table), order.append("tell"))[0],
        lambda: order.append("replay"),
        lambda: order.append("wait"),
        [1, 2],
        calls=4,
    )
    assert 0 <= host <= latency
    assert told == [1, 2] * 7 and order == ["wait", "tell", "replay", "wait"] * 14


def test_page_says_where_the_node_wins() -> None:
    def row(length: int, node: float) -> dict[str, Any]:
        costs = {"node": node, "ring": 5.0, "patch": 9.0}
        return {"length": length, "still": 1.0, "host": costs, "latency": costs}

    assert "never the fastest" in "\n".join(table_refresh.section([row(1, 8.0)]))
    assert "for 2, 3 addresses" in "\n".join(table_refresh.section([row(1, 8.0), row(2, 2.0), row(3, 2.0)]))


def test_compiler_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="needs a C compiler"):
        table_refresh.compiled(tmp_path)
