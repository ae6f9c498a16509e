"""The plain call: the generated code without a graph, with its inputs aligned as it expects them.

Stock PyTorch realigns inputs inside the wrapper that we replace, so it is ours to do (from torch 2.12 on generated
code does it too).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from pygraph_inductor.replay.views import copy_contents, copy_memory, covers_its_span

KERNEL_ALIGNMENT = 16  # bytes; the only property of a pointer that Triton compiles kernels for (`tt.divisibility`)


def is_misaligned(tensor: torch.Tensor) -> bool:
    """Whether kernels that load 16 bytes at once could not start at this tensor."""
    return tensor.data_ptr() % KERNEL_ALIGNMENT != 0


def seeds_on_host(inputs: list[Any], seeds: Iterable[tuple[int, int]]) -> None:
    """Give a plain call the seeds of attention where plain calls look for them (codegen/attention_seeds.py).

    Only those without dimensions: what has more is no pair of numbers.
    """
    for pair in seeds:
        if all(isinstance(inputs[position], torch.Tensor) for position in pair) and inputs[pair[0]].dim() == 0:
            for position in pair:
                inputs[position] = inputs[position].cpu()


def run_plainly(
    run: Callable[[list[Any]], Any],
    inputs: list[Any],
    checked: Iterable[int],
    written: Collection[int],
    seeds: Iterable[tuple[int, int]] = (),
) -> Any:
    """Call `run`, which consumes `inputs`. Misaligned tensors among `checked` are replaced by aligned copies."""
    seeds_on_host(inputs, seeds)
    replaced = []
    for position in checked:
        tensor = inputs[position]
        if isinstance(tensor, torch.Tensor) and is_misaligned(tensor):
            inputs[position] = _aligned_copy(tensor)
            replaced.append((position, tensor, inputs[position]))
    result = run(inputs)
    for position, original, copy in replaced:
        if position in written:
            copy_contents(original, copy)
        result = _with_original(result, original, copy)
    return result


def _aligned_copy(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    if not covers_its_span(tensor) or tensor.requires_grad or tensor.is_neg() or tensor.is_conj():
        copy_memory(copy, tensor)  # as it is there, and no business of autograd
    else:
        copy.copy_(tensor)  # the same, in a third of the time
    return copy


def _with_original(result: Any, original: torch.Tensor, copy: torch.Tensor) -> Any:
    """A call that returns an input returns the caller's tensor, not our copy of it."""
    if isinstance(result, (tuple, list)):
        return type(result)(original if value is copy else value for value in result)
    return original if result is copy else result
