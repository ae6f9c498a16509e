"""Uploads on a machine without a GPU: pinned memory is ordinary memory, and what is sent to the device is cloned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from pygraph_inductor.replay import uploads

CUDA = torch.device("cuda", 0)


class Pinned:
    """Memory that the host writes to by address, and that is sent once. Uninitialised memory is full of ones."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.sent: torch.Tensor | None = None
        tensor.untyped_storage().copy_(torch.full((tensor.nbytes,), 255, dtype=torch.uint8).untyped_storage())

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()

    def to(self, device: torch.device, non_blocking: bool) -> torch.Tensor:
        assert device == CUDA and non_blocking and self.sent is None
        self.sent = self.tensor.clone()
        return self.sent


class _Torch:
    """torch, as `uploads` sees it."""

    def __init__(self) -> None:
        self.pinned: list[Pinned] = []
        self.cuda = mock.Mock(is_current_stream_capturing=lambda: False)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def _made(self, make: Any, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        kwargs = {**kwargs, **({"device": "cpu"} if "device" in kwargs else {})}
        made = make(*args, **kwargs)
        if pin_memory:
            made = Pinned(made)
            self.pinned.append(made)
        return made

    def empty(self, *args: Any, **kwargs: Any) -> Any:
        return self._made(torch.empty, *args, **kwargs)

    def empty_strided(self, *args: Any, **kwargs: Any) -> Any:
        return self._made(torch.empty_strided, *args, **kwargs)

    def empty_like(self, *args: Any, **kwargs: Any) -> Any:
        return self._made(torch.empty_like, *args, **kwargs)

    def full(self, *args: Any, **kwargs: Any) -> Any:
        return self._made(torch.full, *args, **kwargs)


@contextmanager
def to_nowhere() -> Iterator[list[Pinned]]:
    """Within it, `upload(..., CUDA)` gives tensors of the CPU. Gives the pinned memory that was used."""
    stub = _Torch()
    with mock.patch.object(uploads, "torch", stub):
        yield stub.pinned
