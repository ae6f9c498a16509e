"""Where attention's random seed is found in generated text, and that a plain call gets it on the host."""

from __future__ import annotations

from typing import Any

import torch

from pygraph_inductor.codegen.attention_seeds import attention_seeds
from pygraph_inductor.codegen.generated_code import read
from pygraph_inductor.recording.plain import seeds_on_host

BACKWARD = """
def partition_0(args):
    tangents_1, query, key, value, out, lse, seed, offset, weight = args
    args.clear()
    buf0 = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default(
        reinterpret_tensor(tangents_1, (1, 2, 4, 8), (64, 32, 8, 1), 0), query, key, value, None, out, lse,
        seed, offset, 0.1, [True, True, True, False])
    buf1 = buf0[0]
    extern_kernels.mm(buf1, weight, out=buf2)
    return (buf2, )
"""


def test_seed_and_offset_are_found_by_the_operators_own_argument_names() -> None:
    assert attention_seeds(read(BACKWARD)["partition_0"]) == ((6, 7),)


def test_attention_that_keeps_its_seeds_on_the_device_is_left_alone() -> None:
    cudnn = BACKWARD.replace("efficient_attention_backward", "cudnn_attention_backward")
    assert attention_seeds(read(cudnn)["partition_0"]) == ()


def test_a_function_without_attention_has_none() -> None:
    text = "def partition_0(args):\n    a, b = args\n    args.clear()\n    return (extern_kernels.mm(a, b), )\n"
    assert attention_seeds(read(text)["partition_0"]) == ()


def test_only_seeds_without_dimensions_move_to_the_host() -> None:
    inputs: list[Any] = [torch.tensor(7), torch.tensor(3), torch.zeros(2), torch.tensor(1), None, torch.tensor(1)]
    before = list(inputs)
    seeds_on_host(inputs, [(0, 1), (2, 3), (4, 5)])
    assert [one is other for one, other in zip(inputs, before, strict=True)][2:] == [True] * 4
    assert inputs[0].device.type == "cpu" and inputs[0].item() == 7
