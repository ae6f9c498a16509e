"""Decisions on disk: believed only word for word, never fatal, and nothing is lost when two processes write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from pygraph_inductor.selection import json_file
from pygraph_inductor.selection import store as store_module
from pygraph_inductor.selection.store import Key, Store, Stored

CHOICES = frozenset({"graph", "plain"})


@pytest.fixture(autouse=True)
def unwarned(monkeypatch):
    monkeypatch.setattr(store_module, "_warned", set())


def stored(graph="g", **changes):
    return replace(Stored(Key({"graph": graph, "device": "d"}), "forward 0/0", "plain", "too slow", 12.5), **changes)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "a" / "b", CHOICES)


def path_of(store, entry):
    return store._path(entry.key.digest)


def test_what_is_written_is_read(store):
    assert store.read(stored().key) is None and list(store.all()) == []
    assert store.write(stored())
    assert store.read(stored().key) == stored()
    assert store.read(stored("other").key) is None
    assert dict(store.all()) == {stored().key.digest: stored()}


def test_key_does_not_depend_on_the_order_of_its_fields():
    assert Key({"a": "1", "b": "2"}).digest == Key({"b": "2", "a": "1"}).digest
    assert Key({"a": "1", "b": "2"}).digest != Key({"a": "2", "b": "1"}).digest


BROKEN = {
    "empty": "",
    "cut off": '{"format": 1, "key": {"gra',
    "not an object": "[1]",
    "null": "null",
    "nesting": "[" * 100_000,
    "binary": "\x00\x01",
    "other format": {"format": 2},
    "unknown choice": {"chosen": "both"},
    "choice is a list": {"chosen": ["plain"]},
    "pinned is text": {"pinned": "yes"},
    "negative cost": {"cost_ns": -1},
    "endless cost": {"cost_ns": float("inf")},
    "no number": {"cost_ns": float("nan")},
    "no float holds it": {"cost_ns": 10**400},
    "cost is text": {"cost_ns": "1"},
    "cost is a truth": {"cost_ns": True},
    "negative gain": {"gain_ns": -1.0},
    "endless gain": {"gain_ns": float("inf")},
    "gain that no float holds": {"gain_ns": 10**400},
    "gain is text": {"gain_ns": "1"},
    "gain is a truth": {"gain_ns": True},
    "key is a list": {"key": []},
    "key holds numbers": {"key": {"graph": 1}},
    "reason is a number": {"reason": 3},
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_broken_file_is_ignored_with_one_warning_and_replaced(store, caplog, content):
    store.write(stored())
    text = content if isinstance(content, str) else json.dumps({**stored().to_dict(), **content})
    path_of(store, stored()).write_text(text)
    for _ in range(2):
        assert store.read(stored().key) is None
    assert list(store.all()) == []
    assert len(caplog.records) == 1
    assert store.write(stored()) and store.read(stored().key) == stored()


def test_gain_is_kept_and_need_not_be_known(store):
    store.write(stored(gain_ns=7.5))
    assert store.read(stored().key) == stored(gain_ns=7.5)
    content = stored().to_dict()
    del content["gain_ns"]
    path_of(store, stored()).write_text(json.dumps(content))
    assert store.read(stored().key) == stored()


def test_file_that_is_not_text_is_ignored(store, caplog):
    store.write(stored())
    path_of(store, stored()).write_bytes(b"\xff\xfe\x00\x80")
    assert store.read(stored().key) is None and len(caplog.records) == 1


def test_file_for_another_key_is_not_believed(store, caplog):
    store.write(stored("other"))
    path_of(store, stored("other")).rename(path_of(store, stored()))
    assert store.read(stored().key) is None
    assert "another key" in caplog.text


def test_folder_where_a_file_should_be_is_ignored(store, caplog):
    path_of(store, stored()).mkdir(parents=True)
    assert store.read(stored().key) is None
    assert not store.write(stored())
    assert not store.forget(stored().key.digest)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("what", ["mkstemp", "FileLock"])
def test_read_only_folder_is_read_and_not_written(store, caplog, monkeypatch, what):
    """As where the file system says no; permission bits say nothing to root."""
    store.write(stored())

    def refused(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(json_file.tempfile if what == "mkstemp" else store_module.filelock, what, refused)
    assert not store.write(stored("new")) and store.read(stored().key) == stored()
    assert len(caplog.records) == 1


def test_folder_that_cannot_be_made_is_no_error(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "folder", CHOICES)
    assert not store.write(stored()) and store.read(stored().key) is None and list(store.all()) == []
    assert not store.forget("x")
    assert len(caplog.records) == 1


def test_lock_that_somebody_keeps_is_not_waited_for_long(store, caplog, monkeypatch):
    monkeypatch.setattr(store_module, "_PATIENCE", 0.1)
    store.write(stored())
    holder = f"""
        import filelock, sys
        with filelock.FileLock({str(store._folder / ".lock")!r}):
            print("held", flush=True)
            sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(holder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline().strip() == b"held"
        assert not store.write(stored(chosen="graph"))
        assert store.read(stored().key) == stored(), "reading needs no lock"
        process.stdin.close()
    assert "cannot be written" in caplog.text
    assert store.write(stored(chosen="graph"))


def test_pin_is_kept_against_what_is_measured(store):
    pinned = stored(chosen="graph", pinned=True)
    assert store.write(pinned) and not store.write(stored())
    assert store.read(stored().key) == pinned
    assert store.write(stored(chosen="plain", pinned=True)), "another pin replaces it"
    assert store.forget(stored().key.digest) and not store.forget(stored().key.digest)
    assert store.read(stored().key) is None


def test_interrupted_write_leaves_the_old_decision(store, monkeypatch):
    store.write(stored())
    monkeypatch.setattr(json_file.os, "replace", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.write(stored(chosen="graph"))
    assert store.read(stored().key) == stored()
    assert [path.suffix for path in store._folder.iterdir() if path.name != ".lock"] == [".json"]


WRITER = """
    import sys
    from pathlib import Path
    from pygraph_inductor.selection.store import Key, Store, Stored
    folder, name = sys.argv[1:]
    store = Store(Path(folder), frozenset({"graph", "plain"}))
    sys.stdin.readline()
    for number in range(60):
        key = Key({"graph": f"{name if number % 2 else 'shared'} {number}"})
        assert store.write(Stored(key, name, "plain", "measured"))
        pinned = Stored(Key({"graph": f"pinned {name} {number}"}), name, "graph", "pinned", pinned=True)
        assert store.write(pinned)
"""


def test_two_processes_that_write_at_once_lose_nothing(tmp_path):
    root = Path(__file__).resolve().parents[2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path), name],
            stdin=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
        )
        for name in ("one", "two")
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.wait(120) == 0
        process.stdin.close()
    found = {stored.key.fields["graph"] for _, stored in Store(tmp_path, CHOICES).all()}
    wanted = {f"{name} {n}" for n in range(60) for name in (("one", "two") if n % 2 else ("shared",))}
    wanted |= {f"pinned {name} {n}" for n in range(60) for name in ("one", "two")}
    assert found == wanted
    assert not list(tmp_path.glob("*.new"))


def test_users_list_forget_and_pin(tmp_path, monkeypatch):
    import pygraph_inductor

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    decisions = pygraph_inductor.decisions
    assert decisions.list() == []
    store = Store(decisions.folder(), CHOICES)
    for graph in ("one", "two"):
        store.write(stored(graph))
    entries = decisions.list()
    assert {entry.key["graph"] for entry in entries} == {"one", "two"}
    assert {(entry.chosen, entry.pinned, entry.name) for entry in entries} == {("plain", False, "forward 0/0")}
    digest = stored("one").key.digest
    decisions.pin(digest, "graph")
    [pinned] = [entry for entry in decisions.list() if entry.pinned]
    assert (pinned.digest, pinned.chosen) == (digest, "graph")
    with pytest.raises(ValueError, match="neither"):
        decisions.pin(digest, "neither")
    with pytest.raises(KeyError):
        decisions.pin("unknown", "plain")
    assert decisions.forget(digest) == 1 and decisions.forget(digest) == 0
    assert decisions.forget() == 1 and decisions.list() == []


def test_nothing_is_kept_where_caches_are_off(monkeypatch):
    from torch._inductor import config

    import pygraph_inductor

    with config.patch(force_disable_caches=True):
        assert pygraph_inductor.decisions.folder() is None and pygraph_inductor.decisions.list() == []
        assert pygraph_inductor.decisions.forget() == 0


def test_graph_hash_names_code_and_not_where_it_lies():
    from pygraph_inductor.seams.identity import graph_hash

    code = "# kernel path: {}\ndef call(args):\n    # File: {}\n    return args\n"
    one = graph_hash(code.format("/tmp/a", "x.py:1"), "call", "forward", [0])
    assert one == graph_hash(code.format("/tmp/b", "x.py:2"), "call", "forward", [0])
    others = [
        graph_hash(code + "x = 1\n", "call", "forward", [0]),
        graph_hash(code, "partition_0", "forward", [0]),
        graph_hash(code, "call", "backward", [0]),
        graph_hash(code, "call", "forward", []),
    ]
    assert len({one, *others}) == 5
    assert graph_hash(None, "call", "forward", []) is None
