"""One version's series: its patches, their order, and the checksums of every file before and after.

A folder like patches/v2.14 holds `series` (file names in order), the patches in git's format, and `checksums.json`.
There is one patch per file of PyTorch, so a file is either pristine, patched, or unknown.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import diff
from .definitions import REGISTRY_FILE, hooked, table
from .hooking import hooked_text
from .places import PATCHES
from .trouble import Trouble

SERIES, CHECKSUMS = "series", "checksums.json"

# Fixed, so that refreshing an unchanged series changes nothing.
AUTHOR = "pygraph_inductor authors <pygraph_inductor@users.noreply.invalid>"
DATE = "Thu, 1 Jan 2026 00:00:00 +0000"

REGISTRY_SUBJECT = "Let a package take over functions of Inductor"
REGISTRY_BODY = """\
A function with this decorator can be taken over by a package that puts its own
into the dictionary. Nothing in torch does, so nothing changes by itself.
"""
HOOKS_BODY = """\
pygraph_inductor, where it is imported, runs its own instead of:
"""


class State(enum.Enum):
    """What a file's checksum says."""

    PRISTINE = "pristine"
    PATCHED = "patched"
    UNKNOWN = "unknown"
    MISSING = "missing"


@dataclass(frozen=True)
class PatchedFile:
    """A file of PyTorch that a series changes."""

    path: str
    patch_name: str
    patch: str
    pristine: str
    patched: str
    hooks: tuple[str, ...]

    def state(self, root: Path) -> State:
        """What the file under `root` is now."""
        try:
            found = checksum((root / self.path).read_bytes())
        except FileNotFoundError:
            return State.MISSING
        return {self.pristine: State.PRISTINE, self.patched: State.PATCHED}.get(found, State.UNKNOWN)

    def changed(self, content: bytes, to: State) -> bytes:
        """The content in the other state. Refuses to answer anything but what the checksum promises."""
        text = diff.applied(self.path, self.patch, content.decode(), reverse=to is State.PRISTINE)
        wanted = self.pristine if to is State.PRISTINE else self.patched
        if checksum(text.encode()) != wanted:
            raise Trouble(f"{self.patch_name} does not give what {CHECKSUMS} says; was it edited? Refresh the series.")
        return text.encode()


@dataclass(frozen=True)
class Series:
    """The patches for one minor version."""

    minor: str
    torch: str  # the patch release that it was made from and checked with
    files: tuple[PatchedFile, ...]


def checksum(content: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def folder_of(minor: str, patches: Path = PATCHES) -> Path:
    """patches/v2.14 of "2.14"."""
    return patches / f"v{minor}"


def minors(patches: Path = PATCHES) -> list[str]:
    """The minor versions that have a series, in order."""
    found = [path.name.removeprefix("v") for path in patches.glob("v*.*") if path.is_dir()]
    return sorted(found, key=lambda minor: [int(part) for part in minor.split(".")])


def load(minor: str, patches: Path = PATCHES) -> Series:
    """The series of a minor version. Raises Trouble if there is none or its files do not belong together."""
    folder = folder_of(minor, patches)
    if not folder.is_dir():
        raise Trouble(f"there are no patches for torch {minor}, only for {', '.join(minors(patches))}")
    names = (folder / SERIES).read_text().split()
    recorded = json.loads((folder / CHECKSUMS).read_text())
    texts = {name: (folder / name).read_text() for name in names}
    if {name: checksum(text.encode()) for name, text in texts.items()} != recorded["patches"]:
        raise Trouble(f"{folder}: the patches are not the ones that {CHECKSUMS} records; refresh the series")
    files = tuple(
        PatchedFile(path, name, texts[name], facts["pristine"], facts["patched"], tuple(facts["hooks"]))
        for name, (path, facts) in zip(names, recorded["files"].items(), strict=True)
    )
    return Series(minor, recorded["torch"], files)


def made(version: str, sources: Path) -> dict[str, str]:
    """Every file of the series for `version`, by name, made from its pristine sources and the hook definitions."""
    paths = [REGISTRY_FILE, *(path for path in hooked() if path != REGISTRY_FILE)]
    written: dict[str, str] = {}
    files: dict[str, dict[str, object]] = {}
    for number, path in enumerate(paths, start=1):
        pristine = (sources / path).read_bytes()
        patched = hooked_text(path, pristine.decode()).encode()
        name = f"{number:04}-{Path(path).stem}.patch"
        written[name] = _message(path, number, len(paths)) + _stat(path, pristine, patched)
        written[name] += diff.of(path, pristine.decode(), patched.decode()) + "-- \npygraph_inductor\n"
        names = list(hooked().get(path, ()))
        files[path] = {"hooks": names, "pristine": checksum(pristine), "patched": checksum(patched)}
    patches = {name: checksum(text.encode()) for name, text in written.items()}
    recorded = {"torch": version, "patches": patches, "files": files}
    return {
        SERIES: "".join(f"{name}\n" for name in written),
        **written,
        CHECKSUMS: json.dumps(recorded, indent=2) + "\n",
    }


def write(version: str, sources: Path, patches: Path = PATCHES) -> Iterator[str]:
    """Write the series of `version`; yields the names of files that were added, changed or removed."""
    folder = folder_of(table.minor_of(version), patches)
    folder.mkdir(parents=True, exist_ok=True)
    texts = made(version, sources)
    for path in sorted(folder.iterdir()):
        if path.name not in texts:
            path.unlink()
            yield path.name
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            yield name


def _message(path: str, number: int, count: int) -> str:
    names = hooked().get(path, ())
    subject = REGISTRY_SUBJECT if path == REGISTRY_FILE else f"Hook {Path(path).stem}: {_short(names)}"
    body = REGISTRY_BODY if path == REGISTRY_FILE else HOOKS_BODY + "".join(f"  {name}\n" for name in names)
    return (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: {AUTHOR}\nDate: {DATE}\n"
        f"Subject: [PATCH {number}/{count}] {subject}\n\n{body}---\n"
    )


def _short(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} functions"


def _stat(path: str, pristine: bytes, patched: bytes) -> str:
    """What `git format-patch` writes between message and diff."""
    added = patched.count(b"\n") - pristine.count(b"\n")
    return f" {path} | {added} {'+' * added}\n 1 file changed, {added} insertion{'s' * (added != 1)}(+)\n\n"
