"""Applying and reverting: all or nothing, as often as one likes, and every byte comes back."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.patching import apply, series, target
from scripts.patching.series import State
from scripts.patching.trouble import Trouble
from tests.patches.small import SMALL_FILES

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "apply_patches.py"
COMPILE_FX, OUTPUT_CODE = "torch/_inductor/compile_fx.py", "torch/_inductor/output_code.py"


def test_hooked_functions_carry_the_decorator_after_applying(small):
    small.apply()
    assert "@pygraph_hook\ndef cudagraphify" in small.contents()[COMPILE_FX]
    assert "    @pygraph_hook\n    def post_compile" in small.contents()[OUTPUT_CODE]


def test_reverting_restores_every_byte_and_leaves_no_file_behind(small):
    before = small.contents()
    small.apply()
    assert small.contents().keys() == before.keys() and small.contents() != before
    small.revert()
    assert small.contents() == before == SMALL_FILES


def test_files_of_the_installed_torch_come_back_byte_for_byte(installed_files, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(installed_files, copy)
    for wanted in (State.PATCHED, State.PRISTINE):
        list(apply.brought_to(wanted, target.find(str(copy))))
        changed = [path for path in copy.rglob("*.py") if path.read_bytes() != other(path, copy, installed_files)]
        assert bool(changed) == (wanted is State.PATCHED)


def other(path: Path, root: Path, counterpart: Path) -> bytes:
    return (counterpart / path.relative_to(root)).read_bytes()


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_second_time_touches_no_file(small, command):
    getattr(small, command)()
    before = {path: path.stat() for path in small.root.rglob("*.py")}
    [line] = getattr(small, command)()
    assert "was already" in line
    assert {path: path.stat() for path in small.root.rglob("*.py")} == before


@pytest.mark.parametrize("command, state", [("apply", State.PATCHED), ("revert", State.PRISTINE)])
def test_target_that_is_patched_in_part_is_completed(small, command, state):
    small.apply()
    small.write(COMPILE_FX, SMALL_FILES[COMPILE_FX])
    getattr(small, command)()
    assert small.states() == {state}


@pytest.mark.parametrize("command", ["apply", "revert"])
@pytest.mark.parametrize("path", [name for name in SMALL_FILES if name.endswith(("hooks.py", "output_code.py"))])
def test_unexpected_content_is_refused_before_anything_is_touched(small, command, path):
    small.write(path, SMALL_FILES[path] + "# mine\n")
    before = small.contents()
    with pytest.raises(Trouble) as refused:
        getattr(small, command)()
    assert small.contents() == before
    [file] = [file for file in series.load("2.14", small.patches).files if file.path == path]
    found = series.checksum(before[path].encode())
    for part in (path, found, file.pristine, file.patched, "left untouched", "2.14.1"):
        assert part in str(refused.value)


def test_file_that_is_gone_is_refused(small):
    (small.root / OUTPUT_CODE).unlink()
    with pytest.raises(Trouble, match="no such file"):
        small.apply()
    assert small.states() == {State.PRISTINE, State.MISSING}


def test_patch_that_was_edited_is_refused(small):
    patch = small.patches / "v2.14" / "0002-compile_fx.patch"
    patch.write_text(patch.read_text().replace("+@pygraph_hook", "+@another"))
    with pytest.raises(Trouble, match="refresh the series"):
        small.apply()
    assert small.contents() == SMALL_FILES


def test_version_without_patches_is_refused_and_the_known_ones_are_named(small):
    small.write("torch/version.py", "__version__ = '2.9.1'\n")
    with pytest.raises(Trouble, match=r"no patches for torch 2\.9, only for 2\.14"):
        small.apply()


def test_torch_folder_itself_is_a_target_and_so_is_a_checkout(small):
    assert target.find(str(small.root / "torch")).root == small.root
    (small.root / "torch" / "version.py").unlink()
    small.write("version.txt", "2.14.0a0\n")
    assert target.find(str(small.root)).minor == "2.14"


def test_target_without_a_version_is_refused(small):
    (small.root / "torch" / "version.py").unlink()
    with pytest.raises(Trouble, match="does not say which version"):
        small.apply()


def test_missing_target_is_named_with_what_to_do(tmp_path):
    with pytest.raises(Trouble, match="nowhere does not exist.*TORCH_SRC="):
        target.find(str(tmp_path / "nowhere"))
    with pytest.raises(Trouble, match="not a PyTorch.*TORCH_SRC="):
        target.find(str(tmp_path))


def test_environment_without_torch_is_told_what_to_do():
    done = subprocess.run([sys.executable, "-E", "-S", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(
        "error: there is no torch in this environment: give TORCH_SRC"
    )


def test_command_line_patches_says_so_and_reverts(installed_files, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(installed_files, copy)
    said = []
    for arguments in ([], ["--status"], ["--revert"], ["--status"]):
        done = subprocess.run([sys.executable, SCRIPT, *arguments, copy], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        said.append(done.stdout)
    assert "is patched" in said[0] and "is pristine" in said[2]
    assert said[1].split()[::2] == ["patched"] * 3 and said[3].split()[::2] == ["pristine"] * 3


def test_read_only_target_is_refused_before_anything_is_touched(small, monkeypatch):
    """Root may write anywhere, so the question itself is answered here."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "_inductor")
    with pytest.raises(Trouble, match="_inductor is read-only for this user. Nothing was touched"):
        small.apply()
    assert small.contents() == SMALL_FILES


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only folders")
def test_folder_without_write_permission_is_refused(small):
    (small.root / "torch" / "_inductor").chmod(0o555)
    with pytest.raises(Trouble, match="read-only"):
        small.apply()
    assert small.contents() == SMALL_FILES


def test_mode_stays(small):
    (small.root / COMPILE_FX).chmod(0o640)
    for command in (small.apply, small.revert):
        command()
        assert (small.root / COMPILE_FX).stat().st_mode & 0o777 == 0o640


def test_file_in_the_cache_of_a_package_manager_is_not_changed_through_a_hard_link(small, tmp_path):
    cached = tmp_path / "cached.py"
    os.link(small.root / COMPILE_FX, cached)
    small.apply()
    assert cached.read_text() == SMALL_FILES[COMPILE_FX]


def test_bytecode_of_changed_files_is_dropped_and_other_bytecode_stays(small):
    compiled = {path: compiled_copy(small, path) for path in (COMPILE_FX, "torch/_inductor/untouched.py")}
    foreign = compiled[COMPILE_FX].with_name("compile_fx.cpython-399.opt-1.pyc")
    foreign.write_bytes(b"of another python")
    small.apply()
    assert not compiled[COMPILE_FX].exists() and not foreign.exists()
    assert compiled["torch/_inductor/untouched.py"].exists()


def compiled_copy(small, path: str) -> Path:
    """Bytecode that python takes without a look at its source."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    return Path(py_compile.compile(str(small.root / path), invalidation_mode=mode, doraise=True))


@pytest.mark.parametrize("hooked", [True, False])
def test_import_sees_the_change_although_bytecode_was_not_checked_against_its_source(small, hooked):
    if not hooked:
        small.apply()
    compiled_copy(small, "torch/_inductor/hooks.py")
    (small.apply if hooked else small.revert)()
    code = "import torch._inductor.hooks as h; print(hasattr(h, 'pygraph_hook'))"
    done = subprocess.run([sys.executable, "-E", "-S", "-c", code], cwd=small.root, capture_output=True, text=True)
    assert done.stdout.strip() == str(hooked), done.stderr
