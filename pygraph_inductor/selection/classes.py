"""Size classes: the calls that share a decision. Sizes within a factor of two of each other are one class.

A function with static shapes has one class; its recordings for different aliasing or numbers share it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch


def size_class(call_key: tuple[Hashable, ...]) -> str:
    """A text that is equal for calls of one class, in every process. `call_key`: `recording.inputs.Call.key`."""
    return "; ".join(_entry(entry) for entry in call_key)


def numbers_of(inputs: Sequence[object]) -> tuple[int, ...]:
    """The int inputs, among them every size that is not static: what tells calls apart before they are examined."""
    return tuple([value for value in inputs if type(value) is int])


def _entry(entry: Hashable) -> str:
    match entry:
        case (torch.dtype() as dtype, tuple() as sizes, tuple() as strides):
            return f"{_short(dtype)}[{_steps(sizes)}]({_steps(strides)})"
        case (torch.dtype() as dtype, bytes()):
            return f"{_short(dtype)} on the host"
        case (type() as kind, int() as value) if kind is int:
            return f"int {_steps((value,))}"
        case (type() as kind, _):
            return kind.__name__  # a float or a generator: its value says nothing about time
        case _:
            return "?"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _steps(numbers: tuple[int, ...]) -> str:
    """Each number rounded up to a power of two; 0 and what is negative as it is."""
    return ",".join(str(1 << (number - 1).bit_length() if number > 0 else number) for number in numbers)
