"""Random numbers in replayed calls: the plain call's, call by call, and never the same mask twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config as inductor_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from tests.gpu.comparing import DEVICE, Counting, agree, compiled, plainly, same_bits
from tests.gpu.operators import like_first, opaque


@pytest.fixture(params=["inductor", "philox"])
def random_numbers(request: pytest.FixtureRequest) -> Iterator[str]:
    """Inductor's own random numbers (seeds drawn from the generator), or ATen's kernels that read its state."""
    with inductor_config.patch(fallback_random=request.param == "philox"):
        yield request.param


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.sin() + 2, 0.5, True)


def state() -> torch.Tensor:
    return torch.cuda.get_rng_state() if DEVICE == "cuda" else torch.get_rng_state()


def sequence(call: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What a sequence of calls draws after one seed, and the state it leaves."""
    torch.manual_seed(11)
    results = [call(x) for x in inputs]
    return results, state()


def test_dropout_agrees_call_by_call(random_numbers: str) -> None:
    with torch.no_grad():
        agree(compiled(dropped), lambda _: (torch.randn(512, device=DEVICE),))


def test_sequence_of_calls_draws_what_plain_calls_draw(random_numbers: str) -> None:
    call, counting = compiled(lambda x: (dropped(x) + torch.rand_like(x)) * torch.randn_like(x)), Counting()
    inputs = [torch.randn(1000, device=DEVICE) for _ in range(8)]
    with torch.no_grad():
        with plainly():
            expected, expected_state = sequence(call, inputs)
        for attempt in range(2):  # the first sequence records on its way, the second only replays
            results, final = sequence(call, inputs)
            for number, (one, other) in enumerate(zip(results, expected, strict=True)):
                assert same_bits(one, other), f"sequence {attempt}, call {number}; {counting}"
            assert torch.equal(final, expected_state), f"state after sequence {attempt}; {counting}"
    counting.expect(replays=12)


def test_masks_differ_from_call_to_call(random_numbers: str) -> None:
    call, counting = compiled(dropped), Counting()
    x = torch.randn(4096, device=DEVICE)
    with torch.no_grad():
        masks = [call(x) != 0 for _ in range(10)]
    for number, mask in enumerate(masks):
        assert 0.4 < mask.float().mean().item() < 0.6
        assert not any(torch.equal(mask, earlier) for earlier in masks[:number]), f"call {number} repeats a mask"
    counting.expect(replays=7)


def test_plain_draws_between_calls_are_not_disturbed() -> None:
    call, counting = compiled(dropped), Counting()
    x = torch.randn(256, device=DEVICE)

    def interleaved() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [t for _ in range(6) for t in (call(x), torch.rand(16, device=DEVICE))]

    with torch.no_grad():
        with plainly():
            expected = interleaved()
        for _ in range(2):
            assert all(same_bits(one, other) for one, other in zip(interleaved(), expected, strict=True)), counting
    counting.expect(replays=8)


def test_dropout_in_training_agrees(random_numbers: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 8)).to(DEVICE)
    call = compiled(model)

    def step(x: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        call(x).square().mean().backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    agree(step, lambda _: (torch.randn(16, 32, device=DEVICE).requires_grad_(),), replays=6)


def test_recomputed_mask_is_the_forwards_mask(random_numbers: str) -> None:
    call, counting = compiled(lambda x: checkpoint(dropped, x, use_reentrant=False) * 3), Counting()
    masks: list[torch.Tensor] = []
    for number in range(6):
        x = torch.randn(512, device=DEVICE, requires_grad=True)
        y = call(x)
        mask = y.detach() != 0
        y.sum().backward()
        torch.testing.assert_close(x.grad, torch.where(mask, 6 * x.detach().cos(), 0.0), msg=f"call {number}")
        assert not any(torch.equal(mask, earlier) for earlier in masks), f"call {number} repeats a mask"
        masks.append(mask)
    if random_numbers == "inductor":
        counting.expect(replays=6)
    else:  # operators that keep the random state are cut out of graphs where they are not graph-safe
        assert counting.replays or counting.reasons, counting


def test_attention_dropout_agrees_under_checkpointing() -> None:
    """The recomputation hands a generator to the backward as an input."""

    def attention(q: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, q * 2, q + 1, dropout_p=0.2)

    call = compiled(lambda q: checkpoint(attention, q, use_reentrant=False) * 3)

    def step(q: torch.Tensor) -> list[Any]:
        out = call(q)
        out.float().square().sum().backward()
        return [out.detach(), q.grad]

    make = lambda _: (torch.randn(2, 4, 64, 64, device=DEVICE, dtype=torch.bfloat16).requires_grad_(),)
    agree(step, make, every=False)


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION], ids=str)
def test_attention_dropout_agrees_in_training(backend: SDPBackend) -> None:
    """Efficient attention returns its seed on the CPU, but on the device while it is captured."""

    def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, q + k, dropout_p=0.2) + 1

    call = compiled(attention)

    def step(q: torch.Tensor, k: torch.Tensor) -> list[Any]:
        out = call(q, k)
        out.float().square().sum().backward()
        return [out.detach(), q.grad, k.grad]

    def make(_: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(2, 4, 64, 64, device=DEVICE, dtype=torch.bfloat16).requires_grad_() for _ in range(2))

    agree(step, make, every=False)


def test_generator_that_nobody_registered_keeps_its_sequence() -> None:
    """A capture cannot use it, so such a function is plain; its numbers go on where they were."""
    generator = torch.Generator(device=DEVICE)
    noise = opaque(
        "noise_of_a_generator",
        "(Tensor x) -> Tensor",
        lambda x: torch.rand(x.shape, device=x.device, generator=generator),
        like_first,
    )
    call = compiled(lambda x: noise(x) + 1)
    x = torch.randn(64, device=DEVICE)
    with torch.no_grad():
        with plainly():
            generator.manual_seed(5)
            expected = [call(x) for _ in range(8)]
        generator.manual_seed(5)
        for number, value in enumerate(expected):
            assert same_bits(call(x), value), f"call {number}"
