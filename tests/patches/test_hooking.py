"""Where hooks go in a file: above all decorators of the right function, and an import that reads like the others."""

from __future__ import annotations

import textwrap

import pytest

from scripts.patching.definitions import REGISTRY_FILE, hooks
from scripts.patching.hooking import hooked_text, with_decorators, with_registry
from scripts.patching.trouble import Trouble


def hooked(text: str, *functions: str) -> str:
    return with_decorators("file.py", textwrap.dedent(text), functions)


def test_decorator_goes_above_all_others():
    text = hooked("from . import config\n\n@one\n@two(\n    3)\ndef f(): ...\n", "f")
    assert "@pygraph_hook\n@one\n@two(\n    3)\ndef f()" in text


def test_method_is_found_in_its_class_and_indented():
    text = hooked("from . import a\nclass A:\n    def f(self): ...\nclass B:\n    def f(self): ...\n", "B.f")
    assert text.count("@pygraph_hook") == 1
    assert "class B:\n    @pygraph_hook\n    def f" in text


def test_function_inside_another_is_not_meant():
    text = hooked("from . import a\ndef g():\n    def f(): ...\ndef f(): ...\n", "f")
    assert "\n@pygraph_hook\ndef f" in text and text.count("@pygraph_hook") == 1


@pytest.mark.parametrize("body", ["", "def f(): ...\ndef f(): ...\n", "if True:\n    def f(): ...\n"])
def test_function_that_is_not_there_exactly_once_is_refused(body):
    with pytest.raises(Trouble, match="definitions of f, one was expected"):
        hooked("from . import a\n" + body, "f")


def test_class_is_no_function():
    with pytest.raises(Trouble, match="not a function"):
        hooked("from . import a\nclass f: ...\n", "f")


def test_import_goes_among_the_relative_ones_in_order():
    text = hooked("from torch import x\nfrom .graph import (\n    A,\n)\nfrom .ir import B\ndef f(): ...\n", "f")
    assert f")\n{hooks.IMPORT}\nfrom .ir" in text


def test_file_without_relative_imports_is_refused():
    with pytest.raises(Trouble, match="no relative import"):
        hooked("import torch\ndef f(): ...\n", "f")


def test_registry_brings_its_import_only_where_it_is_missing():
    with_import = "import contextlib\nimport functools\nfrom collections.abc import Callable\n"
    without = with_import.replace("import functools\n", "")
    assert with_registry("file.py", with_import) == with_registry("file.py", without)


def test_hooked_function_runs_what_is_registered_and_looks_like_itself():
    namespace: dict = {"__name__": "torch._inductor.somewhere"}
    exec(hooked_text(REGISTRY_FILE, "import contextlib\nfrom collections.abc import Callable\n"), namespace)

    def stock(a, *, b=1):
        "What it does."
        return a, b

    stock.__module__ = namespace["__name__"]
    function = namespace[hooks.DECORATOR](stock)
    assert function(1, b=2) == (1, 2)
    assert (function.__doc__, function.__wrapped__) == ("What it does.", stock)
    [(name, known)] = namespace[hooks.STOCK].items()
    assert known is stock and name.endswith("somewhere." + stock.__qualname__)
    namespace[hooks.INSTEAD][name] = lambda a, *, b=1: "ours"
    assert function(1) == "ours"
    namespace[hooks.INSTEAD].clear()
    assert function(1) == (1, 1)
