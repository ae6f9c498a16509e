"""Digests tell apart what programs make, not only what chance makes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pygraph_inductor.recording import contents
from pygraph_inductor.recording.contents import digests

WORDS = torch.arange(24, dtype=torch.int64).square() * 0x1_0003_0101
FLOATS = torch.randn(64, generator=torch.Generator().manual_seed(0))


def swapped_halves(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat(tensor.chunk(2)[::-1])


@pytest.mark.parametrize(
    "one", [torch.zeros(64), WORDS, FLOATS, FLOATS.bfloat16(), torch.cat([FLOATS, FLOATS.flip(0)])]
)
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.view(torch.int64).bitwise_not().view(t.dtype),
        lambda t: t.view(torch.int64).bitwise_xor(-(1 << 63)).view(t.dtype),
        lambda t: (t.view(torch.int64) + (1 << 62)).view(t.dtype),
        lambda t: (t.view(torch.int64) - 1).view(t.dtype),
        lambda t: t.view(torch.int16).bitwise_xor(-(1 << 15)).view(t.dtype),
    ],
)
def test_the_same_change_of_every_word(one: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    first, second = digests([one, change(one)])
    assert first != second


def test_elements_and_blocks_that_changed_places() -> None:
    mirrored = torch.cat([WORDS, WORDS.flip(0)])
    ring = torch.tensor([5, 9, 9, 5])
    candidates = [mirrored, swapped_halves(mirrored), WORDS, WORDS.flip(0), swapped_halves(WORDS), WORDS.roll(1), ring]
    assert len(set(digests([*candidates, ring.roll(2), torch.tensor([9, 5, 5, 9])]))) == len(candidates) + 1


def test_one_value_everywhere() -> None:
    """Of a power of two of elements, where what the elements share is multiplied by a power of two."""
    values = (0.0, -0.0, 1.0, 1.5, 2.0, -1.0, float("inf"), float("nan"))
    assert len(set(digests([torch.full((1 << 23,), value) for value in values]))) == len(values)


def test_integers_that_differ_by_their_sign() -> None:
    for value in (0, 1, 5, (1 << 62) + 3):
        first, second, third = digests([torch.tensor([value]), torch.tensor([~value]), torch.tensor([-value - 2])])
        assert len({first, second, third}) == 3


def test_every_byte_counts_in_any_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off the boundaries of words and of the pieces that are looked at one by one, and with gaps between elements."""
    monkeypatch.setattr(contents, "_CHUNK", 16)
    memory = torch.arange(100, dtype=torch.uint8)
    for view in (memory[:43], memory[3:46], memory[::2], memory.view(10, 10).t()[:7]):
        seen = set(digests([view]))
        for index in range(view.numel()):
            changed = view.clone(memory_format=torch.preserve_format)
            position = tuple(int(at) for at in torch.unravel_index(torch.tensor(index), view.shape))
            changed[position] += 1
            seen.update(digests([changed]))
        assert len(seen) == view.numel() + 1
    aligned, misaligned = memory[:48].clone(), torch.cat([memory[:1], memory[:48]])[1:]
    assert len(set(digests([aligned, misaligned]))) == 1
