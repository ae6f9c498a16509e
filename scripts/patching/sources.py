"""The Python files of released torch wheels: fetched once per version, kept in a folder that git ignores."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from .lock import alone
from .places import ROOT
from .trouble import Trouble

CACHE = ROOT / ".cache" / "torch-sources"

# Python files are the same in every build of a release, so one build serves; and it need not run here.
BUILD = ("--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--implementation=cp", "--python-version=3.12")

# A wheel has several hundred megabytes.
FETCH_SECONDS = 3600.0

# pip's reasons come last and may be long.
SHOWN_LINES = 4


def fetched(version: str, cache: Path = CACHE, download: Callable[[str, Path], None] | None = None) -> Path:
    """The folder with torch/**.py of `version`. Fetches what is not there; an interrupted fetch leaves nothing half."""
    kept = cache / version
    cache.mkdir(parents=True, exist_ok=True)
    with alone(cache / f".{version}.lock", patience=FETCH_SECONDS):
        if not kept.is_dir():
            _fetch(version, kept, download or _download)
    return kept


def _fetch(version: str, kept: Path, download: Callable[[str, Path], None]) -> None:
    for left_behind in kept.parent.glob(f".{version}-*"):  # by a run that was killed
        shutil.rmtree(left_behind)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=f".{version}-") as folder:
        wheels, unpacked = Path(folder, "wheels"), Path(folder, "unpacked")
        download(version, wheels)
        _unpack(_the_wheel(version, wheels), unpacked)
        unpacked.rename(kept)


def _download(version: str, wheels: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", *BUILD]
    command += [f"--dest={wheels}", f"torch=={version}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        reason = "\n  ".join(done.stdout.strip().splitlines()[-SHOWN_LINES:])
        raise Trouble(f"torch {version} could not be fetched:\n  {reason}")


def _the_wheel(version: str, wheels: Path) -> Path:
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1 or not re.match(rf"torch-{re.escape(version)}(\+[^-]*)?-", found[0].name):
        raise Trouble(f"torch {version} could not be fetched: found {[path.name for path in found] or 'no wheel'}")
    return found[0]


def _unpack(wheel: Path, folder: Path) -> None:
    """Only what the patches and the table of seams are about: the Python files of the package."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("torch/") and name.endswith(".py")]
            archive.extractall(folder, names)  # checks every file's checksum
    except zipfile.BadZipFile as error:
        raise Trouble(f"{wheel.name} is damaged: {error}") from None
