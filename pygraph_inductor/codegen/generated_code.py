"""Reads the Python text that Inductor generated: who uses which input, what is allocated, what is called.

The text is the authority on what a function does, and looks the same in every supported version of torch. Read once
per compiled graph, at compile time.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

# Checks, and copies for alignment, read their argument; neither makes a function depend on the address.
_HARMLESS = frozenset(
    {
        "assert_size_stride",
        "assert_size_stride_grouped",
        "assert_alignment",
        "assert_tensor_metadata",
        "copy_misaligned",
        "copy_if_misaligned",
    }
)
# What returns another view of its argument.
_VIEWS = frozenset({"reinterpret_tensor", "aten.view.dtype", "torch.ops.aten.view.dtype", "alloc_from_pool"})
_ALLOCATOR = "empty_strided_"
# Namespaces of torch.ops whose operators talk to other ranks.
_COLLECTIVE = tuple(
    f"torch.ops.{name}."
    for name in ("_c10d_functional", "_c10d_functional_autograd", "c10d", "c10d_functional", "symm_mem", "_dtensor")
)


@dataclass(frozen=True)
class Use:
    """One place where a function uses the memory of an input.

    `kind` is "triton" (`by` is the kernel and `argument` the position in its launch), "extern" (`by` is what is
    called), "reused" (`by` is the buffer that takes the memory over), "returned", or "host" (Python looks into it).
    """

    kind: str
    by: str = ""
    argument: int | None = None


@dataclass(frozen=True)
class FunctionText:
    """What the text of one generated function says. Positions count its inputs from 0."""

    inputs: tuple[str, ...]
    uses: dict[int, tuple[Use, ...]]
    allocators: tuple[str, ...]
    calls: frozenset[str]
    # Per call that is given inputs (no Triton kernels): what is called, and the input at each position or keyword.
    given: tuple[tuple[str, dict[int | str, int]], ...] = ()
    # The module's Triton kernels, whether or not this function launches them.
    kernels: frozenset[str] = frozenset()

    @property
    def reused(self) -> frozenset[int]:
        """Inputs whose memory becomes a buffer of the function's own."""
        return frozenset(position for position, uses in self.uses.items() if any(use.kind == "reused" for use in uses))

    @property
    def collectives(self) -> tuple[str, ...]:
        """The operators called here that talk to other ranks."""
        return tuple(sorted(name for name in self.calls if name.startswith(_COLLECTIVE)))


@functools.lru_cache(maxsize=64)
def read(source: str) -> dict[str, FunctionText]:
    """Every generated function of a module: `partition_0` and so on, and `call`, which may be `Runner.call`."""
    tree = ast.parse(source)
    lines = source.splitlines()
    kernels = _triton_kernels(tree)
    texts = {
        function.name: replace(_Reader(lines, kernels).read(function), kernels=kernels)
        for function in _functions(tree)
        if function.name == "call" or function.name.startswith("partition_")
    }
    if "call" in texts:
        texts["call"] = _with_partitions(texts["call"], list(texts.values()))
    return texts


def _with_partitions(call: FunctionText, texts: list[FunctionText]) -> FunctionText:
    """`call` with what the partitions that it calls allocate and call."""
    allocators = sorted({name for text in texts for name in text.allocators})
    calls = frozenset(name for text in texts for name in text.calls)
    return replace(call, allocators=tuple(allocators), calls=calls)


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions of the module, and methods of its classes (`Runner.call`)."""
    for statement in tree.body:
        for inner in statement.body if isinstance(statement, ast.ClassDef) else [statement]:
            if isinstance(inner, ast.FunctionDef):
                yield inner


def _triton_kernels(tree: ast.Module) -> frozenset[str]:
    """Names bound to the result of `async_compile.triton`."""
    return frozenset(
        target.id
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Call)
        and _dotted(statement.value.func) == "async_compile.triton"
        for target in statement.targets
        if isinstance(target, ast.Name)
    )


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All simple statements in the order of the text, those of `with` and `if` blocks included."""
    for statement in body:
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if any(blocks):
            if isinstance(statement, (ast.If, ast.While)):
                yield ast.copy_location(ast.Expr(statement.test), statement)
            for block in blocks:
                yield from _statements(block)
        else:
            yield statement


@dataclass
class _Reader:
    """Follows the names of a function's inputs, and of views of them, through its text."""

    lines: list[str]
    kernels: frozenset[str]
    roots: dict[str, frozenset[int]] = field(default_factory=dict)  # name -> the inputs whose memory it may be
    uses: dict[int, list[Use]] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)
    given: dict[ast.Call, dict[int | str, int]] = field(default_factory=dict)

    def read(self, function: ast.FunctionDef) -> FunctionText:
        inputs: tuple[str, ...] = ()
        for statement in _statements(function.body):
            if not inputs and _is_unpacking(statement):
                inputs = _names(statement)
                self.roots = {name: frozenset({position}) for position, name in enumerate(inputs)}
                self.uses = {position: [] for position in range(len(inputs))}
            elif not isinstance(statement, ast.Delete):
                self._follow(statement)
        return FunctionText(
            inputs=inputs,
            uses={position: tuple(dict.fromkeys(uses)) for position, uses in self.uses.items()},
            allocators=tuple(sorted(name for name in self.calls if name.startswith(_ALLOCATOR))),
            calls=frozenset(self.calls),
            given=tuple((_dotted(call.func), arguments) for call, arguments in self.given.items()),
        )

    def _follow(self, statement: ast.stmt) -> None:
        nodes = list(ast.walk(statement))
        self.calls.update(_dotted(node.func) for node in nodes if isinstance(node, ast.Call))
        found = [node for node in nodes if isinstance(node, ast.Name) and node.id in self.roots]
        if not found:
            return
        parents = {child: parent for parent in nodes for child in ast.iter_child_nodes(parent)}
        renamed: frozenset[int] = frozenset()  # what the assigned name is, is a view of, or is a list of
        for node in found:
            if not isinstance(node.ctx, ast.Load):
                continue
            use = self._use(node, parents, statement)
            if use is None or use.kind == "reused":
                renamed |= self.roots[node.id]
            if use is not None:
                for position in self.roots[node.id]:
                    self.uses[position].append(use)
        # Inductor never gives a name twice, so a name of an input stays one; what a partition passes through keeps it.
        if renamed and isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            self.roots[statement.targets[0].id] = renamed

    def _use(self, name: ast.Name, parents: dict[ast.AST, ast.AST], statement: ast.stmt) -> Use | None:
        """How `statement` uses the memory behind `name`; None if it only gives it another name."""
        inner: ast.AST = name
        outer = parents[name]
        while (
            isinstance(outer, (ast.Tuple, ast.List, ast.Starred, ast.keyword))
            or (isinstance(outer, ast.Call) and _dotted(outer.func) in _VIEWS and inner is not outer.func)
        ) and outer in parents:
            inner, outer = outer, parents[outer]
        if isinstance(outer, ast.Call) and inner is not outer.func:
            callee = _dotted(outer.func)
            kernel = callee.removesuffix(".run")
            if callee in _HARMLESS:
                return None
            if kernel != callee and kernel in self.kernels:
                return Use("triton", kernel, outer.args.index(inner) if inner in outer.args else None)
            self._note_given(name, outer, inner)
            return Use("extern", callee)
        if isinstance(statement, ast.Return):
            return Use("returned")
        if isinstance(statement, ast.Assign) and inner is statement.value:
            if self.lines[statement.lineno - 1].rstrip().endswith("# reuse"):
                return Use("reused", ast.unparse(statement.targets[0]))
            return None
        return Use("host", ast.unparse(outer))

    def _note_given(self, name: ast.Name, call: ast.Call, argument: ast.AST) -> None:
        place: int | str | None = None
        if isinstance(argument, ast.keyword):
            place = argument.arg
        elif argument in call.args:
            place = call.args.index(argument)
        if place is not None and len(self.roots[name.id]) == 1:
            self.given.setdefault(call, {})[place] = next(iter(self.roots[name.id]))


def _dotted(expression: ast.expr) -> str:
    """The text of an expression; fast for `a.b.c`, which is what calls are made of."""
    names = []
    inner = expression
    while isinstance(inner, ast.Attribute):
        names.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name):
        return ast.unparse(expression)
    return ".".join([inner.id, *reversed(names)])


def _is_unpacking(statement: ast.stmt) -> bool:
    """`arg0_1, arg1_1 = args`: the first statement of every generated function that has inputs."""
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name) and statement.value.id == "args"


def _names(statement: ast.stmt) -> tuple[str, ...]:
    """The plain names that an assignment binds."""
    if not isinstance(statement, ast.Assign):
        return ()
    return tuple(node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name))
