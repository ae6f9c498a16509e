"""Random programs that look like generated code, and random calls of them, as hypothesis strategies.

A program is a straight line of statements over numbered values; its inputs are windows into shared storages, so that
they may alias. A call says which storages moved and where the windows are this time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

STORAGE = 96  # elements of every storage behind inputs
F32 = torch.float32
DTYPES = [F32, F32, F32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64]


@dataclass(frozen=True)
class Shape:
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        count = 1
        for n in self.size:
            count *= n
        return count

    @property
    def span(self) -> int:
        if 0 in self.size:
            return 0
        return sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True)) + 1

    @property
    def overlaps_itself(self) -> bool:
        return any(stride == 0 and n > 1 for n, stride in zip(self.size, self.stride, strict=True))


SHAPES = [
    Shape((6,), (1,)),
    Shape((2, 3), (3, 1)),
    Shape((3, 2), (1, 3)),  # transposed
    Shape((2, 3), (8, 1)),  # with gaps
    Shape((3,), (2,)),
    Shape((), ()),
    Shape((0, 3), (3, 1)),
    Shape((1, 4, 1), (4, 1, 1)),
]
EXPANDED = Shape((2, 3), (0, 1))


@dataclass(frozen=True)
class Window:
    """An input: where it is in its storage, and whether it shares a version counter with that storage's others."""

    storage: int
    offset: int
    shape: Shape
    tracked: bool


@dataclass(frozen=True)
class Statement:
    op: str
    operands: tuple[int, ...] = ()
    shapes: tuple[Shape, ...] = ()
    dtype: torch.dtype = F32
    number: int = 0


@dataclass(frozen=True)
class Program:
    storages: tuple[torch.dtype, ...]
    windows: tuple[Window, ...]
    statements: tuple[Statement, ...]
    returned: tuple[int | None, ...]
    written: frozenset[int]  # the inputs that it writes directly
    declared: frozenset[int]


@dataclass(frozen=True)
class Call:
    moves: dict[int, int]  # storages that are elsewhere than in the call before -> elements into an aligned memory
    shifted: dict[int, int] = field(default_factory=dict)  # window -> elements by which it is shifted
    seed: int = 0
    keep: bool = True


@dataclass
class _Value:
    """What is known of a value while a program is drawn."""

    shape: Shape
    dtype: torch.dtype
    input: int | None = None  # the input whose memory it is
    fresh: bool = False  # memory of its own, no other value may see it partly
    alive: bool = True


class _Writer:
    """Draws statements that are well-typed in the values so far."""

    def __init__(self, draw: Any, windows: list[Window], storages: list[torch.dtype]) -> None:
        self._draw = draw
        self.values = [
            _Value(window.shape, storages[window.storage], input=position) for position, window in enumerate(windows)
        ]
        self.statements: list[Statement] = []
        self.written: set[int] = set()
        self.written_invisibly: set[int] = set()

    def pick(self, allowed: Any = lambda value: True) -> int | None:
        candidates = [n for n, value in enumerate(self.values) if value.alive and allowed(value)]
        return self._draw(st.sampled_from(candidates)) if candidates else None

    def _writable(self, value: _Value) -> bool:
        return not value.shape.overlaps_itself

    def _note_write(self, number: int, visible: bool) -> None:
        origin = self.values[number].input
        if origin is not None:
            self.written.add(origin)
            if not visible:
                self.written_invisibly.add(origin)

    def _add(self, statement: Statement, *made: _Value) -> None:
        self.statements.append(statement)
        self.values += made

    def fused(self) -> None:
        shape = self._draw(st.sampled_from(SHAPES))
        dtype = self._draw(st.sampled_from(DTYPES))
        sources = tuple(self._draw(st.lists(st.sampled_from(self.alive()), max_size=3)))
        self._add(Statement("fused", sources, (shape,), dtype), _Value(shape, dtype, fresh=True))

    def alive(self) -> list[int]:
        return [n for n, value in enumerate(self.values) if value.alive]

    def fused_in_place(self) -> None:
        target = self.pick(self._writable)
        if target is None:
            return
        sources = tuple(self._draw(st.lists(st.sampled_from(self.alive()), max_size=2)))
        self._note_write(target, visible=False)
        self._add(Statement("fused_in_place", (target, *sources)))

    def in_place(self) -> None:
        target = self.pick(lambda v: self._writable(v) and v.dtype not in (torch.bool, torch.int64))
        if target is None:
            return
        number = self._draw(st.integers(0, 3))
        self._note_write(target, visible=number == ADD)
        self._add(Statement("in_place", (target,), number=number))

    def extern_out(self) -> None:
        source = self.pick(lambda v: v.dtype in (F32, torch.float64))
        if source is None:
            return
        value = self.values[source]
        kind = self._draw(st.sampled_from(["mul", "matrix"]))
        if kind == "matrix" and len(value.shape.size) == 2:
            rows = value.shape.size[0]
            made = Shape((rows, rows), (rows, 1))
            self._add(Statement("matrix", (source,), (made,), value.dtype), _Value(made, value.dtype, fresh=True))
        else:
            made = Shape(value.shape.size, torch.empty(value.shape.size, device="meta").stride())
            self._add(Statement("mul", (source,), (made,), value.dtype), _Value(made, value.dtype, fresh=True))

    def extern_alloc(self) -> None:
        source = self.pick(lambda v: v.dtype in (F32, torch.int64) and v.shape.numel >= 3)
        if source is None:
            return
        value = self.values[source]
        line = Shape((value.shape.numel,), (1,))
        kind = self._draw(st.sampled_from(["sort", "cumsum", "cat", "clone", "zeros", "copy"]))
        if kind == "sort":
            made = [_Value(line, value.dtype, fresh=True), _Value(line, torch.int64, fresh=True)]
        elif kind == "cat":
            made = [_Value(Shape((2 * value.shape.numel,), (1,)), value.dtype, fresh=True)]
        else:
            made = [_Value(line, value.dtype, fresh=True)]
        self._add(Statement(kind, (source,), (line,), value.dtype), *made)

    def random(self) -> None:
        shape = self._draw(st.sampled_from(SHAPES[:2]))
        self._add(Statement("random", shapes=(shape,), dtype=torch.int64), _Value(shape, torch.int64, fresh=True))

    def view(self) -> None:
        source = self.pick(lambda v: v.shape.span >= 3)
        if source is None:
            return
        value = self.values[source]
        length = self._draw(st.integers(1, value.shape.span))
        offset = self._draw(st.integers(0, value.shape.span - length))
        # A window of a tensor with gaps covers the gaps: what is there is its storage's business.
        shape = Shape((length,), (1,))
        if value.shape.span != value.shape.numel:
            return
        self._add(Statement("view", (source,), (shape,), number=offset), _Value(shape, value.dtype, value.input))

    def drop(self) -> None:
        number = self.pick()
        if number is not None and len(self.alive()) > 1:
            self.values[number].alive = False
            self._add(Statement("drop", (number,)))


_STATEMENTS = ["fused"] * 4 + ["fused_in_place", "in_place", "extern_out", "extern_alloc", "extern_alloc", "random"]
_STATEMENTS += ["view", "view", "drop", "drop"]


@st.composite
def windows(draw: Any, storages: list[torch.dtype]) -> list[Window]:
    result = []
    for _ in range(draw(st.integers(1, 5))):
        shape = draw(st.sampled_from([*SHAPES, EXPANDED]))
        # Multiples of 16 elements are as aligned as an allocation; the rest is misaligned, or overlaps partly.
        offset = draw(st.sampled_from([0, 0, 16, 32, 48, 1, 3, 18]))
        result.append(Window(draw(st.integers(0, len(storages) - 1)), offset, shape, draw(st.booleans())))
    return result


@st.composite
def programs(draw: Any) -> Program:
    """A program with one to five inputs and up to twelve statements."""
    storages = draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4))
    inputs = draw(windows(storages))
    writer = _Writer(draw, inputs, storages)
    for kind in draw(st.lists(st.sampled_from(_STATEMENTS), min_size=2, max_size=12)):
        getattr(writer, kind)()
    candidates: list[int | None] = [*writer.alive(), None]
    returned = draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=6))
    written = frozenset(writer.written)
    # A write that is not declared is found by what it changes: one that leaves the values as they are cannot be.
    visible = sorted(written - writer.written_invisibly)
    forgotten = draw(st.sets(st.sampled_from(visible))) if visible and draw(st.booleans()) else set()
    return Program(
        tuple(storages), tuple(inputs), tuple(writer.statements), tuple(returned), written, written - forgotten
    )


@st.composite
def calls(draw: Any, program: Program) -> list[Call]:
    """Five to seven calls: some storages move, sometimes a window shifts within its storage."""
    result = []
    for number in range(draw(st.integers(5, 7))):
        moved = draw(st.sets(st.integers(0, len(program.storages) - 1)))
        moves = {storage: draw(st.sampled_from([0, 0, 0, 0, 0, 16, 1, 4])) for storage in sorted(moved)}
        shifted = {}
        if number >= 3 and draw(st.integers(0, 3)) == 0:
            window = draw(st.integers(0, len(program.windows) - 1))
            shifted = {window: draw(st.sampled_from([16, 2, 5]))}
        result.append(Call(moves, shifted, draw(st.integers(0, 1000)), draw(st.booleans())))
    return result


_IN_PLACE = (
    lambda target: target.mul_(0.5),
    lambda target: target.zero_(),
    lambda target: target.fill_(2.5),
    lambda target: target.add_(1),
)
ADD = 3


def body_of(program: Program) -> Any:
    """The program as a Python function of a module's globals and the inputs."""

    def body(names: dict[str, Any], *inputs: torch.Tensor) -> tuple[Any, ...]:
        values: list[Any] = list(inputs)
        for statement in program.statements:
            _run(statement, names, values)
        return tuple(None if number is None else values[number] for number in program.returned)

    return body


def _run(statement: Statement, names: dict[str, Any], values: list[Any]) -> None:
    operands = [values[number] for number in statement.operands]
    empty = lambda: names["empty_strided_cpu"](statement.shapes[0].size, statement.shapes[0].stride, statement.dtype)
    match statement.op:
        case "fused":
            values.append(empty())
            names["cpp_fused_0"](values[-1], *operands)
        case "fused_in_place":
            names["cpp_fused_0"](*operands)
        case "in_place":
            _IN_PLACE[statement.number](operands[0])
        case "mul":
            values.append(empty())
            torch.mul(operands[0], 3, out=values[-1])
        case "matrix":
            values.append(empty())
            torch.mm(operands[0], operands[0].t(), out=values[-1])
        case "sort":
            values += torch.ops.aten.sort.default(operands[0].reshape(-1))
        case "cumsum":
            values.append(torch.ops.aten.cumsum.default(operands[0].reshape(-1), 0, dtype=statement.dtype))
        case "cat":
            flat = operands[0].reshape(-1)
            values.append(torch.ops.aten.cat.default([flat, flat]))
        case "clone":
            values.append(torch.ops.aten.clone.default(operands[0].reshape(-1)))
        case "zeros":
            values.append(torch.ops.aten.zeros.default(statement.shapes[0].size, dtype=statement.dtype))
        case "copy":
            values.append(empty())
            values[-1].copy_(operands[0].reshape(-1))
        case "random":
            values.append(empty())
            torch.ops.aten.randint.low_out(-50, 50, list(statement.shapes[0].size), out=values[-1])
        case "view":
            shape = statement.shapes[0]
            values.append(names["reinterpret_tensor"](operands[0], shape.size, shape.stride, statement.number))
        case "drop":
            values[statement.operands[0]] = None


def traceable(program: Program) -> Any:
    """The program in operators that a compiler can trace; its statements mean something similar."""

    def function(*inputs: torch.Tensor) -> tuple[Any, ...]:
        values: list[Any] = list(inputs)
        for statement in program.statements:
            _trace(statement, values)
        return tuple(None if number is None else values[number] for number in program.returned)

    return function


def _mixed(shape: Shape, sources: list[torch.Tensor]) -> torch.Tensor:
    total = torch.arange(shape.numel, dtype=torch.float64)
    for number, source in enumerate(sources):
        flat = source.reshape(-1)
        flat = (flat.abs() if flat.is_complex() else flat).to(torch.float64)
        if flat.numel():
            total = total + flat.sum() * 0.25 + flat[(torch.arange(shape.numel) + number) % flat.numel()]
    return total.remainder(97).reshape(shape.size)


def _trace(statement: Statement, values: list[Any]) -> None:
    operands = [values[number] for number in statement.operands]
    match statement.op:
        case "fused":
            values.append(_mixed(statement.shapes[0], operands).to(statement.dtype))
        case "fused_in_place":
            target = operands[0]
            target.copy_(_mixed(Shape(tuple(target.size()), target.stride()), operands))
        case "in_place":
            _IN_PLACE[statement.number](operands[0])
        case "mul":
            values.append(operands[0] * 3)
        case "matrix":
            values.append(operands[0] @ operands[0].t())
        case "sort":
            values += torch.sort(operands[0].reshape(-1))
        case "cumsum":
            values.append(operands[0].reshape(-1).cumsum(0, dtype=statement.dtype))
        case "cat":
            values.append(torch.cat([operands[0].reshape(-1)] * 2))
        case "clone" | "copy":
            values.append(operands[0].reshape(-1).clone())
        case "zeros":
            values.append(torch.zeros(statement.shapes[0].size, dtype=statement.dtype))
        case "random":
            values.append(torch.randint(-50, 50, statement.shapes[0].size))
        case "view":
            length = statement.shapes[0].size[0]
            values.append(operands[0].reshape(-1)[statement.number : statement.number + length])
        case "drop":
            values[statement.operands[0]] = None
