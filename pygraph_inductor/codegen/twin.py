"""The twin of a Triton kernel: the same text, but chosen arguments are addresses of addresses.

From text to text, so that it depends on no release of Inductor: how a kernel is written changes in every one of them,
what a kernel looks like does not. Triton compiles the result when a plan asks for it (`twin_kernels.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pygraph_inductor.driver.protocol import TWIN

# What Inductor's signatures call an element type -> its name in triton.language.
_ELEMENTS = {
    "i1": "int1",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8e4nv": "float8e4nv",
    "fp8e4b8": "float8e4b8",
    "fp8e5": "float8e5",
    "fp8e5b16": "float8e5b16",
}
_HEURISTICS = "triton_heuristics."
# Settings with which Inductor would tune a kernel once more: the twin has the configuration that won already, and
# tuning would run it, on addresses that are not to be read or written.
_TUNING = {"coordinate_descent_tuning": False, "dynamic_scale_rblock": False, "combo_tuning_groups": None}
_ALIGNED = "tt.divisibility"
_ALIGNMENT = 16


class NotIndirectable(Exception):
    """Why a kernel, or this argument of it, has no twin."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of a kernel that a launch passes, in order; `pointers` are the positions that can be indirect."""

    names: tuple[str, ...]
    pointers: frozenset[int]


def parameters_of(source: str) -> Parameters:
    """What a launch passes. Raises `NotIndirectable` for a kernel that has no twin at all."""
    kernel = _Kernel(source)
    pointers = {name for name, kind in kernel.types.items() if _element(kind) is not None}
    numbers = frozenset(number for number, name in enumerate(kernel.passed) if name in pointers)
    return Parameters(tuple(kernel.passed), numbers)


def twin_of(source: str, indirect: Collection[str]) -> tuple[str, str]:
    """The twin whose parameters `indirect` are addresses of addresses: its name and text. Raises `NotIndirectable`."""
    kernel = _Kernel(source)
    prologue = [kernel.make_indirect(name) for name in kernel.types if name in indirect]
    if len(prologue) != len(set(indirect)):
        raise NotIndirectable(f"it has no parameter {', '.join(sorted(set(indirect) - set(kernel.types)))}")
    kernel.put_first(prologue)
    kernel.rename()
    kernel.forbid_tuning()
    return kernel.name, kernel.text()


def _element(kind: str) -> str | None:
    """The element type of a pointer type, None for what is no pointer to numbers (descriptors, sizes)."""
    return _ELEMENTS.get(kind[1:]) if kind.startswith("*") else None


class _Kernel:
    """The parts of a kernel's module that a twin differs in."""

    def __init__(self, source: str) -> None:
        try:
            self._module = ast.parse(source)
        except SyntaxError as error:
            raise NotIndirectable("its text cannot be read") from error
        decorated = [
            (function, decorator)
            for function in self._module.body
            if isinstance(function, ast.FunctionDef)
            for decorator in function.decorator_list
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).startswith(_HEURISTICS)
        ]
        if len(decorated) != 1:
            raise NotIndirectable(f"its text has {len(decorated)} kernels")
        self._function, decorator = decorated[0]
        if ast.unparse(decorator.func) == f"{_HEURISTICS}user_autotune":
            # It may do with its pointers what only pointers passed by the host can do.
            raise NotIndirectable("it is written by the user")
        meta = _entries(_keyword(decorator, "triton_meta"))
        self._inductor_meta = _keyword(decorator, "inductor_meta")
        maps = _entries(self._inductor_meta).get("host_tma_descriptor_args")
        self._signature = meta.get("signature")
        self.types = {name: _text(value) for name, value in _entries(self._signature).items()}
        # Their launcher makes maps of these for tensor-map loads (torch 2.14), whatever the signature says.
        self.types |= dict.fromkeys(_entries(maps) if _is_true(maps) else (), "a tensor map")
        self._attributes = _attributes(meta.get("configs"))
        if _is_true(meta.get("launch_pdl")) or "gdc_" in source:
            # Its first instructions may run before the node that writes the table is done.
            raise NotIndirectable("it starts before the kernel in front of it ends (programmatic dependent launch)")
        arguments = self._function.args
        if arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
            raise NotIndirectable("its parameters are not a plain list")
        self._positions = {argument.arg: number for number, argument in enumerate(arguments.args)}
        # A size that is known to be 1 is "constexpr" in the signature and passed all the same.
        self.passed = [argument.arg for argument in arguments.args if not _is_constexpr(argument)]
        if not set(self.types) <= set(self._positions):
            raise NotIndirectable("its signature names parameters that it has not")

    def make_indirect(self, name: str) -> str:
        """Change one parameter's type. Returns the line that makes it what it was."""
        element = _element(self.types[name])
        if element is None:
            raise NotIndirectable(f"{name} is not a pointer to numbers: {self.types[name]}")
        assert isinstance(self._signature, ast.Dict)
        self._signature.values[list(self.types).index(name)] = ast.Constant("*i64")
        pointer = f"tl.load({name}).to(tl.pointer_type(tl.{element}))"
        if self._drop_attributes(self._positions[name]):
            # On the pointer, not on the number that was loaded: there it has no effect, and every load of the kernel
            # becomes a scalar one (seen in PTX of Triton 3.6 to 3.9).
            pointer = f"tl.multiple_of({pointer}, {_ALIGNMENT})"
        return f"{name} = {pointer}"

    def _drop_attributes(self, position: int) -> bool:
        """Forget what was promised about an argument; an entry of the table is aligned to 8 only. Was it aligned?"""
        aligned = False
        for attributes in self._attributes:
            for number in reversed(range(len(attributes.keys))):
                key, promise = attributes.keys[number], ast.literal_eval(attributes.values[number])
                if key is not None and ast.literal_eval(key) == (position,):
                    if promise != [[_ALIGNED, _ALIGNMENT]]:
                        raise NotIndirectable(f"it relies on {promise} of an argument")
                    aligned = True
                    del attributes.keys[number], attributes.values[number]
        return aligned

    def put_first(self, lines: Sequence[str]) -> None:
        """Statements in front of the kernel's body."""
        self._function.body[:0] = ast.parse("\n".join(lines)).body

    def forbid_tuning(self) -> None:
        """The twin runs as it was configured."""
        meta = self._inductor_meta
        assert isinstance(meta, ast.Dict)
        for number, key in enumerate(meta.keys):
            if isinstance(key, ast.Constant) and key.value in _TUNING:
                meta.values[number] = ast.Constant(_TUNING[key.value])

    def rename(self) -> None:
        """Give the kernel the twin's name. It calls itself nowhere."""
        self._function.name += TWIN

    @property
    def name(self) -> str:
        return self._function.name

    def text(self) -> str:
        return ast.unparse(ast.fix_missing_locations(self._module)) + "\n"


def _is_constexpr(argument: ast.arg) -> bool:
    return argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation)


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _entries(node: ast.expr | None) -> dict[str, ast.expr]:
    """A dictionary that is written out, by its keys."""
    if not isinstance(node, ast.Dict) or not all(isinstance(key, ast.Constant) for key in node.keys):
        raise NotIndirectable("what Inductor wrote about it has another form than is known")
    pairs = zip(node.keys, node.values, strict=True)
    return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}


def _text(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


def _is_true(node: ast.expr | None) -> bool:
    return node is not None and not (isinstance(node, ast.Constant) and not node.value)


def _attributes(node: ast.expr | None) -> list[ast.Dict]:
    """`[{(0,): [['tt.divisibility', 16]]}]`: what Triton is promised about arguments, by position."""
    if not isinstance(node, ast.List) or not all(isinstance(one, ast.Dict) for one in node.elts):
        raise NotIndirectable("what Triton is told about its arguments has another form than is known")
    return [one for one in node.elts if isinstance(one, ast.Dict)]
