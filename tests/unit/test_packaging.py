"""The wheel: everything the package needs is in it, it runs from where it is installed, and torch stays as it is."""

from __future__ import annotations

import email
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*command: str | Path, **options) -> str:
    """Run a command without what this machine or checkout adds to python and pip; its standard output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and name[:4] != "PIP_"}
    environment["PIP_CONFIG_FILE"] = os.devnull
    arguments = [str(part) for part in command]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=300, **options)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(python: Path, *arguments: str | Path) -> str:
    """The test interpreter's pip, working on another environment."""
    return run(sys.executable, "-m", "pip", "--python", python, *arguments)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy: building leaves folders behind."""
    pytest.importorskip("setuptools", minversion="77", reason="building without the network needs setuptools 77")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pygraph_inductor", source / "pygraph_inductor", ignore=ignored)
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", out, source)
    [built] = out.glob("*.whl")
    return built


def environment(folder: Path) -> Path:
    """A new virtual environment without pip; its python."""
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


def site_packages(python: Path) -> Path:
    return Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel in it, and the test interpreter's other packages behind it."""
    python = environment(tmp_path_factory.mktemp("installed") / "venv")
    pip(python, "install", "--no-deps", "--no-index", wheel)
    behind = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}
    others = sorted(path for path in behind if path and Path(path).is_dir() and Path(path) != ROOT)
    # A .pth file of plain paths: unlike `addsitedir` it does not pull an editable install of the checkout in.
    (site_packages(python) / "behind.pth").write_text("\n".join(others))
    return python


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as content:
        [name] = [name for name in content.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(content.read(name))


def test_wheel_carries_every_file_of_the_package(wheel):
    files = [
        path for path in (ROOT / "pygraph_inductor").rglob("*") if path.is_file() and "__pycache__" not in str(path)
    ]
    expected = {str(path.relative_to(ROOT)) for path in files if path.suffix in (".py", ".c", ".typed")}
    with zipfile.ZipFile(wheel) as content:
        assert expected <= set(content.namelist())
    assert "pygraph_inductor/py.typed" in expected


def test_wheel_carries_nothing_but_the_package(wheel):
    with zipfile.ZipFile(wheel) as content:
        tops = {name.split("/")[0] for name in content.namelist()}
    assert tops == {"pygraph_inductor", wheel.name.split("-py3")[0] + ".dist-info"}


def test_metadata_says_what_is_needed(wheel):
    found = metadata(wheel)
    needed = {
        requirement.split(";")[0].strip()
        for requirement in found.get_all("Requires-Dist")
        if "extra" not in requirement
    }
    assert needed == {"torch", "triton", "sympy", "filelock", "rich"}
    assert found["Requires-Python"] == ">=3.10"
    assert found["License-Expression"] == "BSD-3-Clause"
    assert set(found.get_all("Provides-Extra")) == {"dev", "bench"}


def test_installed_package_imports_from_where_it_is_installed(installed, tmp_path):
    place = run(installed, "-c", "import pygraph_inductor as p; print(p.__file__, p.enabled())", cwd=tmp_path).split()
    assert Path(place[0]).is_relative_to(site_packages(installed))
    assert place[1] == "True"


def test_installed_package_is_typed(installed):
    assert (site_packages(installed) / "pygraph_inductor" / "py.typed").is_file()


def test_console_script_is_the_module(installed, tmp_path):
    script = installed.parent / "pygraph"
    (tmp_path / "script.py").write_text("import sys; print(sys.argv, sys.path[0], __name__)")
    for arguments in (["--help"], ["run", "--help"], ["run", "script.py", "--flag"]):
        by_script = run(script, *arguments, cwd=tmp_path)
        assert by_script == run(installed, "-m", "pygraph_inductor", *arguments, cwd=tmp_path) != ""


@pytest.mark.parametrize("version", ["2.9.1", "2.11.0", "2.14.1+cpu", "2.15.0.dev20260101+cu130", "2.16.0"])
def test_installing_keeps_the_torch_that_is_there(wheel, tmp_path, version):
    python = environment(tmp_path / "venv")
    for name in ("torch", "triton", "sympy", "filelock", "rich"):
        pretend_installed(site_packages(python), name, version if name == "torch" else "1.0")
    report = json.loads(pip(python, "install", "--dry-run", "--quiet", "--no-index", "--report", "-", wheel))
    assert [entry["metadata"]["name"] for entry in report["install"]] == ["pygraph_inductor"]


def pretend_installed(folder: Path, name: str, version: str) -> None:
    """What pip looks at to know a distribution and its version."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "INSTALLER").write_text("pip\n")
    (info / "RECORD").write_text("")
