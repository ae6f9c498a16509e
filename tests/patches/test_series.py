"""The patches that are checked in: few lines, hooks only, one series for every version of the seam table."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from pygraph_inductor.seams import table
from scripts.patching import check, series, target
from scripts.patching.places import PATCHES
from scripts.patching.series import State

SERIES = [series.load(minor) for minor in series.minors()]
PATCH_FILES = [file for one in SERIES for file in one.files]


def changed_lines(patch: str, sign: str) -> list[str]:
    body = patch[patch.index("\n@@ ") :].removesuffix("-- \npygraph_inductor\n")
    return [line[1:] for line in body.splitlines() if line.startswith(sign)]


def test_series_seam_table_and_versions_agree():
    assert check.recorded_problems() == []
    assert [one.torch for one in SERIES] == list(table.VERSIONS)


@pytest.mark.parametrize("file", PATCH_FILES, ids=lambda file: file.patch_name)
def test_patch_adds_a_few_lines_and_removes_none(file):
    assert changed_lines(file.patch, "-") == []
    assert len(changed_lines(file.patch, "+")) <= 20


@pytest.mark.parametrize("file", PATCH_FILES, ids=lambda file: file.patch_name)
def test_patch_adds_hooks_and_none_of_our_logic(file):
    added = "\n".join(changed_lines(file.patch, "+"))
    assert not re.search("pygraph_inductor|cuda|graph_manager", added.replace("pygraph_hook", ""))
    if file.hooks:
        assert set(changed_lines(file.patch, "+")) <= {
            "from .hooks import pygraph_hook",
            "@pygraph_hook",
            "    @pygraph_hook",
        }


def test_licence_of_pytorch_lies_beside_the_patches():
    notice = (PATCHES / "LICENSE.pytorch").read_text()
    assert "From PyTorch:" in notice and "Redistributions of source code must retain" in notice


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_takes_the_series_as_commits_and_ends_with_the_same_files(installed_files, tmp_path):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    minor = target.find(str(installed_files)).minor
    shutil.copytree(installed_files / "torch", tmp_path / "torch")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "Pristine")
    folder = series.folder_of(minor)
    names = (folder / "series").read_text().split()
    git("am", "-q", *(str(folder / name) for name in names))
    assert {file.state(tmp_path) for file in series.load(minor).files} == {State.PATCHED}
    assert len(git("log", "--format=%s").splitlines()) == 1 + len(names)
    assert "Let a package take over functions of Inductor" in git("log", "--format=%s")
