"""Functions of two square matrices that give the first one other memory, or another size in its own."""

from __future__ import annotations

import torch


def set_to_an_input(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    x.set_(y)
    x.add_(1)
    return x * 2


def set_to_a_result(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.set_(y * 2)
    return x + 1


def grown(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.resize_(2 * y.size(0), y.size(1))
    x.copy_(y[0])
    return x + 1


def shrunk(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.add_(1)
    x.resize_(2, 3)
    return x + y[:2, :3]


BETWEEN_GRAPHS = [set_to_an_input, set_to_a_result, grown, shrunk]
