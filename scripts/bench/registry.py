"""What a workload is: its facts, how it is built at full or tiny size, and what one iteration does with fresh inputs.

The files in `workloads/` register here; everything that measures reads from here and knows no model.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

T = TypeVar("T")

SEED = 20250319


@dataclass(frozen=True)
class Setting:
    """The size, device and precision at which a workload is built."""

    device: torch.device
    batch: int
    dtype: torch.dtype
    autocast: torch.dtype | None
    tiny: bool

    def pick(self, full: T, tiny: T) -> T:
        """The full-size or the tiny value of a dimension."""
        return tiny if self.tiny else full

    def place(self, module: nn.Module, training: bool = False) -> Any:
        """The module where and how this setting wants it."""
        return module.to(self.device, self.dtype).train(training)


class Draw:
    """Fresh random tensors. Two draws with one seed give the same values at different addresses."""

    def __init__(self, setting: Setting, seed: int = SEED) -> None:
        self.device = setting.device
        self.dtype = setting.dtype
        self._here = torch.Generator(device=self.device).manual_seed(seed)
        self._host = torch.Generator().manual_seed(seed)

    def begin(self, seed: int) -> None:
        """From here on draw what every draw of that seed gives."""
        self._here.manual_seed(seed)
        self._host.manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, generator=self._here, device=self.device, dtype=dtype or self.dtype)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        values = torch.rand(shape, generator=self._here, device=self.device, dtype=dtype or self.dtype)
        return values * (high - low) + low

    def integers(self, high: int, *shape: int, low: int = 0) -> Tensor:
        return torch.randint(low, high, shape, generator=self._here, device=self.device)

    def host_integers(self, high: int, *shape: int, low: int = 0) -> Tensor:
        """Integers that stay on the host, as lengths and indices do in many models."""
        return torch.randint(low, high, shape, generator=self._host)

    def host_number(self, low: float, high: float) -> float:
        return float(torch.rand((), generator=self._host, dtype=torch.float64)) * (high - low) + low


def call_once(function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """The plainest iteration: one call without gradients."""
    with torch.no_grad():
        return function(*inputs)


def tensors_of(outputs: Any) -> list[Tensor]:
    """The tensors in whatever an iteration returned."""
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class Program:
    """A built workload.

    `function` is what gets compiled. `fresh` makes new inputs for one iteration. `drive` is the iteration as the user
    writes it around the (compiled) function. `observe` picks what is compared with eager from its result; `state` gives
    the memory that an iteration changes and that a comparison therefore saves and restores. It is asked each time, in
    one order: the tensors may be others by then (Dynamo moves an optimizer's step counts to the device, in new ones).
    """

    function: Callable[..., Any]
    fresh: Callable[[Draw], tuple[Any, ...]]
    drive: Callable[[Callable[..., Any], Sequence[Any]], Any] = call_once
    observe: Callable[[Any], list[Tensor]] = tensors_of
    state: Callable[[], Sequence[Tensor]] = tuple


@contextmanager
def preserved(program: Program) -> Iterator[None]:
    """Put the program's state back afterwards, so that every variant starts from the same one."""
    saved = [tensor.clone() for tensor in program.state()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(program.state(), saved, strict=True):
                tensor.copy_(value)


def training(
    module: nn.Module,
    fresh: Callable[[Draw], tuple[Any, ...]],
    setting: Setting,
    function: Callable[..., Tensor] | None = None,
) -> Program:
    """Forward, loss and backward with gradients made anew; the optimizer is a workload of its own."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def drive(call: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        for parameter in parameters:
            parameter.grad = None
        with amp(setting):
            loss = call(*inputs)
        loss.backward()
        return loss

    def observe(loss: Any) -> list[Tensor]:
        return [loss.detach(), *(p.grad for p in parameters if p.grad is not None)]

    return Program(function or module, fresh, drive, observe, lambda: tuple(module.buffers()))


def amp(setting: Setting) -> Any:
    """The autocast context of the setting, as the user writes it around the model."""
    if setting.autocast is None:
        return nullcontext()
    return torch.autocast(setting.device.type, setting.autocast)


@dataclass(frozen=True)
class Workload:
    """A workload's facts; `structure` says what about it matters for graphs."""

    name: str
    title: str
    suite: str
    mode: str
    batch: int
    precision: str
    structure: str
    build: Callable[[Setting], Program]
    source: str = "ours"
    needs: tuple[str, ...] = ()
    paper: bool = False
    tolerance: float | None = None
    tiny_batch: int = 2
    tags: frozenset[str] = field(default_factory=frozenset)

    def missing(self) -> list[str]:
        """Packages that this workload needs and that are not installed."""
        return [package for package in self.needs if importlib.util.find_spec(package) is None]

    def setting(self, device: torch.device, tiny: bool) -> Setting:
        """Tiny sizes are float32: their errors are strict and their C++ compiles quickly."""
        if tiny:
            return Setting(device, min(self.batch, self.tiny_batch), torch.float32, None, True)
        return Setting(device, self.batch, *self.dtypes(), False)

    def dtypes(self) -> tuple[torch.dtype, torch.dtype | None]:
        """What weights and inputs are at full size, and what autocast makes of them."""
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}
        return half.get(self.precision, torch.float32), torch.bfloat16 if self.precision == "amp" else None

    def program(self, device: torch.device, tiny: bool) -> tuple[Program, Setting]:
        """Build it, with the same weights every time."""
        setting = self.setting(device, tiny)
        torch.manual_seed(SEED)
        return self.build(setting), setting


_workloads: dict[str, Workload] = {}

Builder = Callable[[Setting], Program]


def workload(name: str, **facts: Any) -> Callable[[Builder], Builder]:
    """Register the decorated builder under a short name."""

    def register(build: Builder) -> Builder:
        if name in _workloads:
            raise ValueError(f"two workloads are called {name}")
        _workloads[name] = Workload(name=name, build=build, **facts)
        return build

    return register


def all_workloads() -> dict[str, Workload]:
    """Every workload by name, the paper's first."""
    from scripts.bench import workloads

    for module in pkgutil.iter_modules(workloads.__path__):
        importlib.import_module(f"{workloads.__name__}.{module.name}")
    return dict(sorted(_workloads.items(), key=lambda item: (not item[1].paper, item[0])))


def choose(
    names: Iterable[str] = (), suites: Iterable[str] = (), modes: Iterable[str] = (), tags: Iterable[str] = ()
) -> list[Workload]:
    """The workloads that fit every filter given; an unknown name is an error that lists the known ones.

    In the order of the names, if there are any.
    """
    known = all_workloads()
    wanted = [name.upper() for name in names]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"no workload called {', '.join(unknown)}; there are: {', '.join(known)}")
    suites, modes, tags = set(suites), set(modes), set(tags)
    return [
        w
        for w in ([known[name] for name in dict.fromkeys(wanted)] if wanted else known.values())
        if (not suites or w.suite.lower() in {s.lower() for s in suites})
        and (not modes or w.mode in modes)
        and (not tags or tags & w.tags or ("paper" in tags and w.paper))
    ]
