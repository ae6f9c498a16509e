"""Puts a version's patches into a PyTorch, and takes them out again."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from . import series, target, transaction
from .lock import alone
from .places import PATCHES
from .series import State
from .target import Target

LOCK = "torch/.pygraph_patching.lock"


def main() -> int:
    """The command line of apply_patches.py."""
    parser = argparse.ArgumentParser(description="Put the patches into a PyTorch, or take them out.")
    parser.add_argument("--revert", action="store_true", help="take them out: every file as it was, byte for byte")
    parser.add_argument("--status", action="store_true", help="only say what is there")
    parser.add_argument("torch", nargs="?", help="checkout or unpacked wheel (default: the torch of this environment)")
    arguments = parser.parse_args()
    found = target.find(arguments.torch)
    if arguments.status:
        lines = status(found)
    else:
        lines = brought_to(State.PRISTINE if arguments.revert else State.PATCHED, found)
    for line in lines:
        print(line, flush=True)
    return 0


def status(found: Target, patches: Path = PATCHES) -> Iterator[str]:
    """What each file of the target is; changes nothing."""
    for file, state in found.states(series.load(found.minor, patches)).items():
        yield f"{state.value:9} {found.root / file.path}"
    if (found.root / transaction.JOURNAL).exists():
        yield "an earlier run was interrupted; applying or reverting rolls it back first"


def brought_to(wanted: State, found: Target, patches: Path = PATCHES) -> Iterator[str]:
    """Make every file of the target what is wanted; yields lines for people. Doing it again changes nothing."""
    chosen = series.load(found.minor, patches)
    found.refuse_read_only(chosen)
    with alone(found.root / LOCK):
        yield from transaction.settle(found.root)
        todo = [file for file, state in found.states(chosen).items() if state is not wanted]
        contents = {file.path: file.changed((found.root / file.path).read_bytes(), wanted) for file in todo}
        if contents:
            transaction.replace(found.root, contents)
    yield from (f"{wanted.value} {found.root / path}" for path in contents)
    made_from = f"patches/v{chosen.minor}, made from torch {chosen.torch}"
    yield f"{found} {'is' if todo else 'was already'} {wanted.value} ({made_from})"
