"""The table of seams against the installed torch, and what happens with a torch that does not match it."""

from __future__ import annotations

import dataclasses
import importlib
import logging

import pytest
import torch
from fresh_interpreter import succeeds
from seams_running import running

import pygraph_inductor
from pygraph_inductor.seams import declines, install, table


@pytest.fixture
def uninstalled(monkeypatch):
    """Begin and end with stock functions in place and nothing noted; installed again afterwards."""
    pygraph_inductor.disable()
    declines.clear()
    yield
    monkeypatch.undo()  # with a table or a version that the test made up, nothing would be installed again
    pygraph_inductor.disable()
    declines.clear()
    assert pygraph_inductor.enable()


def stock_functions() -> list[object]:
    return [running(row) for row in table.ROWS]


def test_installed_torch_matches_every_row():
    for row in table.ROWS:
        importlib.import_module(row.module)
    assert table.minor_of(torch.__version__) in table.MINORS
    pygraph_inductor.disable()
    try:
        assert [str(difference) for difference in table.differences(torch.__version__)] == []
    finally:
        pygraph_inductor.enable()


def test_installed_seams_still_show_the_stock_signatures():
    import torch._inductor.compile_fx

    assert install.is_applied()
    assert list(table.differences(torch.__version__)) == []


def test_stock_trees_are_not_imported_to_be_looked_at():
    program = """
import sys
import torch
import pygraph_inductor
compiled = torch.compile(lambda x: x.sin().cos(), mode="reduce-overhead")
for _ in range(4):
    compiled(torch.randn(8, requires_grad=True)).sum().backward()
assert len(pygraph_inductor.report().functions) == 2 and "torch._inductor.cudagraph_trees" not in sys.modules
assert not torch._C._is_key_in_tls("tree_manager_containers")
"""
    succeeds("-c", program, PYGRAPH_SIMULATE="1")


@pytest.mark.parametrize("row", table.ROWS, ids=lambda row: row.full_name)
def test_row_names_its_parameters_for_every_version(row):
    assert tuple(row.parameters) == table.MINORS


@pytest.mark.parametrize("row", [row for row in table.ROWS if row.replacement], ids=lambda row: row.full_name)
def test_replacement_lies_in_the_file_named_after_what_it_replaces(row):
    module, _, function = row.replacement.partition(":")
    assert function == "wrap"
    last = row.name.rpartition(".")[2]
    assert module.rpartition(".")[2] in (last, last.removeprefix("maybe_handle_"))


@pytest.mark.parametrize(
    "version, minor",
    [("2.14.1", "2.14"), ("2.14.1+cu130", "2.14"), ("2.14.0a0+git1234", "2.14"), ("2.15.0.dev20260101+cu130", "2.15")],
)
def test_local_and_nightly_versions_count_by_minor_version(version, minor):
    assert table.minor_of(version) == minor


def test_parameters_are_written_with_their_kinds():
    def function(a, /, b, *, c=1, **d): ...

    def other(a, *b, c): ...

    assert table.parameters_of(function) == "a, b, *, c, **d"
    assert table.parameters_of(other) == "a, *b, c"


def change_row(monkeypatch, ending: str, **changes: object) -> table.Row:
    [row] = [row for row in table.ROWS if row.full_name.endswith("." + ending)]
    changed = dataclasses.replace(row, **changes)
    rows = tuple(changed if other is row else other for other in table.ROWS)
    monkeypatch.setattr(table, "ROWS", rows)
    monkeypatch.setattr(install, "ROWS", rows)
    return changed


def test_changed_signature_leaves_torch_untouched_with_one_warning(monkeypatch, caplog, uninstalled):
    before = stock_functions()
    row = change_row(monkeypatch, "can_reuse", parameters=dict.fromkeys(table.MINORS, "self, buffer"))
    assert not pygraph_inductor.enable()
    assert not pygraph_inductor.enable()
    assert not pygraph_inductor.enabled()
    assert stock_functions() == before
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert row.full_name in record.getMessage() and torch.__version__ in record.getMessage()
    assert pygraph_inductor.report().declined == [record.getMessage().rstrip(".")]


def test_name_that_is_gone_leaves_torch_untouched(monkeypatch, caplog, uninstalled):
    change_row(monkeypatch, "cudagraphify", name="cudagraphify_renamed")
    assert not pygraph_inductor.enable()
    assert "cudagraphify_renamed is gone" in caplog.text


@pytest.mark.parametrize("version", ["2.10.0", "2.16.0", "3.0.0+cu140"])
def test_unknown_version_leaves_torch_untouched_with_one_warning(monkeypatch, caplog, uninstalled, version):
    before = stock_functions()
    monkeypatch.setattr(torch, "__version__", version)
    assert not pygraph_inductor.enable()
    assert not pygraph_inductor.enabled()
    assert stock_functions() == before
    [record] = caplog.records
    assert version in record.getMessage()


def test_force_installs_on_an_unknown_version(monkeypatch, uninstalled):
    monkeypatch.setattr(torch, "__version__", "2.16.0")
    with pygraph_inductor.config.patch(force=True):
        assert pygraph_inductor.enable()
    assert pygraph_inductor.enabled()


def test_force_installs_what_is_there_and_says_what_is_not(monkeypatch, caplog, uninstalled):
    row, stock = table.ROWS[0], running(table.ROWS[0])
    change_row(monkeypatch, "cudagraphify", name="cudagraphify_renamed")
    with pygraph_inductor.config.patch(force=True):
        assert pygraph_inductor.enable()
    assert running(row) is not stock
    assert "cudagraphify_renamed is gone" in caplog.text
