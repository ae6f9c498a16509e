"""The inside of a simulated capture: what generated code launches becomes nodes, and nothing executes.

Launches are caught at two doors: compiled C++ kernels are called through the globals of the generated module, every
other operator passes the dispatcher. Views and other host-side work run; memory comes from a pool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pygraph_inductor.driver.arena import MemoryPool
from pygraph_inductor.driver.frozen_launch import (
    Indirect,
    Launch,
    TensorParameter,
    kernel_launch,
    memcpy_launch,
    memset_launch,
    of_unknown_kind,
    operator_launch,
    same_generator,
)
from pygraph_inductor.driver.protocol import TWIN, Node

aten = torch.ops.aten


class NotPermitted(RuntimeError):
    """What a device answers to work that a graph cannot hold."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"operation not permitted when stream is capturing: {reason}")


@dataclass(frozen=True)
class Operator:
    """What an operator's schema says."""

    is_view: bool  # of its argument's memory, or of its argument in place
    writes: tuple[tuple[int, str], ...]  # position and name of the arguments it writes
    returns_argument: tuple[int | None, ...]  # per result: the index in `writes` that is handed back
    has_tensor_results: bool


@functools.cache
def described(func: torch._ops.OpOverload) -> Operator:
    """Read the schema once per operator."""
    schema = func._schema
    writes = []
    sets: list[set[str]] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes.append((position, argument.name))
            sets.append(argument.alias_info.before_set)
    returns_argument: list[int | None] = []
    for result in schema.returns:
        alias = result.alias_info
        returns_argument.append(sets.index(alias.before_set) if alias is not None and alias.is_write else None)
    is_view = not writes and any(result.alias_info is not None for result in schema.returns)
    is_view = is_view or torch.Tag.inplace_view in func.tags
    has_tensors = any("Tensor" in str(result.type) for result in schema.returns)
    return Operator(is_view, tuple(writes), tuple(returns_argument), has_tensors)


# Host-side work although the schema does not say so: metadata of tensors, their storages, or the profiler.
_ON_HOST_NAMESPACES = ("profiler", "prim")
_ON_HOST = {
    "aten::set_",
    "aten::is_same_size",
    "aten::is_pinned",
    "aten::sym_size",
    "aten::sym_stride",
    "aten::sym_numel",
    "aten::sym_storage_offset",
    "aten::_assert_scalar",
    "aten::record_stream",
    "inductor::_alloc_from_pool",
    "inductor::_reinterpret_tensor",
}
_PACKED = torch._mkldnn  # type: ignore[attr-defined]  # weights that the compiler packed: opaque constants
_RESIZES_STORAGE = {"inductor::resize_storage_bytes_"}
_ALLOCATE = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"}
_FILL = {
    aten.zeros.default: 0,
    aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
    aten.ones.default: 1,
    aten.ones_like.default: 1,
    aten.new_ones.default: 1,
}
_READS_ON_HOST = (
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
    torch.Tensor.__reduce_ex__,
)


def _never(*_: Any) -> bool:
    return False


@dataclass
class Faults:
    """What a test wants to go wrong, as it can on a real device."""

    # (name of the node, number of the argument): the argument's address is kept outside the node's parameters.
    hides: Callable[[str, int], bool] = _never
    # (name of the node): the node is of a type that we do not know.
    unknown: Callable[[str], bool] = _never
    # (name of the node): it is inside a child graph.
    inside: Callable[[str], bool] = _never
    # (name of the node): it is in the body of a conditional node, and replays come to it while `taken` says so. If it
    # is of a type that we do not know besides, it stands for a conditional node whose body nobody can look into.
    conditional: Callable[[str], bool] = _never
    taken: bool = True
    # (the node): the device does not accept new parameters for it.
    refuses: Callable[[Node], bool] = _never
    # (name of the operator) -> bytes that it allocates, writes to and drops before it allocates what it returns.
    workspace: Callable[[str], int] = _never


class Recorder:
    """The nodes of one capture, and why it is broken if it is."""

    def __init__(self, pool: MemoryPool, generators: Sequence[torch.Generator], faults: Faults) -> None:
        self.launches: list[Launch] = []
        # Constants that the host made during the capture: their memory belongs to the graph.
        self.constants: list[torch.Tensor] = []
        self.broken: NotPermitted | None = None
        self._pool = pool
        self._generators = (torch.default_generator, *generators)
        self._faults = faults
        self._fake = FakeTensorMode(allow_fallback_kernels=False)

    def refuse(self, reason: str) -> None:
        """Break the capture: later calls may still come, the result is void."""
        self.broken = self.broken or NotPermitted(reason)
        raise NotPermitted(reason)

    def allocate(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """What `empty_strided_cpu` answers during the capture."""
        with torch._C._DisableTorchDispatch():
            return self._pool.empty_strided(size, stride, dtype)

    def kernel(self, name: str, kernel: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """A compiled kernel was called."""
        with torch._C.DisableTorchFunction():
            name = name + TWIN if any(isinstance(value, Indirect) for value in args) else name
            self._add(kernel_launch(name, kernel, args, (kernel,), functools.partial(self._faults.hides, name)))

    def _add(self, launch: Launch) -> None:
        self.launches.append(of_unknown_kind(launch) if self._faults.unknown(launch.name) else launch)

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator was called."""
        if not isinstance(func, torch._ops.OpOverload):
            self.refuse(f"{func} is not an operator of one device")
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        operator = described(func)
        if self._is_host_work(func, operator, tensors):
            return func(*args, **kwargs)
        for tensor in tensors:
            if tensor.device.type != "cpu" or tensor.layout not in (torch.strided, _PACKED):
                self.refuse(f"{func} takes a {tensor.layout} tensor on {tensor.device}")
        if tensors and not operator.has_tensor_results and func._schema.returns:
            self.refuse(f"{func} reads a tensor on the host")
        if func is aten.lift_fresh.default:
            return self._keep_constant(args[0])
        if func._schema.name in _RESIZES_STORAGE:
            self.refuse(f"{func} resizes a storage on the host")
        if func._schema.name == "aten::resize_":
            return self._resize(args[0], args[1])
        return self._device_work(func, operator, args, kwargs)

    def _is_host_work(self, func: torch._ops.OpOverload, operator: Operator, tensors: list[torch.Tensor]) -> bool:
        if func is aten.lift_fresh.default:
            return False
        if func._schema.name == "aten::resize_":
            return False
        if operator.is_view or func._schema.name in _ON_HOST or func.namespace in _ON_HOST_NAMESPACES:
            return True
        return not tensors and not operator.has_tensor_results

    def _keep_constant(self, constant: torch.Tensor) -> torch.Tensor:
        # Not in the pool: it is written now, and nodes before this one may use the same block in every replay.
        self.constants.append(constant.clone())
        return self.constants[-1]

    def _resize(self, tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
        self._move(tensor, torch.empty(tuple(size), dtype=tensor.dtype, device="meta"))
        return tensor

    def _move(self, tensor: torch.Tensor, like: torch.Tensor) -> None:
        """Resize an output as an operator would: within its storage if it fits, else into new memory."""
        memory = self._pool.empty_strided(like.size(), like.stride(), like.dtype)
        fits = TensorParameter.of(memory).span <= tensor.untyped_storage().nbytes()
        storage = tensor.untyped_storage() if fits else memory.untyped_storage()
        tensor.set_(storage, tensor.storage_offset() if fits else 0, like.size(), like.stride())

    def _device_work(
        self, func: torch._ops.OpOverload, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._check_generators(args, kwargs)
        real_leaves, spec = pytree.tree_flatten((args, kwargs))
        with self._fake:
            fake_leaves = [_fake_of(leaf, self._fake) for leaf in real_leaves]
            fake_args, fake_kwargs = pytree.tree_unflatten(fake_leaves, spec)
            fake_result = self._fake_run(func, operator, fake_args, fake_kwargs)
        for real, fake in zip(real_leaves, fake_leaves, strict=True):
            if isinstance(real, torch.Tensor) and operator.writes and real.size() != fake.size():
                self._move(real, fake)
        written = [_argument(position, name, args, kwargs) for position, name in operator.writes]
        flat, result_spec = pytree.tree_flatten(fake_result)
        pairs = [pair for pair in zip(fake_leaves, real_leaves, strict=True) if isinstance(pair[0], torch.Tensor)]
        self._use_workspace(self._faults.workspace(str(func)))
        fresh: dict[int, torch.Tensor] = {}
        results = [self._result(place, fake, pairs, fresh) for place, fake in enumerate(flat)]
        if fresh or operator.writes or not operator.has_tensor_results:
            self._launch(func, args, kwargs, fresh)
        if operator.writes and not fresh:
            return _handed_back(operator, written)
        return pytree.tree_unflatten(results, result_spec)

    def _use_workspace(self, nbytes: int) -> None:
        if nbytes:
            memory = self._pool.empty_strided((nbytes,), (1,), torch.uint8)
            self._add(memset_launch(memory.data_ptr(), nbytes, torch.uint8, 0x77))

    def _fake_run(
        self, func: torch._ops.OpOverload, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            self.refuse(f"what {func} returns depends on data")
        except (UnsupportedOperatorException, NotImplementedError):
            if any(index is None for index in operator.returns_argument):
                self.refuse(f"{func} cannot say what it returns without running")
        return None

    def _result(
        self,
        place: int,
        fake: Any,
        arguments: Sequence[tuple[torch.Tensor, torch.Tensor]],
        fresh: dict[int, torch.Tensor],
    ) -> Any:
        """The tensor that stands for one result: an argument handed back, a view of one, or new memory."""
        if not isinstance(fake, torch.Tensor):
            return fake
        for fake_argument, argument in arguments:
            if fake is fake_argument:
                return argument
            if fake.untyped_storage()._cdata == fake_argument.untyped_storage()._cdata:
                # aten._unsafe_view and its like are views whatever their schemas say.
                offset = argument.storage_offset() + fake.storage_offset()
                return argument.as_strided(fake.size(), fake.stride(), offset)
        fresh[place] = self._pool.empty_strided(fake.size(), fake.stride(), fake.dtype)
        return fresh[place]

    def _check_generators(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Generator) and not any(same_generator(leaf, it) for it in self._generators):
                self.refuse("a random generator is not registered with the capture")

    def _launch(
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fresh: dict[int, torch.Tensor],
    ) -> None:
        if func._schema.name in _ALLOCATE:
            return
        launch = _as_memset(func, args, kwargs, fresh) or _as_memcpy(func, args, fresh)
        if launch is None:
            name = str(func)
            launch = operator_launch(name, func, args, kwargs, fresh, functools.partial(self._faults.hides, name))
        self._add(launch)


def _fake_of(leaf: Any, mode: FakeTensorMode) -> Any:
    """A tensor without data that an operator treats as it would treat this one."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.layout is _PACKED:
        return mode.from_tensor(leaf)
    fake = torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    fake = torch._neg_view(fake) if leaf.is_neg() else fake
    return fake.conj() if leaf.is_conj() else fake


def _argument(position: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[position] if position < len(args) else kwargs.get(name)


def _handed_back(operator: Operator, written: Sequence[Any]) -> Any:
    """What an in-place or out= operator returns: the very arguments that it wrote."""
    results = tuple(written[index] if index is not None else None for index in operator.returns_argument)
    if not results:
        return None
    return results[0] if len(results) == 1 else results


def _as_memset(
    func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], fresh: dict[int, torch.Tensor]
) -> Launch | None:
    """Filling contiguous memory is a MEMSET node."""
    if func in _FILL:
        target, value = fresh[0], _FILL[func]
    elif func is aten.zero_.default:
        target, value = args[0], 0
    elif func is aten.fill_.Scalar:
        target, value = args[0], args[1]
    elif func is aten.full.default:
        target, value = fresh[0], args[1]
    else:
        return None
    plain = target.is_contiguous() and not target.is_conj() and not target.is_neg() and target.numel()
    return memset_launch(target.data_ptr(), target.numel(), target.dtype, value) if plain else None


def _as_memcpy(func: torch._ops.OpOverload, args: tuple[Any, ...], fresh: dict[int, torch.Tensor]) -> Launch | None:
    """Copying dense memory to memory of the same layout is a MEMCPY node."""
    if func is aten.copy_.default:
        target, source = args[:2]
    elif func is aten.clone.default:
        target, source = fresh[0], args[0]
    else:
        return None
    to, origin = TensorParameter.of(target), TensorParameter.of(source)
    if to != origin or to.span != target.numel() * target.itemsize or to.span == 0:
        return None
    return memcpy_launch(target.data_ptr(), source.data_ptr(), to.span)


class OperatorMode(TorchDispatchMode):
    """The door of the dispatcher."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            return self._recorder.operator(func, args, kwargs or {})


class HostReadMode(TorchFunctionMode):
    """Refuses what reads a tensor's data on the host without passing the dispatcher."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _READS_ON_HOST:
            self._recorder.refuse(f"{func.__name__} reads a tensor on the host")
        return func(*args, **(kwargs or {}))
