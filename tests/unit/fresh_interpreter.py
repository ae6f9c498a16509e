"""Runs python in a new process, with the checkout importable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def python(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run python with torch's own defaults and `environment` on top; says how it ended."""
    inherited = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_COMPILE_THREADS"}
    full = {**inherited, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=full, capture_output=True, text=True, timeout=300, check=False)


def succeeds(*arguments: str, cwd: Path | None = None, **environment: str) -> str:
    """Run python, which must end well; its standard output."""
    done = python(*arguments, cwd=cwd, **environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
