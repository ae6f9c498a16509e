"""Puts the hooks into the source text of a file of PyTorch: the registry, an import, a decorator per function."""

from __future__ import annotations

import ast

from .definitions import REGISTRY_FILE, hooked, hooks
from .diff import lines_of
from .trouble import Trouble


def hooked_text(path: str, text: str) -> str:
    """`text`, which is the pristine content of `path`, with its hooks."""
    added = with_registry(path, text) if path == REGISTRY_FILE else text
    functions = hooked().get(path, ())
    return with_decorators(path, added, functions) if functions else added


def with_registry(path: str, text: str) -> str:
    """The decorator and its two dictionaries at the end, and what they import at the top."""
    tree = ast.parse(text)
    lines = lines_of(text)
    wanted = hooks.IMPORTS
    imports = [node for node in tree.body if isinstance(node, ast.Import)]
    if not any(alias.name == wanted for node in imports for alias in node.names):
        before = [node for node in imports if node.names[0].name < wanted]
        if not before:
            raise Trouble(f"{path}: no import to put `import {wanted}` behind")
        lines.insert(_end(before[-1]), f"import {wanted}\n")
    return "".join(lines).rstrip("\n") + "\n" + hooks.TEXT


def with_decorators(path: str, text: str, functions: tuple[str, ...]) -> str:
    """The decorator above all others of each function, and its import among the relative ones."""
    tree = ast.parse(text)
    lines = lines_of(text)
    added = [(_end(_import_before(path, tree)), hooks.IMPORT + "\n")]
    for name in functions:
        function = function_in(path, tree, name)
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        added.append((first - 1, " " * function.col_offset + f"@{hooks.DECORATOR}\n"))
    for place, line in sorted(added, reverse=True):
        lines.insert(place, line)
    return "".join(lines)


def function_in(path: str, tree: ast.Module, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """The one definition of `name` ("Class.method"), which must not depend on a condition."""
    body: list[ast.stmt] = tree.body
    found: list[ast.stmt] = []
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = [node for node in body if isinstance(node, kinds) and node.name == part]
        if len(found) != 1:
            raise Trouble(f"{path}: {len(found)} definitions of {name}, one was expected")
        body = getattr(found[0], "body", [])
    if not isinstance(found[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise Trouble(f"{path}: {name} is not a function")
    return found[0]


def _import_before(path: str, tree: ast.Module) -> ast.stmt:
    """The relative import that ours comes behind in alphabetical order."""
    relative = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1]
    if not relative:
        raise Trouble(f"{path}: no relative import to put `{hooks.IMPORT}` behind")
    ours = hooks.MODULE.rpartition(".")[2]
    return next((node for node in reversed(relative) if (node.module or "") < ours), relative[0])


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
