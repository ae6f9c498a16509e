"""The plain call: what its code expects to be aligned comes aligned, as it is in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pygraph_inductor.recording.plain import is_misaligned, run_plainly
from pygraph_inductor.replay.views import alias_of

MISALIGNED: dict[str, Callable[[], torch.Tensor]] = {
    "dense": lambda: torch.randn(33)[1:].view(4, 8),
    "with gaps": lambda: torch.randn(81)[1:].view(8, 10)[:, 2:5],
    "transposed": lambda: torch.randn(33)[1:].view(4, 8).t(),
    "expanded": lambda: torch.randn(9)[1:].view(8, 1).expand(8, 4),
    "unfolded": lambda: torch.randn(17)[1:].unfold(0, 4, 2),
    "one element": lambda: torch.randn(4)[1],
    "with gradients": lambda: torch.randn(9, requires_grad=True)[1:],
    "negative": lambda: torch.randn(9, dtype=torch.complex64).conj().imag[1:],
    "conjugated": lambda: torch.randn(10, dtype=torch.complex64).conj()[1:],
}


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements, without what torch would do to them on the way."""
    return alias_of(tensor.detach()).clone()


@pytest.mark.parametrize("name", MISALIGNED)
def test_misaligned_input_is_replaced_by_the_same_elements(name: str) -> None:
    tensor = MISALIGNED[name]()
    assert is_misaligned(tensor), "else this shows nothing"
    before, version = in_memory(tensor), tensor._version
    seen: list[torch.Tensor] = []

    def run(inputs: list[Any]) -> Any:
        seen.extend(inputs)
        inputs.clear()
        return ()

    run_plainly(run, [tensor, 3], checked=(0,), written=())
    copy, number = seen
    assert number == 3 and copy is not tensor and not is_misaligned(copy)
    assert (copy.size(), copy.stride(), copy.dtype) == (tensor.size(), tensor.stride(), tensor.dtype)
    assert torch.equal(in_memory(copy), before) and not copy.requires_grad
    assert torch.equal(in_memory(tensor), before) and tensor._version == version


def test_what_lies_between_the_elements_is_there_for_who_looks() -> None:
    """As in stock's copies: `as_strided` of an input is compiled to reads of its memory."""
    tensor = MISALIGNED["with gaps"]()
    all_between = tensor.as_strided((73,), (1,)).clone()

    def run(inputs: list[Any]) -> Any:
        return (inputs[0].as_strided((73,), (1,)).clone(),)

    (seen,) = run_plainly(run, [tensor], checked=(0,), written=())
    assert torch.equal(seen, all_between)


@pytest.mark.parametrize("name", ["dense", "with gaps", "transposed", "one element"])
def test_what_is_written_to_the_copy_comes_back(name: str) -> None:
    tensor = MISALIGNED[name]()
    around, version = tensor._base.clone(), tensor._version  # type: ignore[union-attr]
    wanted = in_memory(tensor) * 2

    def run(inputs: list[Any]) -> Any:
        (given,) = inputs
        given.mul_(2)
        return (given,)

    (result,) = run_plainly(run, [tensor], checked=(0,), written={0})
    assert result is tensor and torch.equal(tensor, wanted)
    assert tensor._version == version, "the code's own wrappers tell autograd"
    untouched = tensor._base.clone()  # type: ignore[union-attr]
    untouched.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).div_(2)
    assert torch.equal(untouched, around)
