"""The compiled function is called from threads other than the one that compiled it, one call at a time.

Seen: an assertion about thread-local state. Expected: every thread gets what eager gives.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from tests.cases.field import Field

SIMULATED = True


def layer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y + torch.relu(x @ y)


def check(field: Field) -> None:
    call = field.compiled(layer)
    x, y = field.randn(16, 16), field.randn(16, 16)
    for number in range(3):
        field.same(call(x, y), layer(x, y), f"main thread, call {number}")
    one_at_a_time = threading.Lock()

    def work(thread: int) -> None:
        for number in range(5):
            a = torch.full((16, 16), 0.01 * (thread + number), device=field.device)
            b = torch.full((16, 16), 0.5 + thread, device=field.device)
            with one_at_a_time:
                got = call(a, b)
            field.same(got, layer(a, b), f"thread {thread}, call {number}")

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, thread) for thread in range(8)]:
            done.result()
    field.expect_replays(40)
