"""Twins of a generated module's Triton kernels, ready to be launched: made from the module's text when a plan asks.

A twin is never tuned: it is compiled once, in the configuration that the kernel itself ended up with.
"""

from __future__ import annotations

import ast
import copy
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pygraph_inductor.codegen.twin import NotIndirectable, Parameters, parameters_of, twin_of
from pygraph_inductor.driver.protocol import ChooseEntries
from pygraph_inductor.driver.thread_globals import original_of

_Choice = tuple[str, tuple[int, ...]]


class TritonTwins:
    """The kernels among a module's globals, and the twins that were asked for. Speaks `driver.protocol.Twins`."""

    def __init__(self, namespace: dict[str, Any], source: str) -> None:
        self._namespace = namespace
        self._source = source
        self._lock = threading.Lock()
        self._twins: dict[_Choice, Any] = {}  # an autotuner with one launcher, or the reason why there is none

    @functools.cached_property
    def _texts(self) -> dict[str, str]:
        try:
            texts = kernel_texts(self._source)
        except Exception:  # this is asked for in a capture, which shall not end for it
            return {}
        return {name: text for name, text in texts.items() if name in self._namespace}

    @functools.cached_property
    def _parameters(self) -> dict[str, Parameters | str]:
        """Per kernel what its launches pass, or why it has no twin."""
        found: dict[str, Parameters | str] = {}
        for name, text in self._texts.items():
            try:
                found[name] = parameters_of(text)
            except NotIndirectable as reason:
                found[name] = str(reason)
            except Exception as error:  # a form that nobody thought of
                found[name] = f"its text cannot be read: {type(error).__name__}"
        return found

    def refusal(self, kernel: str, argument: int) -> str | None:
        """Why this argument of a kernel's launches cannot be indirect; None if it can."""
        parameters = self._parameters[kernel]
        if isinstance(parameters, str):
            return parameters
        return None if argument in parameters.pointers else "the argument is no pointer to numbers"

    def prepare(self, kernel: str, arguments: tuple[int, ...]) -> str | None:
        """Compile and load a twin; not during a capture. Returns why there is none, or None."""
        with self._lock:
            if (kernel, arguments) not in self._twins:
                self._twins[kernel, arguments] = self._made(kernel, arguments)
            made = self._twins[kernel, arguments]
            return made if isinstance(made, str) else None

    def _made(self, kernel: str, arguments: tuple[int, ...]) -> Any:
        parameters = self._parameters[kernel]
        if isinstance(parameters, str):
            return parameters
        try:
            name, text = twin_of(self._texts[kernel], [parameters.names[number] for number in arguments])
            return compiled_like(original_of(self._namespace[kernel]), name, text)
        except NotIndirectable as reason:
            return str(reason)
        except Exception as error:  # Triton's own errors are of many kinds
            return f"its twin does not compile: {type(error).__name__}"

    def meanings(self, choose: ChooseEntries) -> Mapping[str, Callable[[Any], Any]]:
        """What each kernel means while `choose` decides."""
        return {name: functools.partial(_Chooser, self._twins, name, choose) for name in self._texts}


class _Chooser:
    """Stands for a kernel during a capture: launches it, or a twin."""

    def __init__(self, twins: Mapping[_Choice, Any], name: str, choose: ChooseEntries, kernel: Any) -> None:
        self._twins = twins
        self._name = name
        self._choose = choose
        self._kernel = kernel

    def run(self, *args: Any, **kwargs: Any) -> Any:
        entries = self._choose(self._name, args)
        if not entries:
            return self._kernel.run(*args, **kwargs)
        twin = self._twins[self._name, tuple(sorted(entries))]
        return twin.run(*(entries.get(number, value) for number, value in enumerate(args)), **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


def kernel_texts(source: str) -> dict[str, str]:
    """The text of each Triton kernel of a generated module, by the global that launches it."""
    texts: dict[str, str] = {}
    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        call, targets = statement.value, statement.targets
        if ast.unparse(call.func) != "async_compile.triton" or len(call.args) < 2:
            continue
        text = call.args[1]
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and isinstance(targets[0], ast.Name):
            texts[targets[0].id] = text.value
    return texts


def compiled_like(kernel: Any, name: str, text: str) -> Any:
    """The kernel in `text`, compiled and loaded in the configuration that `kernel` runs in."""
    from torch._inductor.codecache import PyCodeCache

    launchers: list[Any] = getattr(kernel, "launchers", [])
    if len(launchers) != 1:
        raise NotIndirectable(f"it has {len(launchers)} configurations")
    config = copy.copy(launchers[0].config)
    config.found_by_coordesc = True  # Inductor's mark of a configuration that is not to be tuned any further
    twin = getattr(PyCodeCache.load(text), name)
    # A module's kernels are tuned in place, and one text has one module: this one may serve other functions already.
    twin = copy.copy(twin)
    twin.lock = threading.Lock()
    twin.configs, twin.compile_results, twin.launchers = [config], [], []
    if hasattr(twin, "_cached_launcher"):  # torch 2.13 and later
        twin._cached_launcher = None
    twin.precompile()
    if len(twin.launchers) != 1:
        raise NotIndirectable("its twin has several configurations")
    if _spills(twin.launchers[0]) > _spills(launchers[0]):
        raise NotIndirectable("its twin would need more registers than there are")
    return twin


def _spills(launcher: Any) -> int:
    """What a loaded kernel keeps in memory for want of registers."""
    return getattr(launcher, "n_spills", None) or 0
