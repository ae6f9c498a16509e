"""`pygraph doctor`: what is found on this machine, whether the package is installed into torch, what it declines."""

from __future__ import annotations

import ctypes
import enum
import getpass
import importlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.table import Table

import pygraph_inductor
from pygraph_inductor.reporting import table
from pygraph_inductor.seams import declines
from pygraph_inductor.seams.table import ENTRY

# Imports in a child process, so that what this process has loaded already does not count.
IMPORT_TIMES = """
import time; start = time.perf_counter()
import torch; torch_done = time.perf_counter()
import pygraph_inductor; print(torch_done - start, time.perf_counter() - torch_done)
"""


class State(enum.Enum):
    """What a finding means for using the package here."""

    GOOD = "ok"
    NOTE = "note"
    PROBLEM = "PROBLEM"


@dataclass(frozen=True)
class Finding:
    """One line of the answer."""

    what: str
    value: str
    state: State = State.GOOD


def main() -> int:
    """Print every finding; 1 if one of them is a problem."""
    findings = [*versions(), *tools(), *installation(), import_time()]
    result = Table(title="pygraph doctor", title_justify="left", show_header=False)
    for finding in findings:
        table.add_text_row(result, finding.what, finding.value, finding.state.value)
    table.console().print(result)
    return 1 if any(finding.state is State.PROBLEM for finding in findings) else 0


def versions() -> Iterator[Finding]:
    """The software that has to fit together, and the devices."""
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("pygraph_inductor", version("pygraph_inductor") or "run from a checkout")
    yield Finding("torch", f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}")
    triton = version("triton") or version("pytorch-triton")
    if importable("triton"):
        yield Finding("triton", triton or "found")
    else:
        yield Finding("triton", "missing: Inductor cannot compile for CUDA without it", State.PROBLEM)
    needed = State.PROBLEM if torch.cuda.is_available() else State.NOTE
    if importable("cuda.bindings.driver"):
        yield Finding("cuda-bindings", version("cuda-bindings") or "found")
    else:
        yield Finding("cuda-bindings", "missing: graphs cannot be rewritten on a GPU without it", needed)
    driver = driver_version()
    yield Finding("CUDA driver", driver or "none (libcuda.so.1 not found)", State.GOOD if driver else State.NOTE)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield Finding(f"cuda:{index}", torch.cuda.get_device_name(index))
    else:
        yield Finding("GPU", "none visible to torch: only the simulated driver works here", State.NOTE)


def tools() -> Iterator[Finding]:
    """What compiling needs: compilers and a folder to keep results in."""
    for language, variable, names in (("C", "CC", ("gcc", "clang", "cc")), ("C++", "CXX", ("g++", "clang++", "c++"))):
        asked = os.environ.get(variable)
        found = next(filter(None, map(shutil.which, (asked,) if asked else names)), None)
        missing = f"none ({variable}={asked} not found)" if asked else f"none of {', '.join(names)}"
        yield Finding(f"{language} compiler", found or missing, State.GOOD if found else State.PROBLEM)
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.path.join(
        tempfile.gettempdir(), "torchinductor_" + getpass.getuser()
    )
    yield Finding("compile cache", *writable(folder))


def writable(folder: str) -> tuple[str, State]:
    """The folder and whether files can be made in it, or in the nearest parent that exists."""
    place = os.path.abspath(folder)
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}", State.NOTE
    return folder, State.GOOD


def installation() -> Iterator[Finding]:
    """Whether torch's seams carry our functions, and which contexts stay with stock PyTorch."""
    importlib.import_module(ENTRY)  # the seams are checked and replaced when it is there
    report = pygraph_inductor.report()
    enabled = pygraph_inductor.enabled()
    state = State.GOOD if enabled else State.PROBLEM
    yield Finding("installed into torch", "yes" if enabled else "no", state)
    for name in ("seams", "installed by", "code generation"):
        if name in report.installed:
            yield Finding(f"  {name}", str(report.installed[name]))
    if torch.cuda.is_available() and (reason := declines.of_process()) is not None:
        yield Finding("declined", reason, State.PROBLEM)
    for line in report.declined:
        yield Finding("declined", line, State.NOTE)


def import_time() -> Finding:
    """What `import pygraph_inductor` costs on top of `import torch`."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # of a checkout, or site-packages
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))}
    command = [sys.executable, "-W", "ignore", "-c", IMPORT_TIMES]
    child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("import time", f"the import failed in a new process: {last}", State.PROBLEM)
    of_torch, ours = map(float, child.stdout.split()[-2:])
    return Finding("import time", f"{ours:.2f} s on top of torch's {of_torch:.2f} s")


def version(distribution: str) -> str | None:
    """The installed version of a distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def importable(module: str) -> bool:
    """Whether a module can be imported; tries it, since a module may be there and broken."""
    try:
        importlib.import_module(module)
    except Exception:
        return False
    return True


def driver_version() -> str | None:
    """The CUDA version of the installed driver; asking makes no context."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        number = ctypes.c_int()
        if library.cuDriverGetVersion(ctypes.byref(number)):
            return None
    except (OSError, AttributeError):
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"
