"""The seam table against sources that cannot be imported here: parameters are read from the text.

What `pygraph_inductor/seams/table.py` asks the installed torch at run time, this asks the files of any version.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .definitions import table


def differences(version: str, sources: Path) -> Iterator[Any]:
    """The rows (as `table.Difference`) that the files of `version` do not match."""
    parsed: dict[str, ast.Module | None] = {}
    for row in table.ROWS:
        if row.module not in parsed:
            path = sources / (row.module.replace(".", "/") + ".py")
            parsed[row.module] = ast.parse(path.read_text()) if path.exists() else None
        expected = row.parameters[table.minor_of(version)]
        found = _parameters(parsed[row.module], row.name)
        if found != expected:
            yield table.Difference(row, expected, found)


def _parameters(tree: ast.Module | None, name: str) -> str | None:
    """The parameters of `name` as the table writes them; None if it is not there."""
    if tree is None:
        return None
    owner, _, attribute = name.rpartition(".")
    if owner:
        classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        return _of_method(classes, owner, attribute)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == attribute]
    return _written(functions[-1].args) if functions else None


def _of_method(classes: dict[str, ast.ClassDef], owner: str, attribute: str) -> str | None:
    """The method of a class or of the first base in the same file that has it; dataclasses have one unwritten."""
    found = classes.get(owner)
    if found is None:
        return None
    methods = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == attribute]
    if methods:
        return _written(methods[-1].args)
    if attribute == "__init__" and _is_dataclass(found):
        return ", ".join(["self", *_fields(classes, found)])
    inherited = (_of_method(classes, base, attribute) for base in _bases(found))
    return next((parameters for parameters in inherited if parameters is not None), None)


def _fields(classes: dict[str, ast.ClassDef], found: ast.ClassDef) -> list[str]:
    """What a dataclass's `__init__` takes: the fields of its bases first, a redefined one at its first place."""
    inherited = [field for base in _bases(found) if base in classes for field in _fields(classes, classes[base])]
    own = [
        node.target.id
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_in_init(node)
    ]
    return list(dict.fromkeys([*inherited, *own]))


def _is_in_init(field: ast.AnnAssign) -> bool:
    annotation = ast.unparse(field.annotation)
    default = ast.unparse(field.value) if field.value is not None else ""
    return "ClassVar" not in annotation and "init=False" not in default


def _is_dataclass(found: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in found.decorator_list)


def _bases(found: ast.ClassDef) -> list[str]:
    return [base.id for base in found.bases if isinstance(base, ast.Name)]


def _written(arguments: ast.arguments) -> str:
    words = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    if arguments.vararg is not None:
        words.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        words.append("*")
    words += [argument.arg for argument in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        words.append("**" + arguments.kwarg.arg)
    return ", ".join(words)
