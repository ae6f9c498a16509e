"""A function that is given what was uploaded before its call: other memory every time, and still the launcher's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pygraph_inductor.replay.uploads import upload
from tests.launching import IN_C
from tests.pinned import CUDA, to_nowhere

from .hand_written import F32, HandWritten, same_bits

CALLS = 8


def body(space: dict[str, Any], x: torch.Tensor, *uploaded: torch.Tensor) -> tuple[torch.Tensor, ...]:
    out = space["empty_strided_cpu"]((4, 4), (4, 1), F32)
    space["cpp_fused_0"](out, x, *uploaded)
    return (out,)


NUMBER = lambda n: torch.tensor(0.5 + n)
MASK = lambda n: torch.rand(4, 4) > 0.1 * n
LENGTHS = lambda n: torch.randint(0, 9, (7,))


@pytest.mark.parametrize(
    "numbers, hosts",
    [([NUMBER], []), ([NUMBER, NUMBER], []), ([], [MASK]), ([NUMBER], [MASK, LENGTHS])],
    ids=["number", "numbers", "mask", "all of it"],
)
def test_calls_with_uploads_are_answered_by_the_launcher(numbers: list[Any], hosts: list[Any]) -> None:
    function = HandWritten(body)
    kept = []  # so that no address comes again
    for number in range(CALLS):
        with to_nowhere():
            uploaded = upload([one(number) for one in numbers], [one(number) for one in hosts], CUDA)
        x = torch.rand(4, 4)
        kept.append((x, uploaded))
        want = function.run([x, *[one.clone() for one in uploaded]])
        [got] = function(x, *uploaded)
        assert same_bits(got, want[0]), f"call {number}"
    [recording] = function.recordings
    assert (recording.launcher.counts()[0] if IN_C else recording.python_replays) == CALLS - 2
    assert function.log.replays == CALLS - 2
