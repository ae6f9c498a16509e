"""Replaces several files together: all of them or none, whatever interrupts it.

New contents and copies of the old ones are laid out in a journal folder beside the files first. A run that was
killed is rolled back by the next one.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .series import checksum
from .trouble import Trouble

JOURNAL = "torch/.pygraph_patching"
ENTRIES = "journal.json"


def replace(root: Path, contents: Mapping[str, bytes]) -> None:
    """Give every file (a path under `root`) its new content. On any failure the old contents are back."""
    try:
        _prepare(root, contents)
        for number, path in enumerate(contents):
            os.replace(_new(root, number), root / path)
            _forget_bytecode(root / path)
        _sync_folders(root, contents)
    except BaseException as error:
        settle(root)
        if isinstance(error, OSError):
            raise Trouble(f"nothing was changed: {error}") from error
        raise
    _remove(root)


def settle(root: Path) -> list[str]:
    """Roll back what an interrupted run left behind; says in lines for people what was done."""
    journal = root / JOURNAL
    if not journal.exists():
        return []
    # Without its list of entries a run had not begun to replace, or had finished.
    done = [_restored(root, **entry) for entry in _entries(journal)]
    _remove(root)
    return ["an earlier run was interrupted; its traces are removed", *filter(None, done)]


def _prepare(root: Path, contents: Mapping[str, bytes]) -> None:
    journal = root / JOURNAL
    journal.mkdir()
    entries = []
    for number, (path, content) in enumerate(contents.items()):
        old = root / path
        shutil.copy2(old, _original(root, number))
        _write(_new(root, number), content)
        _take_over_rights(old, _new(root, number))
        entries.append({"number": number, "path": path, "old": checksum(old.read_bytes()), "new": checksum(content)})
    _write(journal / "unfinished", json.dumps(entries, indent=1).encode())
    os.replace(journal / "unfinished", journal / ENTRIES)
    _sync(journal)


def _restored(root: Path, number: int, path: str, old: str, new: str) -> str | None:
    """Put one file back, unless somebody else (a reinstallation) has changed it since."""
    file, original = root / path, _original(root, number)
    found = checksum(file.read_bytes()) if file.exists() else "no file"
    if found == old:
        return None
    if found != new or not original.exists():
        return f"  {file} has been changed by somebody else since: left as it is"
    _take_over_rights(file, original)
    os.replace(original, file)
    _forget_bytecode(file)
    return f"  {file} is rolled back"


def _entries(journal: Path) -> list[dict[str, Any]]:
    listed = journal / ENTRIES
    return json.loads(listed.read_text()) if listed.exists() else []


def _original(root: Path, number: int) -> Path:
    return root / JOURNAL / f"{number}.old"


def _new(root: Path, number: int) -> Path:
    return root / JOURNAL / f"{number}.new"


def _remove(root: Path) -> None:
    journal = root / JOURNAL
    (journal / ENTRIES).unlink(missing_ok=True)  # from here on there is nothing to roll back
    shutil.rmtree(journal, ignore_errors=True)


def _forget_bytecode(source: Path) -> None:
    """Compiled copies, of every interpreter: one that is not checked against its source would hide the change."""
    pattern = f"{glob.escape(str(source.parent))}/__pycache__/{glob.escape(source.stem)}.*.pyc"
    for compiled in glob.glob(pattern):
        Path(compiled).unlink(missing_ok=True)


def _take_over_rights(old: Path, new: Path) -> None:
    """Owner and mode stay. A new file replaces the old: a package manager's cache may hold a hard link to that."""
    status = old.stat()
    if (status.st_uid, status.st_gid) != (new.stat().st_uid, new.stat().st_gid):
        os.chown(new, status.st_uid, status.st_gid)
    os.chmod(new, status.st_mode & 0o7777)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folders(root: Path, contents: Mapping[str, bytes]) -> None:
    for folder in {(root / path).parent for path in contents}:
        _sync(folder)
