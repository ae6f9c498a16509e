"""Operators that Inductor cannot look into: each becomes one call to a library or to a kernel of ATen.

Their outputs are allocated by the operator, not by the generated code, which is the harder way for a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.gpu.comparing import DEVICE

NAMESPACE = "pygraph_tests_gpu"


def opaque(
    name: str,
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any] | None = None,
    mutates: Sequence[str] = (),
) -> Callable[..., Any]:
    """A custom operator around `function`; `fake` says what comes out, by default `function` on fake tensors."""
    operator = torch.library.custom_op(f"{NAMESPACE}::{name}", function, mutates_args=mutates, schema=schema)
    operator.register_fake(fake or function)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def like_first(first: torch.Tensor, *_: Any) -> torch.Tensor:
    """The fake of operators whose output looks like their first argument."""
    return torch.empty_like(first)


def nothing(*_: Any) -> None:
    """The fake of operators that only write to their arguments."""


def random(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Normal numbers on the GPU."""
    return torch.randn(*size, device=DEVICE, dtype=dtype)


def indices(limit: int, *size: int) -> torch.Tensor:
    """Numbers from 0 to below `limit`, on the GPU."""
    return torch.randint(0, limit, size, device=DEVICE)
