"""A function that does nothing but hand its inputs to kernels, timed with each engine on the way that real calls go.

What engines cost is differences of microseconds, and a machine is slower for a while now and then. So cases take turns:
what belongs to one round is a few milliseconds apart, and differences are taken within rounds.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pygraph_inductor.driver.protocol import ChooseEntries, Driver, no_collection
from pygraph_inductor.selection.cost_model import PATCH

SMALL = 1 << 10  # elements, 4 bytes each
_ELEMENTS = 32  # that a kernel touches
_WARM = 10  # calls before a case takes part: the first ones record
_SETTLE = 2  # calls of a turn before it is timed, which find the caches that others left
_TIMED = 5  # calls of a turn


@dataclass(frozen=True)
class Case:
    """Calls of a function each of whose `slots` inputs, of so many elements, is used by so many kernels of its own.

    `moving`: the inputs are elsewhere in each call. `native`: the launcher in C answers, if there is one.
    """

    engine: str
    kernels: int
    slots: int = 1
    size: int = SMALL
    moving: bool = False
    native: bool = True

    @property
    def still(self) -> Case:
        """The case that this one is held against: the same kernels, nothing is copied, found in a table or moves."""
        return Case(PATCH, self.kernels, self.slots, self.size)


@dataclass
class _Taking:
    """A case that takes turns, and its times."""

    call: Callable[[list[Any]], Any]
    sets: Sequence[Sequence[Any]]  # of inputs
    calls: int = 0
    times: list[float] = field(default_factory=list)


class Turns:
    """Times cases in turns. A context: what was recorded for it goes at its end."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stack = contextlib.ExitStack()
        self._probes: dict[tuple[Any, ...], Callable[[list[Any]], Any]] = {}
        self._inputs: dict[tuple[int, int], list[list[Any]]] = {}
        self._taking: dict[Case, _Taking] = {}
        self.rounds = 0

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        self._taking.clear()
        self._probes.clear()
        self._inputs.clear()
        self._stack.close()

    def add(self, case: Case) -> None:
        """Record a case, unless it is there already. All cases are added before the first round."""
        if case in self._taking:
            return
        key = (case.engine, case.kernels, case.slots, case.size, case.native)
        if key not in self._probes:
            probe = _Probe(self._driver, case.engine, case.kernels, case.native)
            self._probes[key] = self._stack.enter_context(probe)
        one = _Taking(self._probes[key], self._sets(case))
        self._taking[case] = one
        for _ in range(_WARM):
            self._timed(one)

    def round(self) -> None:
        """A turn for each case. Every other time backwards, so that none always follows the same one."""
        order = list(self._taking.values())
        if self.rounds % 2:
            order.reverse()
        with no_collection():
            for one in order:
                times = [self._timed(one) for _ in range(_SETTLE + _TIMED)]
                one.times.append(statistics.median(times[_SETTLE:]))
        self.rounds += 1

    def times(self, case: Case) -> Sequence[float]:
        """The times of its calls from submission to end, in µs: for each round the median."""
        return self._taking[case].times

    def differences(self, case: Case, other: Case) -> list[float]:
        """For each round, how much longer the calls of one case took than those of the other."""
        return [a - b for a, b in zip(self.times(case), self.times(other), strict=True)]

    def _sets(self, case: Case) -> Sequence[Sequence[Any]]:
        sets = self._inputs.setdefault((case.slots, case.size), [])
        count = 2 if case.moving else 1
        while len(sets) < count:
            number = len(sets)
            sets.append(
                [self._driver.empty((case.size,), (1,), torch.float32).fill_(number) for _ in range(case.slots)]
            )
        return sets[:count]

    def _timed(self, one: _Taking) -> float:
        arguments = list(one.sets[one.calls % len(one.sets)])
        one.calls += 1
        self._wait()
        start = time.perf_counter_ns()
        one.call(arguments)
        self._wait()
        return (time.perf_counter_ns() - start) / 1e3

    def _wait(self) -> None:
        if self._driver.device.type == "cuda":
            torch.cuda.synchronize(self._driver.device)


class _Probe:
    """The function of a case, recorded with its engine."""

    def __init__(self, driver: Driver, engine: str, kernels: int, native: bool) -> None:
        from pygraph_inductor.recording.facts import Facts
        from pygraph_inductor.recording.function import RecordedFunction
        from pygraph_inductor.settings import Settings

        on_device = driver.device.type == "cuda"
        allocator = f"empty_strided_{driver.device.type}"
        touch = _Touch(driver.device.index) if on_device else _touched
        self._namespace: dict[str, Any] = {allocator: driver.empty, "cpp_touch": touch}
        self._allocator = allocator
        self._kernels = kernels
        facts = Facts(
            "calibration",
            "inference",
            "",
            driver.device,
            namespace=self._namespace,
            allocators=(allocator,),
            twins=_TouchTwins(touch) if isinstance(touch, _Touch) else None,
            settings=Settings(engine=engine, selection=False, strict=True),
        )
        self._function = RecordedFunction(self._run, facts, driver)
        self._entry = self._function.entry() if native else self._function

    def __enter__(self) -> Callable[[list[Any]], Any]:
        return self._entry

    def __exit__(self, *_: object) -> None:
        from pygraph_inductor.reporting.facts import forget

        log = self._function._log
        self._function.refresh()
        forget(log)
        # The function knows `_run`, and so this object: a cycle would keep the graph and its memory.
        del self._function, self._entry
        if not log.replays:
            raise RuntimeError(f"nothing was measured: {', '.join(log.reasons) or 'no graph was replayed'}")

    def _run(self, inputs: list[Any]) -> Any:
        sources = list(inputs)
        inputs.clear()
        target = self._namespace[self._allocator]((_ELEMENTS,), (1,), torch.float32)
        for source in sources:
            for _ in range(self._kernels):
                self._namespace["cpp_touch"](source, target)
        return ()


def _touched(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source[:_ELEMENTS])


class _Touch:
    """A kernel that copies a few elements: as short as kernels are."""

    def __init__(self, device_index: int) -> None:
        self.direct, self.indirect = touch_kernels(device_index)

    def __call__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        _launch(self.direct, source, target)


@dataclass(frozen=True)
class _TouchTwins:
    """Its twin, which is given the address of the source's address."""

    touch: _Touch

    def refusal(self, kernel: str, argument: int) -> str | None:
        return "the target is no slot" if argument else None

    def prepare(self, kernel: str, arguments: tuple[int, ...]) -> str | None:
        return None

    def meanings(self, choose: ChooseEntries) -> Mapping[str, Callable[[Any], Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def launch(*args: torch.Tensor) -> None:
                entries = choose("cpp_touch", args)
                if entries:
                    _launch(self.touch.indirect, entries[0], args[1])
                else:
                    original(*args)

            return launch

        return {"cpp_touch": make}


def _launch(kernel: int, source: torch.Tensor, target: torch.Tensor) -> None:
    from pygraph_inductor.driver.libcuda import launch

    stream = torch.cuda.current_stream(target.device).cuda_stream
    addresses: Sequence[Any] = (ctypes.c_uint64(source.data_ptr()), ctypes.c_uint64(target.data_ptr()))
    launch(kernel, 1, _ELEMENTS, stream, addresses)


@functools.cache
def touch_kernels(device_index: int) -> tuple[int, int]:
    """The handles of the kernel and of its twin, which stay loaded. The device must be current."""
    from pygraph_inductor.driver.libcuda import bindings, checked

    cu = bindings()
    module = checked(cu.cuModuleLoadData(PTX.encode() + b"\0"))
    direct, indirect = (int(checked(cu.cuModuleGetFunction(module, name))) for name in (b"touch", b"touch_indirect"))
    return direct, indirect


def _entry(name: str, before: str) -> str:
    return f"""
.visible .entry {name}(.param .u64 source, .param .u64 target)
{{
    .reg .b32 %thread;
    .reg .b64 %from, %to, %offset;
    .reg .f32 %value;

    mov.u32 %thread, %tid.x;
    mul.wide.u32 %offset, %thread, 4;
    ld.param.u64 %from, [source];
    {before}
    cvta.to.global.u64 %from, %from;
    add.u64 %from, %from, %offset;
    ld.global.f32 %value, [%from];
    ld.param.u64 %to, [target];
    cvta.to.global.u64 %to, %to;
    add.u64 %to, %to, %offset;
    st.global.f32 [%to], %value;
    ret;
}}
"""


_LOADED = "cvta.to.global.u64 %from, %from;\n    ld.global.u64 %from, [%from];"
PTX = ".version 7.0\n.target sm_70\n.address_size 64\n" + _entry("touch", "") + _entry("touch_indirect", _LOADED)
