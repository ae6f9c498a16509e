"""Measures the cost model's coefficients on the way that real calls go: a small function is recorded with each engine
and replayed, with its input where it was and elsewhere. Differences of such latencies are the coefficients.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pygraph_inductor.driver.protocol import ChooseEntries, Driver
from pygraph_inductor.selection.cost_model import Coefficients

FEW, MANY = 16, 128  # kernels that use the input
SMALL, LARGE = 1 << 10, 1 << 24  # elements of the input, 4 bytes each
_CALLS = 100
_WARM = 10
_ELEMENTS = 32  # that a kernel touches
_LEAST = 0.001  # µs: below it a difference is noise


def measure(driver: Driver, calls: int = _CALLS) -> Coefficients:
    """Coefficients of a device; takes seconds. The device should be idle, the process single-threaded."""
    timed = functools.partial(latency, driver, calls=calls)
    with driver.guard():
        still = {count: timed("patch", count) for count in (FEW, MANY)}
        table = {count: timed("indirect", count) for count in (FEW, MANY)}
        patched = timed("patch", MANY, moving=True)
        refreshed = timed("indirect", MANY, moving=True)
        in_python = timed("patch", FEW, native=False)
        staged = {size: timed("copy", FEW, size=size) for size in (SMALL, LARGE)}
    extra = {count: table[count] - still[count] for count in (FEW, MANY)}
    load = (extra[MANY] - extra[FEW]) / (MANY - FEW)
    python = in_python - still[FEW]
    copying = staged[LARGE] - staged[SMALL]
    return Coefficients(
        node_update=max((patched - still[MANY]) / MANY, _LEAST),
        table_update=max(refreshed - table[MANY], _LEAST),
        table_node=max(extra[FEW] - FEW * max(load, 0.0), _LEAST),
        indirect_load=max(load, _LEAST),
        copy_launch=max(staged[SMALL] - still[FEW], _LEAST),
        bytes_per_us=4 * (LARGE - SMALL) / max(copying, _LEAST),
        python_replay=max(python, _LEAST),
    )


def latency(
    driver: Driver,
    engine: str,
    kernels: int,
    *,
    slots: int = 1,
    size: int = SMALL,
    moving: bool = False,
    native: bool = True,
    calls: int = _CALLS,
) -> float:
    """The median time of a call from its submission to its end, in µs.

    Each of `slots` inputs of so many elements is used by so many kernels. `moving`: they are elsewhere in each call.
    """
    (one,) = latencies(driver, engine, kernels, (moving,), slots=slots, size=size, native=native, calls=calls)
    return one


def latencies(
    driver: Driver,
    engine: str,
    kernels: int,
    moving: Sequence[bool],
    *,
    slots: int = 1,
    size: int = SMALL,
    native: bool = True,
    calls: int = _CALLS,
) -> list[float]:
    """Several such times of one recording."""
    with _Probe(driver, engine, kernels, native) as probe:
        sets = [
            [driver.empty((size,), (1,), torch.float32).fill_(number) for _ in range(slots)]
            for number in range(2 if any(moving) else 1)
        ]
        return [_median(driver, probe, sets if one else sets[:1], calls) for one in moving]


def _median(driver: Driver, probe: Callable[[list[Any]], Any], sets: Sequence[Sequence[Any]], calls: int) -> float:
    times = []
    for number in range(_WARM + calls):
        arguments = list(sets[number % len(sets)])
        _wait(driver)
        start = time.perf_counter_ns()
        probe(arguments)
        _wait(driver)
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times[_WARM:]) / 1e3


def _wait(driver: Driver) -> None:
    if driver.device.type == "cuda":
        torch.cuda.synchronize(driver.device)


class _Probe:
    """A function each of whose inputs is used by so many kernels, recorded with one engine."""

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
