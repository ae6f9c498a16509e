"""Fetching wheels: only Python files stay, what is there is not fetched again, and nothing half is ever taken."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from scripts.patching import sources
from scripts.patching.sources import fetched
from scripts.patching.trouble import Trouble


def download(version: str, wheels: Path, name: str = "torch-{}-cp312-cp312-linux_x86_64.whl") -> None:
    """A small wheel instead of a large one."""
    wheels.mkdir()
    with zipfile.ZipFile(wheels / name.format(version), "w") as archive:
        archive.writestr("torch/_inductor/hooks.py", f"# {version}\n")
        archive.writestr("torch/lib/libtorch.so", "large")
        archive.writestr("torchgen/model.py", "")


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_only_the_python_files_of_torch_are_kept(tmp_path):
    found = fetched("2.14.1", tmp_path, download)
    assert found == tmp_path / "2.14.1"
    assert files(tmp_path) == ["2.14.1/torch/_inductor/hooks.py"]


def test_wheel_with_a_local_version_is_taken(tmp_path):
    fetched("2.14.1", tmp_path, lambda version, wheels: download(version, wheels, "torch-{}+cpu-cp312-abi-any.whl"))
    assert files(tmp_path) == ["2.14.1/torch/_inductor/hooks.py"]


def test_version_that_is_there_is_not_fetched_again(tmp_path):
    fetched("2.14.1", tmp_path, download)

    def never(version, wheels):
        raise AssertionError("fetched again")

    fetched("2.14.1", tmp_path, never)


def test_interrupted_fetch_leaves_nothing_and_the_next_one_completes_it(tmp_path):
    def interrupted(version, wheels):
        download(version, wheels)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetched("2.14.1", tmp_path, interrupted)
    assert files(tmp_path) == []
    (tmp_path / ".2.14.1-killed").mkdir()  # what SIGKILL leaves
    (tmp_path / ".2.14.1-killed" / "half.whl").write_text("half")
    fetched("2.14.1", tmp_path, download)
    assert files(tmp_path) == ["2.14.1/torch/_inductor/hooks.py"]


def test_wheel_of_another_version_is_refused(tmp_path):
    with pytest.raises(Trouble, match="could not be fetched: found .*2.14.0"):
        fetched("2.14.1", tmp_path, lambda version, wheels: download("2.14.0", wheels))
    assert files(tmp_path) == []


def test_damaged_wheel_is_refused(tmp_path):
    def damaged(version, wheels):
        wheels.mkdir()
        (wheels / f"torch-{version}-cp312-cp312-linux_x86_64.whl").write_bytes(b"not a zip file")

    with pytest.raises(Trouble, match="is damaged"):
        fetched("2.14.1", tmp_path, damaged)
    assert files(tmp_path) == []


def test_reason_of_pip_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BUILD", ("--no-such-option",))
    with pytest.raises(Trouble, match=r"torch 2\.14\.1 could not be fetched:\n(.*\n)*.*no such option"):
        fetched("2.14.1", tmp_path)
