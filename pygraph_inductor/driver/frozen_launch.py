"""Launches of the simulated device: parameters become bytes at capture, and tensors again from those bytes at replay.

A launch keeps no tensor, only addresses and, aside, what a kernel's code would know: sizes, strides, dtypes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from pygraph_inductor.driver.arena import span_of
from pygraph_inductor.driver.protocol import NodeKind

WORD = 8


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Run operators as a device would: unseen by the caller's modes, autograd and autocast.

    Tensors made here are ordinary ones even if the caller is in inference mode, since they are used in later calls.
    """
    with (
        torch.inference_mode(False),
        torch._C._DisableTorchDispatch(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableAutocast(),
        torch._C._AutoDispatchBelowAutograd(),
    ):
        yield


def tensor_at(
    address: int, nbytes: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor over memory that somebody else owns."""
    storage = torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), nbytes)
    return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(size), tuple(stride))


def same_generator(one: torch.Generator, other: torch.Generator) -> bool:
    """The dispatcher hands out another Python object for the same generator."""
    return one._cdata == other._cdata  # type: ignore[attr-defined]


class Parameter(Protocol):
    """What is known about a parameter besides its bytes. Compared between two captures."""

    nbytes: int

    def freeze(self, value: Any) -> bytes: ...

    def thaw(self, content: bytes) -> Any: ...


@dataclass(frozen=True)
class TensorParameter:
    """The address of the first element, in 8 bytes."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_conj: bool = False
    is_neg: bool = False
    nbytes = WORD

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorParameter:
        return TensorParameter(
            tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype, tensor.is_conj(), tensor.is_neg()
        )

    @property
    def span(self) -> int:
        return span_of(self.size, self.stride, self.dtype.itemsize)

    def freeze(self, value: torch.Tensor) -> bytes:
        return value.data_ptr().to_bytes(WORD, "little")

    def thaw(self, content: bytes) -> torch.Tensor:
        tensor = tensor_at(int.from_bytes(content, "little"), self.span, self.size, self.stride, self.dtype)
        tensor = torch._neg_view(tensor) if self.is_neg else tensor
        return tensor.conj() if self.is_conj else tensor


@dataclass(frozen=True)
class Indirect:
    """An argument whose address the kernel shall find in `entry`, an int64 tensor of one element."""

    entry: torch.Tensor
    tensor: torch.Tensor  # as it is at capture: what the kernel's code knows of it


@dataclass(frozen=True)
class IndirectParameter:
    """The address of the entry, in 8 bytes. Where the tensor is, a launch reads when it runs."""

    tensor: TensorParameter
    nbytes = WORD

    def freeze(self, value: Indirect) -> bytes:
        return value.entry.data_ptr().to_bytes(WORD, "little")

    def thaw(self, content: bytes) -> Callable[[], torch.Tensor]:
        entry = int.from_bytes(content, "little")
        return lambda: self.tensor.thaw(ctypes.string_at(entry, WORD))


@dataclass(frozen=True)
class ScalarParameter:
    """An int or a float, in 8 bytes."""

    code: str
    nbytes = WORD

    def freeze(self, value: Any) -> bytes:
        return struct.pack(self.code, value)

    def thaw(self, content: bytes) -> Any:
        return struct.unpack(self.code, content)[0]


@dataclass(frozen=True, eq=False)
class HiddenParameter:
    """A parameter kept where nobody looks for addresses, as a table in device memory would be (fault injection)."""

    parameter: Parameter
    content: bytes
    nbytes = 0

    def freeze(self, value: Any) -> bytes:
        return b""

    def thaw(self, content: bytes) -> Any:
        return self.parameter.thaw(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HiddenParameter) and self.parameter == other.parameter

    def __hash__(self) -> int:
        return hash(self.parameter)


@dataclass(frozen=True, eq=False)
class ConstantParameter:
    """What has no bytes of its own: names, flags, generators, packed weights."""

    value: Any
    nbytes = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConstantParameter) or type(self.value) is not type(other.value):
            return False
        if isinstance(self.value, torch.Generator):
            return same_generator(self.value, other.value)
        # Tensors compare element by element, and the opaque ones among them not at all.
        return self.value is other.value or (not isinstance(self.value, torch.Tensor) and self.value == other.value)

    def __hash__(self) -> int:
        return hash(type(self.value))

    def freeze(self, value: Any) -> bytes:
        return b""

    def thaw(self, content: bytes) -> Any:
        return self.value


_INT = ScalarParameter("<q")
_FLOAT = ScalarParameter("<d")


def parameter_for(value: Any) -> Parameter:
    """How one argument is kept."""
    if isinstance(value, Indirect):
        return IndirectParameter(TensorParameter.of(value.tensor))
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu":
        return TensorParameter.of(value)
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return _INT
    if type(value) is float:
        return _FLOAT
    return ConstantParameter(value)


@dataclass(frozen=True)
class Launch:
    """A node's work: the bytes it was captured with, and how to bind bytes to something that can be run."""

    kind: NodeKind
    name: str
    areas: tuple[bytes, ...]
    identity: tuple[Any, ...]
    bind: Callable[[Sequence[bytes]], Callable[[], None]]


def kernel_launch(
    name: str,
    kernel: Callable[..., None],
    values: Sequence[Any],
    identity: tuple[Any, ...] = (),
    hides: Callable[[int], bool] = lambda number: False,
) -> Launch:
    """`kernel(*values)`, one area for each value that has bytes. `hides(n)`: keep the n-th value out of the areas."""
    parameters: list[Parameter] = []
    for number, value in enumerate(values):
        parameter = parameter_for(value)
        if hides(number):
            parameter = HiddenParameter(parameter, parameter.freeze(value))
        parameters.append(parameter)
    areas = tuple(p.freeze(value) for p, value in zip(parameters, values, strict=True) if p.nbytes)

    def bind(contents: Sequence[bytes]) -> Callable[[], None]:
        remaining = iter(contents)
        # One object for one tensor that is passed twice, as the operator had it.
        thawed: dict[tuple[Parameter, bytes], Any] = {}
        arguments = []
        for parameter in parameters:
            content = next(remaining) if parameter.nbytes else b""
            if isinstance(parameter, TensorParameter):
                if (parameter, content) not in thawed:
                    thawed[parameter, content] = parameter.thaw(content)
                arguments.append(thawed[parameter, content])
            else:
                arguments.append(parameter.thaw(content))
        late = frozenset(n for n, parameter in enumerate(parameters) if isinstance(parameter, IndirectParameter))
        if late:
            return functools.partial(_run_indirectly, kernel, arguments, late)
        return functools.partial(kernel, *arguments)

    return Launch(NodeKind.KERNEL, name, areas, (*identity, *parameters), bind)


def _run_indirectly(kernel: Callable[..., None], arguments: Sequence[Any], late: frozenset[int]) -> None:
    kernel(*(value() if number in late else value for number, value in enumerate(arguments)))


def operator_launch(
    name: str,
    operator: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fresh: dict[int, torch.Tensor],
    hides: Callable[[int], bool],
) -> Launch:
    """Call `operator` and copy what it allocates itself, its flat results at `fresh`, to where the capture put it."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places, count = tuple(fresh), len(leaves)

    def run(*values: Any) -> None:  # holds no tensor: memory that the capture freed must become free
        arguments, keywords = pytree.tree_unflatten(list(values[:count]), spec)
        produced = pytree.tree_leaves(operator(*arguments, **keywords))
        for place, target in zip(places, values[count:], strict=True):
            target.copy_(produced[place])

    return kernel_launch(name, run, [*leaves, *fresh.values()], (operator, spec, places), hides)


def memcpy_launch(destination: int, source: int, nbytes: int) -> Launch:
    """Copy bytes: one area of 16 bytes, destination then source."""

    def bind(contents: Sequence[bytes]) -> Callable[[], None]:
        to, origin = struct.unpack("<QQ", contents[0])
        return functools.partial(_move, to, origin, nbytes)

    return Launch(NodeKind.MEMCPY, "memcpy", (struct.pack("<QQ", destination, source),), (nbytes,), bind)


def _move(destination: int, source: int, nbytes: int) -> None:
    ctypes.memmove(destination, source, nbytes)


def _fill(target: torch.Tensor, value: Any) -> None:
    target.fill_(value)


def memset_launch(destination: int, numel: int, dtype: torch.dtype, value: Any) -> Launch:
    """Fill contiguous memory with one element: one area of 8 bytes, the destination."""
    parameter = TensorParameter((numel,), (1,), dtype)

    def bind(contents: Sequence[bytes]) -> Callable[[], None]:
        return functools.partial(_fill, parameter.thaw(contents[0]), value)

    area = destination.to_bytes(WORD, "little")
    return Launch(NodeKind.MEMSET, "memset", (area,), (numel, dtype, repr(value)), bind)


def of_unknown_kind(launch: Launch) -> Launch:
    """The same work as a node whose parameters nobody can read (fault injection)."""
    return Launch(NodeKind.OTHER, launch.name, (), (), lambda contents: launch.bind(launch.areas))
