"""What the check finds: nothing on the installed torch, and every disagreement that is made on purpose."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from scripts.patching import check, refresh, series, signatures, sources, target
from scripts.patching.check import Result, checked
from scripts.patching.definitions import table
from scripts.patching.trouble import Trouble
from tests.patches.small import SMALL_FILES

OUTPUT_CODE = "torch/_inductor/output_code.py"


def problems(pristine: Path, patches: Path = series.PATCHES) -> dict[str, list[str]]:
    version = target.find(str(pristine)).version
    found = checked(Result(version), pristine, patches).problems
    return {name: lines for name, lines in found.items() if lines}


@pytest.fixture
def copy(installed_files, tmp_path) -> Path:
    """The installed torch's files, to be changed; and `patches`, the checked-in ones, beside them."""
    shutil.copytree(installed_files, tmp_path / "copy")
    shutil.copytree(series.PATCHES, tmp_path / "patches")
    return tmp_path / "copy"


def test_installed_torch_passes(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["check_patches.py"])
    assert check.main() == 0
    assert "passed" in capsys.readouterr().out


def test_patched_target_is_checked_in_a_pristine_copy(copy, monkeypatch, capsys):
    from scripts.patching import apply

    list(apply.brought_to(series.State.PATCHED, target.find(str(copy))))
    before = (copy / OUTPUT_CODE).read_bytes()
    monkeypatch.setattr("sys.argv", ["check_patches.py", str(copy)])
    assert check.main() == 0
    assert (copy / OUTPUT_CODE).read_bytes() == before


def test_row_that_gets_a_replacement_needs_new_patches(copy, monkeypatch):
    row = next(row for row in table.ROWS if row.replacement is None and "." not in row.name)
    changed = dataclasses.replace(row, replacement="pygraph_inductor.seams.another:wrap")
    monkeypatch.setattr(table, "ROWS", (*table.ROWS, changed))
    assert len(check.recorded_problems()) == len(table.VERSIONS)
    found = problems(copy)
    assert {"series", "apply and revert"} == set(found)
    assert "run scripts/refresh_patches.py" in found["series"][0]


def test_new_version_in_the_table_needs_a_series(monkeypatch):
    monkeypatch.setattr(table, "MINORS", (*table.MINORS, "2.16"))
    assert "the seam table knows" in check.recorded_problems()[0]


def test_series_of_another_patch_release_is_noticed(monkeypatch):
    monkeypatch.setattr(table, "VERSIONS", ("2.11.1", *table.VERSIONS[1:]))
    [problem] = check.recorded_problems()
    assert "made from torch 2.11.0" in problem and "2.11.1" in problem


def test_edited_patch_is_noticed(copy):
    patches = copy.parent / "patches"
    folder = series.folder_of(target.find(str(copy)).minor, patches)
    patch = folder / "0001-hooks.patch"
    patch.write_text(patch.read_text() + "\n")
    assert set(problems(copy, patches)) == {"series", "apply and revert"}


def test_file_that_belongs_to_no_series_is_noticed(copy):
    patches = copy.parent / "patches"
    (series.folder_of(target.find(str(copy)).minor, patches) / "0009-more.patch").write_text("")
    assert ["0009-more.patch" in line for line in problems(copy, patches)["series"]] == [True]


def test_other_sources_are_noticed(copy):
    path = copy / OUTPUT_CODE
    path.write_text(path.read_text() + "# changed\n")
    assert {"series", "apply and revert"} == set(problems(copy))


def test_seam_that_changed_is_noticed(copy):
    path = copy / "torch/_inductor/codegen/wrapper.py"
    path.write_text(path.read_text().replace("def can_reuse(self, input_buffer", "def can_reuse(self, buffer"))
    [problem] = problems(copy)["seam contract"]
    assert "can_reuse takes (self, buffer" in problem


def test_seam_that_is_gone_is_noticed(copy):
    (copy / "torch/_inductor/cudagraph_trees.py").unlink()
    assert problems(copy)["seam contract"] == ["torch._inductor.cudagraph_trees.get_manager is gone"]


def test_parameters_read_from_text_are_those_that_python_sees(copy):
    """The table is matched by both, for this version at least: `table.differences` asks the imported torch."""
    version = target.find(str(copy)).version
    assert list(signatures.differences(version, copy)) == []


def test_refreshing_what_is_current_changes_nothing(copy, monkeypatch, capsys, tmp_path):
    found = target.find(str(copy))
    version = series.load(found.minor).torch
    assert list(series.write(version, copy, copy.parent / "patches")) == []


def test_refreshing_replaces_what_is_stale(small):
    stale = small.patches / "v2.14" / "0004-gone.patch"
    stale.write_text("")
    small.write(OUTPUT_CODE, "# another release\n" + SMALL_FILES[OUTPUT_CODE])
    changed = list(series.write("2.14.2", small.root, small.patches))
    assert changed == ["0004-gone.patch", "0003-output_code.patch", "checksums.json"]
    assert not stale.exists()
    small.apply()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["2.9.0"], "not in the seam table"),
        (["--sources", "here"], "for one version"),
    ],
)
def test_refresh_says_what_it_cannot_do(monkeypatch, arguments, message):
    monkeypatch.setattr("sys.argv", ["refresh_patches.py", *arguments])
    with pytest.raises(Trouble, match=message):
        refresh.main()


def test_refresh_takes_no_patched_sources(copy, monkeypatch):
    from scripts.patching import apply

    found = target.find(str(copy))
    list(apply.brought_to(series.State.PATCHED, found))
    monkeypatch.setattr("sys.argv", ["refresh_patches.py", series.load(found.minor).torch, "--sources", str(copy)])
    with pytest.raises(Trouble, match="is patched"):
        refresh.main()


def test_every_version_is_checked_and_one_that_cannot_be_fetched_fails(installed_files, monkeypatch, capsys):
    here = target.find(str(installed_files))

    def fetched(version: str) -> Path:
        if table.minor_of(version) != here.minor:
            raise Trouble(f"torch {version} could not be fetched: no network")
        return installed_files

    monkeypatch.setattr(sources, "fetched", fetched)
    monkeypatch.setattr("sys.argv", ["check_patches.py", "--all"])
    assert check.main() == 1
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if " | " in line}
    assert set(rows) == {"torch", *table.VERSIONS}
    for version in table.VERSIONS:
        assert ("passed" in rows[version]) == (table.minor_of(version) == here.minor)
        assert ("FAILED" in rows[version]) == (table.minor_of(version) != here.minor)
