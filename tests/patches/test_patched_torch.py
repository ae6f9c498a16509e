"""The package on a patched torch: it finds the hooks, replaces nothing, says so, and caches stay apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.patching import overlay

ROOT = Path(__file__).resolve().parent.parent.parent
RUN_PATCHED = ROOT / "scripts" / "run_patched.py"

# Compiles one function in one of four kinds of process and says what the FX-graph cache did.
CACHED = """
import json, sys
import torch
from torch._dynamo.utils import counters
if "ours" in sys.argv:
    import pygraph_inductor
    pygraph_inductor.config.simulate = True
compiled = torch.compile(lambda x, y: torch.mm(x, y), mode="reduce-overhead")  # no C++ to compile
for _ in range(3):
    x, y = torch.randn(2, 8, 8)
    torch.testing.assert_close(compiled(x, y), torch.mm(x, y))
verdicts = [one.verdict for one in pygraph_inductor.report().functions] if "ours" in sys.argv else []
print(json.dumps([counters["inductor"]["fxgraph_cache_" + what] for what in ("hit", "miss")] + verdicts))
"""

WHAT_IS_THERE = """
import sys, torch
import torch._inductor.compile_fx, torch._inductor.output_code
before = {name: dict(vars(sys.modules[name])) for name in list(sys.modules) if name.startswith("torch._inductor")}
methods = dict(vars(torch._inductor.output_code.CompiledFxGraph))
import pygraph_inductor
from torch._inductor import hooks
assert pygraph_inductor.enabled() and pygraph_inductor.report().installed["installed by"] == "hooks of a patched torch"
assert set(hooks.pygraph_instead) == set(hooks.pygraph_stock) and len(hooks.pygraph_stock) >= 4
assert dict(vars(torch._inductor.output_code.CompiledFxGraph)) == methods
for name, known in before.items():
    now = vars(sys.modules[name])
    assert [key for key in known if now[key] is not known[key]] == [], name
assert "hooks of a patched torch" in str(pygraph_inductor.report())
pygraph_inductor.disable()
assert hooks.pygraph_instead == {}
assert "installed by" not in pygraph_inductor.report().installed
pygraph_inductor.enable()
assert set(hooks.pygraph_instead) == set(hooks.pygraph_stock)
print("hooks")
"""

ONE_HOOK_LESS = """
import torch
import torch._inductor.compile_fx as c
from torch._inductor import hooks
del hooks.pygraph_stock["torch._inductor.compile_fx.cudagraphify"]
stock = c.cudagraphify
import pygraph_inductor
way = pygraph_inductor.report().installed["installed by"]
assert way.endswith("replacing what its patches do not know: torch._inductor.compile_fx.cudagraphify"), way
assert c.cudagraphify is not stock
pygraph_inductor.disable()
assert c.cudagraphify is stock and hooks.pygraph_instead == {}
print("both")
"""

REFUSED_LATE = """
import dataclasses, torch, pygraph_inductor
from pygraph_inductor.seams import table
last = [row for row in table.ROWS if row.replacement][-1]
broken = dataclasses.replace(last, replacement="pygraph_inductor.seams.nowhere:wrap")
from pygraph_inductor.seams import install
install.ROWS = tuple(broken if row is last else row for row in table.ROWS)
import torch._inductor.compile_fx
from torch._inductor import hooks
assert hooks.pygraph_instead == {} and not pygraph_inductor.enabled()
print(pygraph_inductor.report().declined)
"""


@pytest.fixture(scope="module")
def patched(tmp_path_factory) -> Path:
    """A throw-away environment whose torch is patched."""
    return overlay.made(tmp_path_factory.mktemp("patched"))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    """The same without patches: the installed torch may itself be patched."""
    from scripts.patching import apply
    from scripts.patching.series import State
    from scripts.patching.target import Target, find

    packages = overlay.made(tmp_path_factory.mktemp("pristine"))
    list(apply.brought_to(State.PRISTINE, Target(packages, find(None).version)))
    return packages


def run(packages: Path, code: str, *arguments: str, **more: str) -> str:
    """Run code with the torch in `packages`; its standard output."""
    environment = {**overlay.variables(packages), **more}
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(ROOT)])
    python = packages.parents[2] / "bin" / "python"
    command = [python, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hooks_are_found_and_nothing_is_replaced(patched):
    assert run(patched, WHAT_IS_THERE) == "hooks\n"


def test_function_without_a_hook_is_replaced_and_the_report_names_it(patched):
    assert run(patched, ONE_HOOK_LESS) == "both\n"


def test_installation_that_fails_halfway_gives_every_hook_back(patched):
    assert "nowhere" in run(patched, REFUSED_LATE)


def test_without_hooks_the_report_says_that_functions_are_replaced(pristine):
    code = (
        "import torch._inductor.compile_fx, pygraph_inductor\n"
        "print(pygraph_inductor.report().installed['installed by'])\n"
    )
    assert run(pristine, code) == "replacing functions of torch in this process\n"


def test_cache_keeps_stock_patched_and_replaced_processes_apart(patched, pristine, tmp_path):
    def hits_and_misses(packages: Path, *arguments: str) -> list[int]:
        said = run(packages, CACHED, *arguments, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
        hits, misses, *verdicts = json.loads(said.splitlines()[-1])
        assert verdicts == ["replayed"] * len(arguments)
        return [hits, misses]

    assert hits_and_misses(pristine) == [0, 1]
    assert hits_and_misses(pristine, "ours") == [0, 1]
    assert hits_and_misses(patched) == [0, 1]
    assert hits_and_misses(patched, "ours") == [0, 1]
    # Each kind finds its own again.
    assert hits_and_misses(pristine, "ours") == [1, 0]
    assert hits_and_misses(patched, "ours") == [1, 0]


def test_run_leaves_the_environment_as_it_was_and_passes_the_status_on(tmp_path):
    code = (
        "import sys, torch, pathlib\n"
        "assert 'pygraph_hook' in (pathlib.Path(torch.__file__).parent / '_inductor' / 'hooks.py').read_text()\n"
        "print(sys.prefix); sys.exit(7)\n"
    )
    command = [sys.executable, RUN_PATCHED, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith(str(tmp_path)) and list(tmp_path.iterdir()) == []
