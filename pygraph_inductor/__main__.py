"""The command line: `pygraph run | explain | demo | doctor | calibrate | bench`, or `python -m pygraph_inductor`.

By the time this module runs, importing the package has installed it.
"""

from __future__ import annotations

import argparse
import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import sys
import types

RUN_USAGE = "pygraph run (script.py | -m module) [arguments ...]"
EXPLAIN_USAGE = "pygraph explain [--json] (script.py | -m module) [arguments ...]"


def main(argv: list[str] | None = None) -> int:
    """Run a command; the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["run"] and argv[1:2] not in (["-h"], ["--help"]):
        return run(argv[1:])  # before argparse, which would read the script's own options
    if argv[:1] == ["explain"] and argv[1:2] not in (["-h"], ["--help"]):
        return explain(argv[1:])
    if argv[:1] == ["bench"]:
        return bench(argv[1:])  # has a parser of its own
    chosen = parser().parse_args(argv).command
    if chosen == "demo":
        from pygraph_inductor.demo import main as command
    elif chosen == "calibrate":
        from pygraph_inductor.calibrate import main as command
    else:
        from pygraph_inductor.doctor import main as command
    return command()


def parser() -> argparse.ArgumentParser:
    """The commands and their help."""
    top = argparse.ArgumentParser(prog="pygraph", description="CUDA graphs for torch.compile that borrow addresses.")
    commands = top.add_subparsers(dest="command", metavar="command", required=True)
    about_run = "run a script or module as python would, with the package installed first"
    commands.add_parser("run", usage=RUN_USAGE, help=about_run, description=about_run)
    about_explain = "run a script or module, then show for each function whether a graph pays, and why"
    commands.add_parser("explain", usage=EXPLAIN_USAGE, help=about_explain, description=about_explain)
    about_demo = "run a transformer from graphs, check it against eager, show one table"
    commands.add_parser("demo", help=about_demo, description=about_demo)
    about_bench = "measure workloads against stock PyTorch (needs the checkout of the sources)"
    commands.add_parser("bench", help=about_bench, description=about_bench)
    about_doctor = "say what is found here, whether the package is installed into torch, and what it declines"
    commands.add_parser("doctor", help=about_doctor, description=about_doctor)
    about_calibrate = "measure once what engines cost on this machine, for the plan to choose by (needs a GPU)"
    commands.add_parser("calibrate", help=about_calibrate, description=about_calibrate)
    return top


def run(arguments: list[str]) -> int:
    """`run script.py …` or `run -m module …`. Exceptions and exits of the script pass through."""
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        return run_module(arguments[1], arguments[1:])
    if not arguments or arguments[0].startswith("-"):
        print(f"usage: {RUN_USAGE}", file=sys.stderr)
        return 2
    return run_script(arguments[0], arguments)


def explain(arguments: list[str]) -> int:
    """`run`, and then what was decided about each function, as text or as one line of JSON. Also after an error."""
    as_json = "--json" in arguments[:1]
    arguments = arguments[1:] if as_json else arguments
    if not arguments or (arguments[0].startswith("-") and arguments[:1] != ["-m"]) or arguments == ["-m"]:
        print(f"usage: {EXPLAIN_USAGE}", file=sys.stderr)
        return 2
    try:
        return run(arguments)
    finally:
        show_decisions(as_json)


def show_decisions(as_json: bool) -> None:
    """What was decided so far."""
    import pygraph_inductor

    report = pygraph_inductor.report()
    if as_json:
        print(json.dumps(report.to_dict()))
        return
    from pygraph_inductor.reporting import table

    out = table.console()
    out.print(table.decisions_table(report.functions))
    for line in table.digest_lines(report.functions):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def bench(arguments: list[str]) -> int:
    """The benchmark suite. It is no part of the installed package: it is found beside the package or here."""
    beside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for folder in (beside, os.getcwd()):
        if os.path.exists(os.path.join(folder, "scripts", "bench", "__main__.py")):
            sys.path.insert(0, folder)
            command: types.ModuleType = importlib.import_module("scripts.bench.__main__")
            return int(command.main(arguments))
    print("pygraph: the benchmark needs the checkout of the sources; run this command in its folder", file=sys.stderr)
    return 2


def run_module(name: str, argv: list[str]) -> int:
    """As `python -m name`."""
    set_first_path(os.getcwd())
    spec = module_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"  # a package
        spec = module_spec(name)
    code = spec.loader.get_code(name) if spec and isinstance(spec.loader, importlib.abc.InspectLoader) else None
    if spec is None or code is None:
        print(f"pygraph: No module named {name}", file=sys.stderr)
        return 1
    sys.argv[:] = [spec.origin or name, *argv[1:]]
    run_as_main(code, __spec__=spec, __file__=spec.origin, __loader__=spec.loader, __package__=spec.parent)
    return 0


def module_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Where a module is; None if it, or a package it is in, does not exist."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            return None
        raise  # a package it is in exists, and fails to import something else


def run_script(path: str, argv: list[str]) -> int:
    """As `python path`."""
    sys.argv[:] = argv
    if os.path.isdir(path):
        set_first_path(path)
        runpy.run_path(path, run_name="__main__")
        return 0
    # What python shows in tracebacks and in __file__ is absolute, what it shows in argv is not.
    absolute = os.path.abspath(path)
    loader = importlib.machinery.SourceFileLoader("__main__", absolute)
    try:
        source = loader.get_data(absolute)
    except OSError as error:
        print(f"pygraph: can't open file {absolute!r}: {error}", file=sys.stderr)
        return 2
    set_first_path(os.path.dirname(os.path.realpath(path)))
    run_as_main(loader.source_to_code(source, absolute), __file__=absolute, __loader__=loader)
    return 0


def run_as_main(code: types.CodeType, **names: object) -> None:
    """Run code as `__main__`, which it stays, unlike with runpy: what runs at exit still needs it."""
    module = types.ModuleType("__main__")
    module.__dict__.update(names, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def set_first_path(folder: str) -> None:
    """Replace the entry that python put first in `sys.path` for us by the one the script expects.

    With `python -P` or `-I` there is no such entry, and none is added.
    """
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = folder


if __name__ == "__main__":
    sys.exit(main())
