"""The command line: `run` is `python script` with the package installed first; console script and module are one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_interpreter import ROOT, python

import pygraph_inductor
from pygraph_inductor import __main__ as cli
from pygraph_inductor.reporting import facts

# What a script sees of how it was started, one item a line.
SCRIPT = """
import sys, os
print(__name__, __file__, sys.modules["__main__"].__dict__ is globals())
print(sys.argv)
print(sys.path[0])
print(__loader__.__class__.__name__, __builtins__.__name__, __spec__)
"""


def pygraph(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "pygraph_inductor", *arguments, cwd=cwd, **environment)


@pytest.fixture
def script(tmp_path):
    """Writes a script into a folder that is not the current one."""

    def write(text: str, name: str = "elsewhere/script.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    return write


def test_script_sees_what_python_would_show_it(script, tmp_path):
    name = script(SCRIPT)
    ours = pygraph("run", name, "--flag", "-m", "value", cwd=tmp_path)
    theirs = python(name, "--flag", "-m", "value", cwd=tmp_path)
    assert ours.returncode == theirs.returncode == 0
    assert ours.stdout == theirs.stdout != ""


def test_module_sees_what_python_would_show_it(script, tmp_path):
    script("", "package/__init__.py")
    script(SCRIPT.replace("__spec__)", "__spec__.name, __package__)"), "package/tool.py")
    ours = pygraph("run", "-m", "package.tool", "--flag", cwd=tmp_path)
    theirs = python("-m", "package.tool", "--flag", cwd=tmp_path)
    assert ours.returncode == theirs.returncode == 0, ours.stderr
    assert ours.stdout == theirs.stdout != ""


def test_folder_with_a_main_file_runs(script, tmp_path):
    script("import beside, sys; print(beside.VALUE, sys.argv)", "tool/__main__.py")
    script("VALUE = 42", "tool/beside.py")
    done = pygraph("run", "tool", "x", cwd=tmp_path)
    assert done.stdout == python("tool", "x", cwd=tmp_path).stdout == "42 ['tool', 'x']\n"


def test_package_is_installed_before_the_script_runs(script, tmp_path):
    name = script("import sys; print('pygraph_inductor' in sys.modules, sys.modules['pygraph_inductor'].enabled())")
    assert pygraph("run", name, cwd=tmp_path).stdout == "True True\n"


def test_script_imports_its_neighbours(script, tmp_path):
    script("VALUE = 42", "elsewhere/neighbour.py")
    done = pygraph("run", script("import neighbour; print(neighbour.VALUE)"), cwd=tmp_path)
    assert done.stdout == "42\n"


def test_exception_of_the_script_passes_through(script, tmp_path):
    done = pygraph("run", script("def f():\n    raise KeyError('mine')\nf()"), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'mine'")
    assert 'script.py", line 2, in f' in done.stderr


@pytest.mark.parametrize("status, code", [("7", 7), ("'a message'", 1), ("", 0)])
def test_exit_status_of_the_script_passes_through(script, tmp_path, status, code):
    assert pygraph("run", script(f"import sys; sys.exit({status})"), cwd=tmp_path).returncode == code


def test_interrupt_of_the_script_ends_it_as_python_would(script, tmp_path):
    # Whoever runs the tests in the background may have them ignore it.
    handle = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    name = script(f"import os, signal; {handle}; os.kill(os.getpid(), signal.SIGINT)")
    assert pygraph("run", name, cwd=tmp_path).returncode == python(name, cwd=tmp_path).returncode == -signal.SIGINT


def test_syntax_error_names_the_script(script, tmp_path):
    done = pygraph("run", script("def"), cwd=tmp_path)
    assert done.returncode == 1
    assert "script.py" in done.stderr and "SyntaxError" in done.stderr


def test_what_runs_at_exit_still_finds_the_script_as_main(script, tmp_path):
    name = script("import atexit\nVALUE = 42\n@atexit.register\ndef f():\n    import __main__; print(__main__.VALUE)\n")
    assert pygraph("run", name, cwd=tmp_path).stdout == "42\n"


def test_objects_of_the_script_can_be_pickled_to_child_processes(script, tmp_path):
    name = script(
        "import multiprocessing\n"
        "def double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [21]))\n"
    )
    done = pygraph("run", name, cwd=tmp_path)
    assert done.stdout == "[42]\n", done.stderr


def test_isolated_python_keeps_the_scripts_folder_out(script, tmp_path):
    script("VALUE = 42", "elsewhere/neighbour.py")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pygraph_inductor.__main__ import main; sys.exit(main())"
    )
    name = script("try:\n    import neighbour\nexcept ImportError:\n    print('not found')")
    done = python("-I", "-c", code, "run", name, cwd=tmp_path)
    assert done.stdout == "not found\n", done.stderr


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["run", "missing.py"], 2, "can't open file"),
        (["run", "-m", "no_such_module"], 1, "No module named no_such_module"),
        (["run", "-m", "no_such_package.module"], 1, "No module named no_such_package.module"),
        (["run"], 2, "usage: pygraph run"),
        (["run", "-x"], 2, "usage: pygraph run"),
        (["run", "-m"], 2, "usage: pygraph run"),
    ],
)
def test_a_run_that_cannot_start_says_why(arguments, code, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    assert cli.main(arguments) == code
    assert message in capsys.readouterr().err


def test_module_that_fails_to_import_shows_its_own_error(script, tmp_path):
    script("import surely_not_there", "package/__init__.py")
    script("", "package/tool.py")
    done = pygraph("run", "-m", "package.tool", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ModuleNotFoundError: No module named 'surely_not_there'")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["demo", "--help"], ["doctor", "--help"]])
def test_help_is_printed(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 0
    assert "usage: pygraph" in capsys.readouterr().out


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert all(command in text for command in ("run", "demo", "doctor"))


@pytest.mark.parametrize("arguments", [[], ["no-such-command"]])
def test_unknown_or_missing_command_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "usage: pygraph" in capsys.readouterr().err


def test_doctor_says_what_it_found(tmp_path):
    done = pygraph("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for what in ("python", "torch", "triton", "cuda-bindings", "CUDA driver", "C compiler", "C++ compiler"):
        assert what in done.stdout
    assert "s on top of torch's" in done.stdout
    assert "PROBLEM" not in done.stdout


def test_doctor_calls_a_disabled_package_a_problem(tmp_path):
    done = pygraph("doctor", cwd=tmp_path, PYGRAPH_DISABLE="1")
    assert done.returncode == 1
    [line] = [line for line in done.stdout.splitlines() if "installed into torch" in line]
    assert "no" in line and "PROBLEM" in line


def test_doctor_calls_a_missing_compiler_a_problem(tmp_path):
    done = pygraph("doctor", cwd=tmp_path, CC="no-such-compiler")
    assert done.returncode == 1
    assert "no-such-compiler not found" in done.stdout


COMPILED = """
import sys
import torch

@torch.compile(mode="reduce-overhead")
def f(x):
    return x.sin() + 1

for _ in range(4):
    f(torch.ones(3))
print("arguments", sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""


def test_explain_runs_a_script_and_then_says_what_was_chosen_and_why(script, tmp_path):
    name = script(COMPILED)
    done = pygraph("explain", name, "0", "--json", cwd=tmp_path, PYGRAPH_SIMULATE="1")
    assert done.returncode == 0, done.stderr
    assert "arguments ['0', '--json']" in done.stdout
    assert "inference 0/0" in done.stdout and "not measured" in done.stdout


def test_explain_as_json_keeps_the_exit_status_of_the_script(script, tmp_path):
    name = script(COMPILED)
    done = pygraph("explain", "--json", name, "3", cwd=tmp_path, PYGRAPH_SIMULATE="1")
    assert done.returncode == 3, done.stderr
    [function] = json.loads(done.stdout.splitlines()[-1])["functions"]
    [decision] = function["decisions"]
    assert (decision["chosen"], decision["origin"]) == ("graph", "not measured")


def test_explain_names_the_digests_of_choices_that_are_kept(monkeypatch, capsys):
    digest, sizes = "0123456789abcdef" * 2, "float32[4](1); " * 20
    kept, unkept = facts.DecisionFacts(sizes, "plain", digest=digest), facts.DecisionFacts("s0", "graph")
    unfinished = facts.DecisionFacts("s1", digest="f" * 32)
    function = facts.FunctionFacts("forward 0/0", "forward", "", "cpu", decisions=[kept, unkept, unfinished])
    monkeypatch.setattr(pygraph_inductor, "report", lambda: facts.Report([function], {}, []))
    cli.show_decisions(as_json=False)
    [line] = [line for line in capsys.readouterr().out.splitlines() if digest in line]
    assert line == f"  {digest}  forward 0/0: plain for {sizes}"
    function.decisions.remove(kept)
    cli.show_decisions(as_json=False)
    assert "by digest" not in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--json"], ["-m"], ["--other", "script.py"]])
def test_explain_without_a_script_says_how_it_is_used(arguments, capsys):
    assert cli.main(["explain", *arguments]) == 2
    assert "pygraph explain" in capsys.readouterr().err
