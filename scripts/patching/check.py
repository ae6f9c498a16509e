"""Holds the series of a version against the hook definitions, the seam table, and that version's pristine sources."""

from __future__ import annotations

import argparse
import ast
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import apply, series, signatures, sources, target
from .definitions import hooked, hooks, table
from .places import PATCHES
from .series import Series, State
from .target import Target
from .trouble import Trouble

REFRESH = "run scripts/refresh_patches.py"
IN_AND_OUT = (("applied", State.PATCHED), ("applied again", State.PATCHED), ("reverted", State.PRISTINE))


@dataclass
class Result:
    """What was found for one version: the problems of each check that was made."""

    version: str
    problems: dict[str, list[str]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not any(self.problems.values())


def main() -> int:
    """The command line of check_patches.py."""
    parser = argparse.ArgumentParser(description="Check that patches, hook definitions, seam table and PyTorch agree.")
    parser.add_argument("--all", action="store_true", help="every supported version, from its wheel (fetched once)")
    parser.add_argument("torch", nargs="?", help="checkout or unpacked wheel (default: the torch of this environment)")
    arguments = parser.parse_args()
    problems = recorded_problems()
    results = [_of_release(version) for version in table.VERSIONS] if arguments.all else [_of_target(arguments.torch)]
    for line in [*table_lines(results), *problems]:
        print(line)
    return 0 if not problems and all(result.passed for result in results) else 1


def recorded_problems(patches: Path = PATCHES) -> list[str]:
    """What can be seen without any sources: a series per version of the table, with a hook per replaced function."""
    found = []
    if series.minors(patches) != list(table.MINORS):
        found.append(f"patches/ has series for {series.minors(patches)}, the seam table knows {list(table.MINORS)}")
    for version in table.VERSIONS:
        minor = table.minor_of(version)
        if series.folder_of(minor, patches).is_dir():
            found += _recorded_problems(version, series.load(minor, patches))
    return found


def _recorded_problems(version: str, chosen: Series) -> Iterator[str]:
    if chosen.torch != version:
        yield f"patches/v{chosen.minor} was made from torch {chosen.torch}, the seam table was read against {version}"
    if {file.path: file.hooks for file in chosen.files if file.hooks} != hooked():
        yield f"patches/v{chosen.minor} does not hook what the seam table replaces; {REFRESH}"


def _of_release(version: str) -> Result:
    result = Result(version)
    try:
        print(f"torch {version} ...", flush=True)
        pristine = sources.fetched(version)
    except Trouble as trouble:
        result.problems["sources"] = [str(trouble)]
        return result
    result.problems["sources"] = []
    return checked(result, pristine)


def _of_target(given: str | None) -> Result:
    """Check against the files of a target, which may be patched: in a pristine copy, the target is only read."""
    found = target.find(given)
    chosen = series.load(found.minor)
    states = found.states(chosen)
    result = Result(found.version, {"sources": []})
    with tempfile.TemporaryDirectory() as folder:
        copy = _copied(found.root, Path(folder), [row.module.replace(".", "/") + ".py" for row in table.ROWS], chosen)
        for file, state in states.items():
            if state is State.PATCHED:
                path = copy.root / file.path
                path.write_bytes(file.changed(path.read_bytes(), State.PRISTINE))
        return checked(result, copy.root)


def checked(result: Result, pristine: Path, patches: Path = PATCHES) -> Result:
    """Make every check against pristine sources."""
    for name, check in CHECKS.items():
        try:
            result.problems[name] = list(check(table.minor_of(result.version), pristine, patches))
        except Trouble as trouble:
            result.problems[name] = [str(trouble)]
    return result


def is_current(minor: str, pristine: Path, patches: Path) -> Iterator[str]:
    """The series is exactly what the hook definitions make of these sources."""
    chosen, folder = series.load(minor, patches), series.folder_of(minor, patches)
    made = series.made(chosen.torch, pristine)
    for name in sorted({*made, *(path.name for path in folder.iterdir())}):
        path = folder / name
        if not path.exists() or path.read_text() != made.get(name):
            yield f"{path} is not what the hook definitions make of these sources; {REFRESH}"


def goes_in_and_out(minor: str, pristine: Path, patches: Path) -> Iterator[str]:
    """In a copy: applied, applied again, reverted; every hook is where it should be, every byte is back."""
    chosen = series.load(minor, patches)
    with tempfile.TemporaryDirectory() as folder:
        copy = _copied(pristine, Path(folder), [], chosen)
        for wanted, doing in (
            (State.PATCHED, "applied"),
            (State.PATCHED, "applied again"),
            (State.PRISTINE, "reverted"),
        ):
            list(apply.brought_to(wanted, copy, patches))
            wrong = [file.path for file in chosen.files if file.state(copy.root) is not wanted]
            yield from (f"{path} is not {wanted.value} after the series was {doing}" for path in wrong)
            if wanted is State.PATCHED:
                yield from _hook_problems(copy, chosen)
        for file in chosen.files:
            if (copy.root / file.path).read_bytes() != (pristine / file.path).read_bytes():
                yield f"{file.path} is not what it was before"


def _hook_problems(copy: Target, chosen: Series) -> Iterator[str]:
    """The patched files are Python, and exactly the replaced functions carry the decorator, above all others."""
    for file in chosen.files:
        tree = ast.parse((copy.root / file.path).read_text())
        if sorted(_decorated(tree, "")) != sorted(hooked().get(file.path, ())):
            yield f"{file.path}: hooked are {sorted(_decorated(tree, ''))}, not {sorted(hooked().get(file.path, ()))}"


def _decorated(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        decorators = [ast.unparse(decorator) for decorator in getattr(child, "decorator_list", [])]
        if decorators[:1] == [hooks.DECORATOR]:
            yield f"{prefix}{getattr(child, 'name', '')}"
        yield from _decorated(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)


def seams_match(minor: str, pristine: Path, patches: Path) -> Iterator[str]:
    """The seam table describes these sources."""
    yield from map(str, signatures.differences(minor, pristine))


CHECKS: dict[str, Callable[[str, Path, Path], Iterator[str]]] = {
    "series": is_current,
    "apply and revert": goes_in_and_out,
    "seam contract": seams_match,
}


def _copied(root: Path, folder: Path, more: list[str], chosen: Series) -> Target:
    """The files of the series, and more, in a folder of their own."""
    paths = {*(file.path for file in chosen.files), *more, *(name for name, _ in target.VERSION_FILES)}
    for path in paths:
        if (root / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / path, folder / path)
    return target.find(str(folder))


def table_lines(results: list[Result]) -> Iterator[str]:
    """A row per version, and what was wrong below."""
    heads = ["sources", *CHECKS]
    yield " | ".join([f"{'torch':14}", *heads, "result"])
    for result in results:
        cells = [_cell(result.problems.get(head)).ljust(len(head)) for head in heads]
        yield " | ".join([f"{result.version:14}", *cells, "passed" if result.passed else "FAILED"])
    for result in results:
        for head, problems in result.problems.items():
            yield from (f"torch {result.version}, {head}: {problem}" for problem in problems)


def _cell(problems: list[str] | None) -> str:
    if problems is None:
        return "-"
    return "FAILED" if problems else "ok"
