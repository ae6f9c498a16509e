"""What the inputs of one call are: slots, values of the key, generators, or a reason for the plain call.

The first step of every call. Whatever is not one of these makes the call plain.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pygraph_inductor.driver.protocol import Driver


@dataclass(frozen=True)
class Refusal:
    """Why something runs plainly, for people. `passing`: another call may fare better."""

    reason: str
    passing: bool = False


@dataclass(frozen=True)
class Call:
    """The inputs of one call, sorted."""

    key: tuple[Hashable, ...]
    slots: tuple[int, ...]
    generators: tuple[torch.Generator, ...]


def examine(inputs: Sequence[Any], driver: Driver) -> Call | Refusal:
    """Sort the inputs. Two calls with equal keys may share a recording if their inputs overlap alike."""
    key: list[Hashable] = []
    slots: list[int] = []
    generators: list[torch.Generator] = []
    for position, value in enumerate(inputs):
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if driver.owns(value):  # all of this is once per input of every call that Python answers
                if value.is_conj() or value.is_neg() or value._is_zerotensor():
                    return _lazy(position, value)
                size = tuple(value.size())
                if 0 not in size:
                    slots.append(position)
                key.append((value.dtype, size, value.stride()))
                continue
            entry = _elsewhere(position, value, driver)
            if isinstance(entry, Refusal):
                return entry
            key.append(entry)
        elif kind in (int, bool) or value is None:
            key.append((kind, value))
        elif kind is float:
            key.append((kind, value.hex()))  # nan equals itself, 0.0 and -0.0 differ
        elif isinstance(value, torch.Generator):
            generators.append(value)
            key.append((kind, id(value)))  # the recording keeps it alive, so the id stays its own
        else:
            return Refusal(f"input {position} is a {kind.__name__}")
    return Call(tuple(key), tuple(slots), tuple(generators))


def _lazy(position: int, tensor: torch.Tensor) -> Refusal:
    if tensor._is_zerotensor():
        return Refusal(f"input {position} is a zero tensor, which has no memory")
    return Refusal(f"input {position} is lazily conjugated or negated")


def _elsewhere(position: int, tensor: torch.Tensor, driver: Driver) -> Hashable | Refusal:
    """A tensor that is not the device's."""
    if tensor.device.type == "cpu" and tensor.dim() == 0 and tensor.layout is torch.strided:
        return (tensor.dtype, _exact(tensor))
    if tensor.layout is not torch.strided:
        return Refusal(f"input {position} is a {tensor.layout} tensor")
    return Refusal(f"input {position} is a tensor on {tensor.device}, not on {driver.device}")


def _exact(scalar: torch.Tensor) -> Hashable:
    """The bits of a 0-d CPU tensor: the generated code reads its value on the host."""
    return bytes(scalar.detach().reshape(1).view(torch.uint8).tolist())


Overlaps = tuple[tuple[int, int, int], ...]


def overlaps(addresses: Sequence[int], spans: Sequence[int]) -> Overlaps:
    """Which of the byte ranges [address, address + span) intersect, as (index, index, distance in bytes).

    The answer is the same exactly for calls whose inputs alias each other in the same way.
    """
    order = sorted(range(len(addresses)), key=addresses.__getitem__)
    end = 0
    for index in order:
        if addresses[index] < end:
            return _overlapping_pairs(order, addresses, spans)
        end = max(end, addresses[index] + spans[index])
    return ()


def _overlapping_pairs(order: Sequence[int], addresses: Sequence[int], spans: Sequence[int]) -> Overlaps:
    pairs = []
    open_ranges: list[int] = []
    for index in order:
        open_ranges = [other for other in open_ranges if addresses[other] + spans[other] > addresses[index]]
        for other in open_ranges:
            first, second = min(other, index), max(other, index)
            pairs.append((first, second, addresses[second] - addresses[first]))
        open_ranges.append(index)
    return tuple(sorted(pairs))
