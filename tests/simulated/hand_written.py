"""Functions with the shape of generated code, and the plain call as their reference.

No compiler is involved: what fails in front of these is in `recording`, `replay` or `driver`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph_inductor import settings
from pygraph_inductor.driver.simulated import SimulatedDriver
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.function import RecordedFunction
from pygraph_inductor.recording.record import Recording

CPU = torch.device("cpu")
F32 = torch.float32


def fused(out: torch.Tensor, *inputs: torch.Tensor) -> None:
    """A stand-in for a compiled kernel: every element of `out` depends on every input, `out` may be one of them."""
    total = torch.zeros(out.numel(), dtype=torch.float64)
    for number, tensor in enumerate(inputs):
        flat = tensor.reshape(-1)
        flat = flat.abs() if flat.is_complex() else flat
        if flat.numel():
            positions = (torch.arange(out.numel()) + number) % flat.numel()
            total += flat.to(torch.float64)[positions] * (0.5 - 0.125 * number)
    total = total.remainder(1000) - 7 * len(inputs)
    total = total.view(out.size())
    # Compiled kernels know nothing of version counters.
    out.data.copy_(total.gt(0) if out.dtype is torch.bool else total)


class HandWritten:
    """`body(namespace, *inputs)` as a recorded function, and as the plain function it has to agree with."""

    def __init__(
        self,
        body: Callable[..., Any],
        driver: SimulatedDriver | None = None,
        name: str = "hand-written",
        native: bool = True,
        **facts: Any,
    ) -> None:
        self.driver = driver or SimulatedDriver()
        self.namespace: dict[str, Any] = {
            "empty_strided_cpu": torch._C._dynamo.guards._empty_strided_cpu,
            "reinterpret_tensor": torch._C._dynamo.guards._reinterpret_tensor,
            "cpp_fused_0": fused,
        }
        self._body = body
        kind = facts.pop("kind", "inference")
        facts.setdefault("settings", settings.current())
        # With `native`, calls go through the launcher in C where it takes them, as compiled functions' calls do.
        self.function = RecordedFunction(
            self.run,
            Facts(name, kind, "", CPU, namespace=self.namespace, allocators=("empty_strided_cpu",), **facts),
            self.driver,
        )
        self._entry = self.function.entry() if native else self.function

    def run(self, inputs: list[Any]) -> Any:
        """The plain call; consumes `inputs`."""
        arguments = list(inputs)
        inputs.clear()
        with torch.no_grad():
            return self._body(self.namespace, *arguments)

    def __call__(self, *inputs: Any) -> Any:
        return self._entry(list(inputs))

    @property
    def log(self) -> Any:
        self.function.refresh()
        return self.function._log

    @property
    def recordings(self) -> list[Recording]:
        return list(self.function._entries.recordings().values())


def same_bits(got: Any, want: Any) -> bool:
    """Equal in every visible respect: type, dtype, sizes, strides, and the bits of every element."""
    if not isinstance(want, torch.Tensor):
        return type(got) is type(want) and got == want
    if (got.dtype, got.size(), got.stride()) != (want.dtype, want.size(), want.stride()):
        return False
    return torch.equal(contents(got), contents(want))


def contents(value: torch.Tensor) -> torch.Tensor:
    """A copy of the bytes of every element, in order."""
    return value.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def cloned(values: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def check(function: HandWritten, make: Callable[[], Sequence[Any]], calls: int = 6, replays: int | None = None) -> None:
    """Every call with new addresses gives what the plain call gives; all calls but the first two were replays."""
    kept: list[tuple[list[Any], list[Any]]] = []
    addresses = []  # keeps the inputs alive, so that no call gets the addresses of an earlier one
    for number in range(calls):
        inputs = list(make())
        addresses.append(inputs)
        copies = cloned(inputs)
        random = torch.get_rng_state()
        want = function.run(list(copies))
        random_after = torch.get_rng_state()
        torch.set_rng_state(random)
        got = function(*inputs)
        assert torch.equal(torch.get_rng_state(), random_after), f"call {number}: random state"
        for position, (a, b) in enumerate(zip(got, want, strict=True)):
            assert same_bits(a, b), f"call {number}, output {position}"
        for position, (a, b) in enumerate(zip(inputs, copies, strict=True)):
            assert same_bits(a, b), f"call {number}, input {position}"
        tensors = [value for value in got if isinstance(value, torch.Tensor)]
        kept.append((tensors, [contents(value) for value in tensors]))
    for number, (now, then) in enumerate(kept):
        assert all(map(torch.equal, map(contents, now), then)), f"what call {number} returned was overwritten later"
    expected = calls - 2 if replays is None else replays
    assert function.log.replays == expected, function.log.reasons
