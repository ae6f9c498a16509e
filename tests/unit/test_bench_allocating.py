"""What making outputs costs: every way makes tensors, and the page says what its data says."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from scripts.bench import allocating, facts

FOLDER = facts.ROOT / "docs" / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_every_way_makes_and_frees_tensors() -> None:
    (one, some) = allocating.tensors(CPU, (1, 16), rounds=3)
    assert (one["count"], some["count"]) == (1, 16)
    for row in (one, some):
        assert all(row[way][part] > 0 for way in allocating.WAYS for part in ("make", "free"))


def test_more_tensors_than_there_is_room_for_are_an_error() -> None:
    make = allocating.makers(allocating.module(), CPU)
    for way in allocating.WAYS:
        with pytest.raises(ValueError, match="at most 1024"):
            make[way](1 << 20)


def test_only_one_of_the_forwards_keeps_its_activations() -> None:
    found = allocating.activations(CPU, rounds=2)
    assert found["anew"]["bytes_kept"] == 0
    assert found["again"]["bytes_kept"] >= (found["layers"] - 1) * allocating.WIDTH**2 * 4
    assert found["again"]["host"] > 0 and found["anew"]["host"] > 0


def test_committed_page_is_generated_from_the_committed_data() -> None:
    data = json.loads((FOLDER / "allocating.json").read_text())
    assert allocating.page(data) == (FOLDER / "allocating.md").read_text()
