"""The operators that rewritten graphs call. Importing this module makes them known to torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pygraph_inductor.replay import uploads

_LIBRARY = torch.library.Library("pygraph_inductor", "FRAGMENT")


def _like(numbers: Sequence[torch.Tensor], hosts: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    groups = uploads.by_dtype(numbers)
    results = [torch.empty(len(group), dtype=dtype, device=device) for dtype, group in groups.items()]
    return results + [torch.empty_like(host, device=device) for host in hosts]


# What reads the host on every call cannot be inside a graph, and the tag says so to Inductor's partitioner.
_LIBRARY.define(
    "upload(Tensor[] numbers, Tensor[] hosts, Device device) -> Tensor[]", tags=(torch.Tag.cudagraph_unsafe,)
)
_LIBRARY.impl("upload", uploads.upload, "CompositeExplicitAutograd")
torch.library.register_fake("pygraph_inductor::upload", _like, lib=_LIBRARY)

UPLOAD = torch.ops.pygraph_inductor.upload.default
