"""The launcher is compiled on a thread of its own, while Inductor compiles; whoever needs it waits for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import pygraph_inductor
from pygraph_inductor.replay import native


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads on which it was compiled, which takes a while; nothing is there at first."""
    threads: list[str] = []

    def compiled() -> str:
        threads.append(threading.current_thread().name)
        time.sleep(0.3)
        return "the launcher"

    pytest.importorskip("triton")
    monkeypatch.setattr(native, "_modules", [])
    monkeypatch.setattr(native, "_ahead", [])
    monkeypatch.setattr(native, "_compiled", compiled)
    return threads


def test_it_is_compiled_once_and_waited_for(builds: list[str]) -> None:
    started = time.perf_counter()
    native.begin()
    native.begin()
    assert time.perf_counter() - started < 0.3, "nobody waits yet"
    assert native.module() == "the launcher" and native.module() == "the launcher"
    assert builds == ["pygraph launcher"]
    native.begin()
    assert len(native._ahead) == 1


def test_whoever_needs_it_first_compiles_it(builds: list[str]) -> None:
    assert native.module() == "the launcher"
    native.begin()
    assert builds == [threading.current_thread().name] and not native._ahead


def test_failure_is_told_once(
    builds: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(native, "_compiled", fails)
    native.begin()
    assert native.module() is None and native.module() is None
    assert [record.getMessage().count("could not be built") for record in caplog.records] == [1]


def test_compiler_that_was_interrupted_is_asked_again(
    builds: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C reaches it and the program, which may go on, as an interactive one does."""

    def compiled() -> str:
        if threading.current_thread() is not threading.main_thread():
            raise subprocess.CalledProcessError(-signal.SIGINT, "cc")
        return "the launcher"

    monkeypatch.setattr(native, "_compiled", compiled)
    native.begin()
    native._ahead[0].join()
    assert native.module() == "the launcher" and not caplog.records


def test_program_that_ends_meanwhile_ends_after_its_compiler(tmp_path: Path) -> None:
    """Whose linker would complain else, after the end, of the folder that is gone."""
    pytest.importorskip("triton")
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nsleep 1\ntest -f "$1" && echo "its source is there" >&2\nexit 1\n')
    compiler.chmod(0o755)
    program = "import time; from pygraph_inductor.replay import native; native.begin(); time.sleep(0.3)"
    folders = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    environment = {**os.environ, **folders, "CC": str(compiler)}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, b"its source is there\n")


def test_where_no_thread_can_be_started_it_is_compiled_when_needed(
    builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    native.begin()
    assert not native._ahead and native.module() == "the launcher"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_process_that_was_forked_meanwhile_compiles_its_own(builds: list[str]) -> None:
    """The thread does not come along, and had the lock."""
    native.begin()
    while not builds:
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a process that hangs ends by that
        os._exit(0 if native.module() == "the launcher" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert native.module() == "the launcher"


@pytest.mark.parametrize(("options", "begun"), [({"mode": "reduce-overhead"}, True), ({}, False)])
def test_compilation_begins_it_where_graphs_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], begun: bool
) -> None:
    calls = []
    monkeypatch.setattr(native, "begin", lambda: calls.append("begin"))
    torch._dynamo.reset()
    with pygraph_inductor.config.patch(simulate=True):
        torch.compile(lambda x: x * 2, **options)(torch.randn(4))
    assert bool(calls) is begun
    torch._dynamo.reset()


def test_compilation_for_the_cpu_alone_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "begin", lambda: pytest.fail("nothing is recorded there"))
    torch._dynamo.reset()
    torch.compile(lambda x: x * 3, mode="reduce-overhead")(torch.randn(4))
    torch._dynamo.reset()
