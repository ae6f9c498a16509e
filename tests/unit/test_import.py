"""Importing the package: what it must not do, what it tolerates, and what it says about bad input."""

from __future__ import annotations

import pytest
from fresh_interpreter import python, succeeds

COMPILE = """
import torch
compiled = torch.compile(lambda x: (x + 1).relu(), mode="reduce-overhead")
for number in range(3):
    x = torch.full((8,), float(number))
    assert torch.equal(compiled(x), x + 1)
print("compiled")
"""

# Makes importing one module fail, as where it is not installed.
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


def test_import_touches_no_cuda_device():
    succeeds(
        "-c",
        "import torch\n"
        "def refuse(*args): raise AssertionError('CUDA was initialised')\n"
        "torch._C._cuda_init = torch.cuda._lazy_init = refuse\n"
        "import pygraph_inductor\n"
        "assert pygraph_inductor.enabled() and not torch.cuda.is_initialized()\n",
    )


def test_import_starts_no_thread_and_no_process():
    succeeds(
        "-c",
        "import os, sys, threading, torch\n"
        "def threads(): return len(os.listdir('/proc/self/task'))\n"
        "before, started = threads(), []\n"
        "watched = ('subprocess.Popen', 'os.fork', 'os.posix_spawn', 'os.exec', 'os.system')\n"
        "sys.addaudithook(lambda event, args: started.append((event, args)) if event in watched else None)\n"
        "import pygraph_inductor\n"
        "assert pygraph_inductor.enabled()\n"
        "assert started == [], started\n"
        "assert (threads(), threading.active_count()) == (before, 1)\n",
    )


def test_import_compiles_nothing(tmp_path):
    folder = tmp_path / "cache"
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    succeeds("-c", "import pygraph_inductor", **environment)
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_import_is_quiet():
    ours, torchs = python("-c", "import pygraph_inductor"), python("-c", "import torch")
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, torchs.stdout, torchs.stderr)


def test_import_tolerates_a_torch_that_has_compiled_already():
    out = succeeds("-c", COMPILE + "import pygraph_inductor\nassert pygraph_inductor.enabled()" + COMPILE)
    assert out == "compiled\ncompiled\n"


@pytest.mark.parametrize("order", ["import torch, pygraph_inductor", "import pygraph_inductor, torch"])
def test_import_works_in_either_order(order):
    assert succeeds("-c", order + "\nassert pygraph_inductor.enabled()" + COMPILE) == "compiled\n"


def test_package_works_in_a_child_forked_after_the_import():
    code = (
        "import os, pygraph_inductor\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    assert pygraph_inductor.enabled()\n" + COMPILE.replace("\n", "\n    ") + "\n"
        "    assert pygraph_inductor.report().functions\n"
        "    import sys; sys.stdout.flush(); os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    assert succeeds("-c", code, PYGRAPH_SIMULATE="1") == "compiled\n"


def test_child_forked_while_another_thread_reports_does_not_hang():
    succeeds(
        "-c",
        "import os, pygraph_inductor\n"
        "from pygraph_inductor.reporting import facts\n"
        "with facts._lock:  # as another thread would hold it\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        pygraph_inductor.report()\n"
        "        os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n",
    )


def test_disabled_import_does_nothing():
    code = "import pygraph_inductor\nassert not pygraph_inductor.enabled()"
    assert (
        succeeds("-c", code + COMPILE + "assert not pygraph_inductor.report().functions", PYGRAPH_DISABLE="1")
        == "compiled\n"
    )


def test_misspelt_environment_variable_is_named_once_with_the_nearest_knob():
    done = python("-c", "import pygraph_inductor; assert pygraph_inductor.enabled()" + COMPILE, PYGRAPH_SIMULAT="1")
    assert (done.returncode, done.stdout) == (0, "compiled\n")
    [line] = [line for line in done.stderr.splitlines() if "PYGRAPH_" in line]
    assert "PYGRAPH_SIMULAT " in line and "PYGRAPH_SIMULATE" in line


def test_bad_value_of_an_environment_variable_keeps_the_default():
    done = python(
        "-c", "from pygraph_inductor import config; print(config.max_recordings)", PYGRAPH_MAX_RECORDINGS="many"
    )
    assert (done.returncode, done.stdout) == (0, "64\n")
    assert "PYGRAPH_MAX_RECORDINGS" in done.stderr and "many" in done.stderr


def test_misspelt_config_attribute_raises():
    from pygraph_inductor import config

    with pytest.raises(AttributeError, match="simulat "):
        config.simulat = True
    with pytest.raises(AttributeError):
        _ = config.simulat
    with pytest.raises(Exception, match="simulat"), config.patch(simulat=True):
        pass


def test_torch_without_triton_goes_on_as_stock_torch_and_says_why():
    code = BLOCK.format(module="triton") + "import pygraph_inductor\n" + COMPILE
    done = python("-c", code)
    assert (done.returncode, done.stdout) == (0, "compiled\n"), done.stderr
    [line] = [line for line in done.stderr.splitlines() if "Triton is not installed" in line]
    assert line


@pytest.mark.parametrize("simulate", ["0", "1"])
def test_cache_folder_that_cannot_be_written_behaves_as_in_stock_torch(simulate):
    folder = {
        "TORCHINDUCTOR_CACHE_DIR": "/proc/no-such-folder/cache",
        "TRITON_CACHE_DIR": "/proc/no-such-folder/triton",
    }
    ours = python("-c", "import pygraph_inductor\n" + COMPILE, PYGRAPH_SIMULATE=simulate, **folder)
    stock = python("-c", COMPILE, **folder)
    assert (ours.returncode, ours.stdout) == (stock.returncode, stock.stdout)
    assert (ours.stderr.strip().splitlines() or [""])[-1] == (stock.stderr.strip().splitlines() or [""])[-1]
