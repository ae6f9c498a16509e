"""The PyTorch to be patched: the one that this interpreter would import, a checkout, or an unpacked wheel."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from . import series
from .definitions import REGISTRY_FILE, table
from .series import PatchedFile, Series, State
from .trouble import Trouble

# A wheel and a built checkout have the first, a checkout always has the second.
VERSION_FILES = (("torch/version.py", r"^__version__ = '([^']+)'"), ("version.txt", r"^(\S+)"))
WHERE = "give TORCH_SRC=, a checkout or an unpacked wheel, or use an environment that has torch"


@dataclass(frozen=True)
class Target:
    """The folder that holds `torch`, and the version found there."""

    root: Path
    version: str

    @property
    def minor(self) -> str:
        return str(table.minor_of(self.version))

    def __str__(self) -> str:
        return f"torch {self.version} in {self.root}"

    def states(self, patches: Series) -> dict[PatchedFile, State]:
        """What each file of the series is now. Refuses the target if one is none that the series knows."""
        found = {file: file.state(self.root) for file in patches.files}
        strangers = [file for file, state in found.items() if state in (State.UNKNOWN, State.MISSING)]
        if strangers:
            raise Trouble("\n".join([f"{self} is left untouched:", *map(self._described, strangers), _hint(patches)]))
        return found

    def _described(self, file: PatchedFile) -> str:
        path = self.root / file.path
        now = f"SHA-256 {series.checksum(path.read_bytes())}" if path.exists() else "no such file"
        known = f"    expected  {file.pristine} (pristine)\n    or        {file.patched} (patched)"
        return f"  {path}\n    found     {now}\n{known}"

    def refuse_read_only(self, patches: Series) -> None:
        """Raise Trouble, before anything is touched, if files cannot be replaced."""
        for folder in {(self.root / file.path).parent for file in patches.files} | {self.root / "torch"}:
            if not os.access(folder, os.W_OK | os.X_OK):
                raise Trouble(f"{self} cannot be changed: {folder} is read-only for this user. Nothing was touched.")


def _hint(patches: Series) -> str:
    return (
        f"The patches were made from torch {patches.torch}. Another release, a fork, or patches of another version of\n"
        "this package need a series of their own: docs/patches.md says how to rebase."
    )


def find(given: str | None) -> Target:
    """The target that the user named, or the installed torch."""
    root = _root_of(Path(given).expanduser()) if given else _installed()
    return Target(root, _version_of(root))


def _root_of(folder: Path) -> Path:
    """`folder`, or its parent if it is the `torch` folder itself."""
    folder = Path(os.path.abspath(folder))
    for root in (folder, folder.parent):
        if (root / REGISTRY_FILE).exists() and (root == folder or folder.name == "torch"):
            return root
    missing = "does not exist" if not folder.exists() else f"has no {REGISTRY_FILE}"
    raise Trouble(f"{folder} {missing}: not a PyTorch; {WHERE}")


def _installed() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise Trouble(f"there is no torch in this environment: {WHERE}")
    return _root_of(Path(spec.origin).parent)


def _version_of(root: Path) -> str:
    for name, pattern in VERSION_FILES:
        path = root / name
        found = re.search(pattern, path.read_text(), re.MULTILINE) if path.exists() else None
        if found:
            return found[1]
    raise Trouble(f"{root} does not say which version it is: no {' and no '.join(name for name, _ in VERSION_FILES)}")
