"""Runs Triton kernels and their twins in Triton's interpreter, on equal inputs, and compares every byte they leave.

A program of its own, since TRITON_INTERPRET counts when Triton is imported: `python -m tests.codegen.interpreted FILE`.
The file is JSON: per kernel its text, its twin's, which arguments are indirect, and the numbers among its arguments.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as interpreter
from torch._inductor.runtime import triton_helpers

ELEMENTS = 1 << 16
_TYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "i1": torch.bool,
    "i32": torch.int32,
    "i64": torch.int64,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}


class _Device:
    """Functions of libdevice that the kernels call; the interpreter has none of them."""

    exp = staticmethod(lambda value: _applied(np.exp, value))
    rsqrt = staticmethod(lambda value: _applied(lambda x: 1 / np.sqrt(x), value))
    sin = staticmethod(lambda value: _applied(np.sin, value))


def _applied(function: Callable[[Any], Any], value: Any) -> Any:
    data = value.handle.data
    return tl.tensor(interpreter.TensorHandle(function(data).astype(data.dtype), value.handle.dtype), value.type)


def prepare() -> None:
    """Make the interpreter able to load and run what Inductor writes for a GPU."""
    triton_helpers.libdevice = triton_helpers.math = _Device
    triton_helpers.set_driver_to_gpu = lambda: None
    if triton.__version__.startswith("3.6"):
        # int() of an array of one element, an error since numpy 2.4; later interpreters do it otherwise.
        patch = interpreter._patch_lang_tensor

        def patched(tensor: Any, *scope: Any) -> Any:
            done = patch(tensor, *scope)
            index = lambda self: int(self.handle.data.squeeze())
            if scope:
                scope[0].set_attr(tensor, "__index__", index)
            else:
                tensor.__index__ = index
            return done

        interpreter._patch_lang_tensor = patched


def kernel_in(text: str) -> Any:
    """The kernel of a module's text."""
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    (kernel,) = [value for value in vars(PyCodeCache.load(text)).values() if isinstance(value, CachingAutotuner)]
    return kernel


def tensor_for(kind: str) -> torch.Tensor:
    """Memory with random contents; integers are small, so that they are valid indices."""
    dtype = _TYPES[kind.removeprefix("*")]
    if dtype is torch.bool:
        return torch.rand(ELEMENTS) < 0.5
    if dtype.is_floating_point:
        return torch.randn(ELEMENTS).to(dtype)
    return torch.randint(0, 7, (ELEMENTS,), dtype=dtype)


def contents(tensors: Sequence[torch.Tensor | None]) -> list[bytes]:
    return [tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors if tensor is not None]


def compare(case: dict[str, Any]) -> str | None:
    """What is wrong with a twin, or None."""
    direct, twin = kernel_in(case["text"]), kernel_in(case["twin"])
    kinds = list(direct.triton_meta["signature"].values())
    numbers: list[int | None] = case["numbers"]
    before = [tensor_for(kinds[n]) if number is None else None for n, number in enumerate(numbers)]
    first = [tensor.clone() if tensor is not None else None for tensor in before]
    second = [tensor.clone() if tensor is not None else None for tensor in before]
    direct.run(*(number if number is not None else first[n] for n, number in enumerate(numbers)), stream=0)
    table = torch.tensor([second[n].data_ptr() for n in case["indirect"]])  # type: ignore[union-attr]
    arguments = [number if number is not None else second[n] for n, number in enumerate(numbers)]
    for entry, argument in enumerate(case["indirect"]):
        arguments[argument] = table[entry : entry + 1]
    twin.run(*arguments, stream=0)
    if contents(first) == contents(before):
        return "the kernel writes nothing"
    return None if contents(first) == contents(second) else "the twin leaves other bytes than the kernel"


def main(file: str) -> int:
    prepare()
    torch.manual_seed(0)
    failures = {}
    for name, case in json.loads(Path(file).read_text()).items():
        problem = compare(case)
        if problem is not None:
            failures[name] = problem
    print(json.dumps(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
