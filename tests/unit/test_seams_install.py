"""Installing into torch and back: all or nothing, as often as one likes, at any time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._inductor.compile_fx as compile_fx
import torch._inductor.cudagraph_trees as cudagraph_trees
from seams_running import running, stock_runs

import pygraph_inductor
from pygraph_inductor.seams import table

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def installed_afterwards():
    yield
    pygraph_inductor.disable()
    pygraph_inductor.enable()


def replaced_functions() -> list[object]:
    return [running(row) for row in table.ROWS if row.replacement]


def test_disable_puts_every_original_back_and_enable_replaces_them_again():
    pygraph_inductor.disable()
    stock = replaced_functions()
    assert not pygraph_inductor.enabled()
    assert stock_runs()
    assert pygraph_inductor.enable()
    ours = replaced_functions()
    assert all(one.__wrapped__ is other for one, other in zip(ours, stock, strict=True))
    pygraph_inductor.disable()
    assert replaced_functions() == stock


def test_enabling_twice_replaces_once():
    pygraph_inductor.enable()
    ours = replaced_functions()
    assert pygraph_inductor.enable()
    assert replaced_functions() == ours


def test_disabling_twice_is_harmless():
    pygraph_inductor.disable()
    stock = replaced_functions()
    pygraph_inductor.disable()
    assert replaced_functions() == stock


def test_function_that_somebody_wrapped_around_ours_stays_and_ours_does_nothing(monkeypatch):
    pygraph_inductor.enable()
    ours = compile_fx.cudagraphify
    calls = []

    def theirs(*args, **kwargs):
        calls.append(args)
        return ours(*args, **kwargs)

    monkeypatch.setattr(compile_fx, "cudagraphify", theirs)
    pygraph_inductor.disable()
    assert compile_fx.cudagraphify is theirs
    handed_on = []
    monkeypatch.setattr(cudagraph_trees, "cudagraphify_impl", lambda *a, **k: handed_on.append(a))
    run = theirs(print, (), device_index=0, stack_traces=[], is_backward=False, is_inference=True, placeholders=())
    assert calls and "pygraph" not in type(run).__module__


def test_compiled_function_keeps_replaying_after_disable_and_later_ones_are_stock():
    with pygraph_inductor.config.patch(simulate=True):
        compiled = torch.compile(lambda x: (x + 1).relu(), mode="reduce-overhead")
        for number in range(3):
            compiled(torch.full((8,), float(number)))
    pygraph_inductor.disable()
    [function] = pygraph_inductor.report().functions
    assert function.replays == 1
    assert torch.equal(compiled(torch.ones(8)), torch.full((8,), 2.0))
    [function] = pygraph_inductor.report().functions
    assert function.replays == 2
    with pygraph_inductor.config.patch(simulate=True):
        torch.compile(lambda x: x * 2, mode="reduce-overhead")(torch.ones(8))
    assert len(pygraph_inductor.report().functions) == 1


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CHECK = """
from pygraph_inductor.seams import install, table
assert install.is_applied(), "not installed"
assert list(table.differences(torch.__version__)) == []
print("installed")
"""


def test_importing_leaves_inductor_alone_until_somebody_needs_it():
    code = (
        "import sys, torch, pygraph_inductor\n"
        "assert pygraph_inductor.enabled()\n"
        "assert not [name for name in sys.modules if name.startswith('torch._inductor')]\n"
        "assert pygraph_inductor.import_seconds < 1\n"
        "import torch._inductor.compile_fx\n"
    )
    assert run(code + CHECK) == "installed\n"


@pytest.mark.parametrize(
    "module",
    ["torch._inductor.cudagraph_trees", "torch._inductor.output_code", "torch._inductor.fx_passes.freezing_patterns"],
)
def test_whichever_module_of_inductor_is_imported_first_the_seams_are_checked_and_in_place(module):
    code = f"import torch, pygraph_inductor\nimport {module}\nimport torch._inductor.compile_fx\n"
    assert run(code + CHECK) == "installed\n"


def test_late_check_that_fails_leaves_torch_untouched():
    code = (
        "import torch, pygraph_inductor, dataclasses\n"
        "from tests.unit.seams_running import stock_runs\n"
        "from pygraph_inductor.seams import install, table\n"
        "wrong = dict.fromkeys(table.MINORS, 'nothing')\n"
        "table.ROWS = (*table.ROWS[:-1], dataclasses.replace(table.ROWS[-1], parameters=wrong))\n"
        "assert pygraph_inductor.enabled()\n"
        "import torch._inductor.compile_fx\n"
        "assert not pygraph_inductor.enabled() and stock_runs()\n"
        "print(pygraph_inductor.report().declined)\n"
    )
    assert "FreeLine" in run(code)


def test_disable_before_inductor_is_imported_leaves_it_stock():
    code = (
        "import sys, torch, pygraph_inductor\n"
        "from tests.unit.seams_running import stock_runs\n"
        "finders = len(sys.meta_path)\n"
        "pygraph_inductor.disable()\n"
        "assert len(sys.meta_path) == finders - 1 and not pygraph_inductor.enabled()\n"
        "import torch._inductor.compile_fx\n"
        "assert stock_runs()\n"
        "assert pygraph_inductor.enable() and not stock_runs()\n"
        "print('stock first')\n"
    )
    assert run(code) == "stock first\n"


def test_explicit_enable_installs_although_the_import_was_told_not_to():
    code = (
        "import torch, pygraph_inductor\n"
        "assert not pygraph_inductor.enabled()\n"
        "assert pygraph_inductor.enable() and pygraph_inductor.enabled()\n"
        "import torch._inductor.compile_fx\n"
    )
    assert run(code + CHECK, PYGRAPH_DISABLE="1") == "installed\n"
