"""A tiny PyTorch with patches of its own, and copies of the installed one's files: no real torch is changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts.patching import apply, series, target
from scripts.patching.definitions import table
from scripts.patching.series import State
from tests.patches.small import SMALL_FILES, Small


@pytest.fixture
def small(tmp_path) -> Small:
    made = Small(tmp_path / "small", tmp_path / "patches")
    for path, text in SMALL_FILES.items():
        made.write(path, text)
    assert list(series.write("2.14.1", made.root, made.patches))
    return made


@pytest.fixture(scope="session")
def installed_files(tmp_path_factory) -> Path:
    """The installed torch's files that the patches or the seam table are about: a pristine copy."""
    found = target.find(None)
    copy = tmp_path_factory.mktemp("installed")
    paths = {file.path for file in series.load(found.minor).files}
    paths |= {row.module.replace(".", "/") + ".py" for row in table.ROWS} | {"torch/version.py"}
    for path in paths:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found.root / path, copy / path)
    list(apply.brought_to(State.PRISTINE, target.find(str(copy))))
    return copy
