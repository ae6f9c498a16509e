"""Our diffs are git's: what we make, git applies, and what we apply comes out as it went in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.patching import diff
from scripts.patching.trouble import Trouble

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

LINES = st.lists(st.sampled_from(["", " ", "a", "-- ", "@@ -1 +1 @@", "+b", "-b", "\x0c", "\x85é"]), max_size=40)
TEXTS = LINES.map(lambda lines: "".join(f"{line}\n" for line in ["first", *lines]))


@given(TEXTS, TEXTS)
def test_diff_applies_and_is_undone(old, new):
    made = diff.of("file.py", old, new)
    assert diff.applied("file.py", made, old) == new
    assert diff.applied("file.py", made, new, reverse=True) == old


def test_other_content_is_refused():
    made = diff.of("file.py", "one\ntwo\n", "one\nhook\ntwo\n")
    with pytest.raises(Trouble, match="file.py: line 1"):
        diff.applied("file.py", made, "another\ntwo\n")


def test_damaged_diff_is_refused():
    made = diff.of("file.py", "one\ntwo\n", "one\nhook\ntwo\n")
    with pytest.raises(Trouble, match="middle of a hunk"):
        list(diff.hunks(made.removesuffix(" two\n")))


def test_file_without_a_newline_at_its_end_is_refused():
    with pytest.raises(Trouble, match="newline"):
        diff.of("file.py", "one", "two\n")


@needs_git
@given(old=TEXTS, new=TEXTS.filter(len))
def test_git_applies_what_we_make(tmp_path_factory, old, new):
    if old == new:
        return
    folder: Path = tmp_path_factory.mktemp("git")
    (folder / "file.py").write_bytes(old.encode())
    (folder / "a.patch").write_bytes(diff.of("file.py", old, new).encode())
    subprocess.run(["git", "apply", "--unsafe-paths", "a.patch"], cwd=folder, check=True)
    assert (folder / "file.py").read_bytes().decode() == new


@needs_git
def test_content_has_the_name_that_git_gives_it():
    content = "a = 'é'\n".encode()
    named = subprocess.run(["git", "hash-object", "--stdin"], input=content, capture_output=True, check=True)
    assert diff.blob(content) == named.stdout.decode().strip()
