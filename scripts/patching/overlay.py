"""A throw-away environment with a patched torch: this interpreter's packages, and in front of them a copy of torch.

The copy has the Python files; what is heavy (libraries, headers) is linked. The real environment is only read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

from . import apply, target
from .places import PATCHES
from .series import State
from .target import Target

USAGE = """usage: run_patched.py ARGUMENT...

Runs python with these arguments (-m pytest tests/gpu, a script, -c ...) and a patched torch, in a throw-away copy of
this environment."""

# Folders of installed packages end with one of these, Debian's with the second.
PACKAGE_FOLDERS = ("site-packages", "dist-packages")


def main() -> int:
    """The command line of run_patched.py."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):  # everything else is python's
        print(USAGE)
        return 0 if arguments else 2
    with tempfile.TemporaryDirectory(prefix="pygraph-patched-") as folder:
        environment = made(Path(folder))
        print(f"torch with patches in {environment}", file=sys.stderr, flush=True)
        return ran(environment, arguments)


def made(folder: Path, patches: Path = PATCHES) -> Path:
    """Make the environment in `folder`; the folder that holds the patched torch."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    [packages] = folder.glob("lib/python*/site-packages")
    real = target.find(None)
    _copy(real.root / "torch", packages / "torch")
    list(apply.brought_to(State.PATCHED, Target(packages, real.version), patches))
    (packages / "real.pth").write_text("".join(_pth_lines()))
    return packages


def ran(packages: Path, arguments: list[str]) -> int:
    """Run the environment's python; its exit status, 128 and more for a signal as shells have it."""
    python = packages.parents[2] / "bin" / "python"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the environment is removed
    child = subprocess.Popen([python, *arguments], env=variables(packages))
    try:
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # the terminal has told the child, which may have last words
                status = child.wait()
                return status if status >= 0 else 128 - status
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()


def variables(packages: Path) -> dict[str, str]:
    """The environment variables. PYTHONPATH counts before any environment, and what is compiled is thrown away."""
    folder = packages.parents[2]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")])),
        "PATH": os.pathsep.join([str(folder / "bin"), os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
        "VIRTUAL_ENV": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled"),
    }


def _pth_lines() -> Iterator[str]:
    """What site.py runs to add this interpreter's package folders, and what their own .pth files add."""
    for path in sys.path:
        if os.path.basename(path) in PACKAGE_FOLDERS and os.path.isdir(path):
            yield f"import site; site.addsitedir({path!r})\n"


def _copy(source: Path, destination: Path) -> None:
    """Copies of Python files, links to everything else; a folder without Python files is linked as a whole."""
    destination.mkdir()
    for entry in os.scandir(source):
        there = destination / entry.name
        if entry.name == "__pycache__":  # still right: copies keep their times, and patching drops what it changes
            shutil.copytree(entry.path, there)
        elif entry.is_dir():
            if _has_python(entry.path):
                _copy(Path(entry.path), there)
            else:
                there.symlink_to(entry.path, target_is_directory=True)
        elif entry.name.endswith(".py"):
            shutil.copy2(entry.path, there)
        else:
            there.symlink_to(entry.path)


def _has_python(folder: str) -> bool:
    return any(name.endswith(".py") for _, _, names in os.walk(folder) for name in names)
