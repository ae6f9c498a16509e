"""Makes every series anew from the hook definitions and the pristine sources of its version."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import series, sources, target
from .definitions import table
from .series import State
from .trouble import Trouble


def main() -> int:
    """The command line of refresh_patches.py."""
    parser = argparse.ArgumentParser(description="Make the series in patches/ anew from the hook definitions.")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="like 2.14.1 (default: all of the seam table)")
    parser.add_argument("--sources", metavar="FOLDER", help="a pristine checkout or unpacked wheel of that one version")
    arguments = parser.parse_args()
    if arguments.sources and len(arguments.versions) != 1:
        raise Trouble("--sources is for one version, which has to be named")
    for version in arguments.versions or table.VERSIONS:
        pristine = _pristine(version, arguments.sources)
        changed = list(series.write(version, pristine))
        print(f"patches/v{table.minor_of(version)}: {', '.join(changed) or 'unchanged'}", flush=True)
    return 0


def _pristine(version: str, given: str | None) -> Path:
    if table.minor_of(version) not in table.MINORS:
        raise Trouble(f"torch {version} is not in the seam table ({', '.join(table.VERSIONS)}); add it there first")
    if given is None:
        return sources.fetched(version)
    found = target.find(given)
    if found.minor != table.minor_of(version):
        raise Trouble(f"{found} is not torch {version}")
    if series.folder_of(found.minor).is_dir():
        patched = [file.path for file in series.load(found.minor).files if file.state(found.root) is State.PATCHED]
        if patched:
            raise Trouble(f"{found} is patched ({', '.join(patched)}); a series is made from pristine sources")
    return found.root
