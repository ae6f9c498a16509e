"""Every kernel family whose parameters we rewrite gives what the plain call gives, with all addresses moving.

`through` says how the operator reaches the graph: "aten" leaves it to Inductor (libraries write into a buffer of the
generated code, or a fallback allocates), "opaque" hides it in a custom operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.gpu.comparing import DEVICE, agree, compiled
from tests.gpu.operators import indices, like_first, opaque, random

aten = torch.ops.aten
FP32, FP16, BF16, FP8 = torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn
Make = Callable[[], tuple]


def family(name: str, through: str, function: Callable[..., Any], make: Make) -> Any:
    return pytest.param(function, make, id=f"{name}-{through}")


def image(*size: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return random(*size, dtype=dtype).to(memory_format=torch.channels_last)


def heads() -> tuple[torch.Tensor, ...]:
    return tuple(random(2, 4, 128, 64) for _ in range(3))


def exact(*size: int) -> torch.Tensor:
    """Small whole numbers in fp32: sums of them do not depend on the order of addition."""
    return torch.randint(-8, 8, size, device=DEVICE).to(FP32)


def recurrent() -> tuple[Any, ...]:
    shapes = [(256, 64), (256, 64), (256,), (256,)]
    return random(8, 20, 64), random(1, 8, 64), random(1, 8, 64), [random(*shape) * 0.1 for shape in shapes]


def scaled() -> tuple[torch.Tensor, ...]:
    two, three = torch.full((), 2.0, device=DEVICE), torch.full((), 3.0, device=DEVICE)
    return random(64, 256).to(FP8), random(128, 256).to(FP8).t(), two, three


def grouped() -> tuple[torch.Tensor, ...]:
    ends = torch.tensor([32, 64, 128], device=DEVICE, dtype=torch.int32)
    return random(128, 64), random(3, 64, 128), ends


def lstm(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    return torch.lstm(x, (h, c), weights, True, 1, 0.0, False, False, True)[0].contiguous()


def convolution_backward(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask = [True, True, False]
    return aten.convolution_backward(grad, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)[:2]


def attention(operator: Any) -> Callable[..., torch.Tensor]:
    """Forward attention of one library with its log-sum-exp, of which only the output is returned."""
    bias = () if operator is aten._scaled_dot_product_flash_attention else (None, True)
    return lambda q, k, v: operator(q, k, v, *bias)[0]


def in_its_own_scraps(x: torch.Tensor) -> torch.Tensor:
    """What is returned lies where something larger lay within the same call."""
    larger = torch.cat([x, x * 2, x * 3])
    total = larger.sum(0)
    del larger
    return torch.add(x, total[0])


FAMILIES = [
    # cuBLAS and cuBLASLt
    family("mm_bf16", "aten", torch.mm, lambda: (random(512, 256), random(256, 1024))),
    family("mm_fp32", "aten", torch.mm, lambda: (random(256, 512, dtype=FP32), random(512, 256, dtype=FP32))),
    family("mm_row", "aten", torch.mm, lambda: (random(1, 2048), random(2048, 2048))),
    family("mm_split_k", "aten", torch.mm, lambda: (random(16, 16384), random(16384, 16))),
    family("mm_of_a_view", "aten", lambda x, w: x[1:] @ w, lambda: (random(513, 256), random(256, 512))),
    family("linear", "aten", F.linear, lambda: (random(64, 768), random(3072, 768), random(3072))),
    family("addmm", "aten", torch.addmm, lambda: (random(64, 512), random(64, 256), random(256, 512))),
    family(
        "addmm_gelu_epilogue",
        "opaque",
        opaque(
            "addmm_gelu",
            "(Tensor bias, Tensor x, Tensor w) -> Tensor",
            lambda bias, x, w: torch._addmm_activation(bias, x, w, use_gelu=True),
            lambda bias, x, w: x.new_empty(x.shape[0], w.shape[1]),
        ),
        lambda: (random(1024), random(256, 512), random(512, 1024)),
    ),
    family("bmm", "aten", torch.bmm, lambda: (random(8, 128, 256), random(8, 256, 128))),
    family(
        "baddbmm",
        "aten",
        torch.baddbmm,
        lambda: (random(8, 64, 64, dtype=FP16), random(8, 64, 128, dtype=FP16), random(8, 128, 64, dtype=FP16)),
    ),
    family(
        "baddbmm",
        "opaque",
        opaque("baddbmm", "(Tensor c, Tensor a, Tensor b) -> Tensor", torch.baddbmm),
        lambda: (random(8, 64, 64, dtype=FP16), random(8, 64, 128, dtype=FP16), random(8, 128, 64, dtype=FP16)),
    ),
    family(
        "mv",
        "opaque",
        opaque("mv", "(Tensor w, Tensor x) -> Tensor", torch.mv),
        lambda: (random(1024, 1024), random(1024)),
    ),
    family("scaled_mm_fp8", "aten", lambda a, b, s, t: torch._scaled_mm(a, b, s, t, out_dtype=BF16), scaled),
    family(
        "grouped_mm",
        "opaque",
        opaque(
            "grouped_mm",
            "(Tensor a, Tensor b, Tensor ends) -> Tensor",
            lambda a, b, ends: torch._grouped_mm(a, b, offs=ends),
            lambda a, b, ends: a.new_empty(a.shape[0], b.shape[2]),
        ),
        grouped,
    ),
    # cuDNN
    family(
        "conv_channels_last",
        "aten",
        lambda x, w: F.conv2d(x, w, padding=1),
        lambda: (image(8, 64, 28, 28), image(128, 64, 3, 3)),
    ),
    family(
        "conv_nchw",
        "aten",
        lambda x, w: F.conv2d(x, w, padding=1),
        lambda: (random(8, 64, 28, 28), random(128, 64, 3, 3)),
    ),
    family(
        "conv_stem_fp32",
        "aten",
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=3),
        lambda: (random(4, 3, 64, 64, dtype=FP32), random(64, 3, 7, 7, dtype=FP32), random(64, dtype=FP32)),
    ),
    family(
        "conv_depthwise",
        "aten",
        lambda x, w: F.conv2d(x, w, padding=1, groups=64),
        lambda: (random(8, 64, 28, 28), random(64, 1, 3, 3)),
    ),
    family(
        "conv_backward",
        "aten",
        convolution_backward,
        lambda: (random(8, 64, 28, 28), random(8, 32, 28, 28), random(64, 32, 3, 3)),
    ),
    family(
        "lstm",
        "opaque",
        opaque(
            "lstm",
            "(Tensor x, Tensor h, Tensor c, Tensor[] weights) -> Tensor",
            lstm,
            lambda x, h, c, weights: x.new_empty(x.shape[0], x.shape[1], h.shape[2]),
        ),
        recurrent,
    ),
    # attention
    family("flash_attention", "aten", attention(aten._scaled_dot_product_flash_attention), heads),
    family("efficient_attention", "aten", attention(aten._scaled_dot_product_efficient_attention), heads),
    family("cudnn_attention", "aten", attention(aten._scaled_dot_product_cudnn_attention), heads),
    # kernels of ATen, CUB and Thrust
    family(
        "layer_norm",
        "opaque",
        opaque(
            "layer_norm",
            "(Tensor x, Tensor w, Tensor b) -> Tensor",
            lambda x, w, b: F.layer_norm(x, (512,), w, b),
            like_first,
        ),
        lambda: (random(64, 512), random(512), random(512)),
    ),
    family(
        "embedding",
        "opaque",
        opaque("embedding", "(Tensor table, Tensor i) -> Tensor", lambda table, i: F.embedding(i, table)),
        lambda: (random(1000, 64), indices(1000, 64)),
    ),
    family(
        "embedding_bag",
        "opaque",
        opaque(
            "embedding_bag",
            "(Tensor table, Tensor i) -> Tensor",
            lambda table, i: F.embedding_bag(i, table, mode="sum"),
            lambda table, i: table.new_empty(i.shape[0], table.shape[1]),
        ),
        lambda: (random(1000, 64, dtype=FP32), indices(1000, 32, 4)),
    ),
    family(
        "cat_3",
        "opaque",
        opaque("cat", "(Tensor[] parts) -> Tensor", lambda parts: torch.cat(parts, 1)),
        lambda: ([random(64, 128) for _ in range(3)],),
    ),
    family("cat_32", "opaque", torch.ops.pygraph_tests_gpu.cat.default, lambda: ([random(64, 32) for _ in range(32)],)),
    family("cat_32", "aten", lambda parts: torch.cat(parts, 1), lambda: ([random(64, 32) for _ in range(32)],)),
    family("sort", "aten", lambda x: torch.sort(x, dim=-1), lambda: (random(64, 5000, dtype=FP32),)),
    family(
        "sort",
        "opaque",
        opaque("sort", "(Tensor x) -> (Tensor, Tensor)", lambda x: torch.sort(x, dim=-1, stable=True)),
        lambda: (random(64, 5000, dtype=FP32),),
    ),
    family("topk", "aten", lambda x: torch.topk(x, 5, dim=-1), lambda: (random(64, 5000, dtype=FP32),)),
    family(
        "cumsum",
        "opaque",
        opaque("cumsum", "(Tensor x) -> Tensor", lambda x: x.cumsum(0), like_first),
        lambda: (exact(100_000),),
    ),
    family(
        "index_put_accumulate",
        "opaque",
        opaque(
            "index_put",
            "(Tensor x, Tensor i, Tensor v) -> Tensor",
            lambda x, i, v: x.index_put((i,), v, accumulate=True),
            like_first,
        ),
        lambda: (exact(200, 64), indices(200, 512), exact(512, 64)),
    ),
    family(
        "foreach_add_40",
        "opaque",
        opaque("foreach_add", "(Tensor[] parts) -> Tensor[]", lambda parts: list(torch._foreach_add(parts, 1.0))),
        lambda: ([random(33, 32) for _ in range(40)],),
    ),
    family(
        "reduction",
        "opaque",
        opaque("row_sums", "(Tensor x) -> Tensor", lambda x: x.sum(-1)),
        lambda: (random(64, 4096),),
    ),
    family(
        "in_its_own_scraps",
        "opaque",
        opaque("in_its_own_scraps", "(Tensor x) -> Tensor", in_its_own_scraps, like_first),
        lambda: (exact(512, 1024),),
    ),
    # copies and fills: MEMCPY and MEMSET nodes
    family(
        "clone", "opaque", opaque("clone", "(Tensor x) -> Tensor", torch.clone, like_first), lambda: (random(512, 512),)
    ),
    family(
        "zeros",
        "opaque",
        opaque("zeros", "(Tensor x) -> Tensor", torch.zeros_like, like_first),
        lambda: (random(512, 512),),
    ),
    family(
        "zeros_then_scatter",
        "opaque",
        opaque(
            "one_hot",
            "(Tensor i) -> Tensor",
            lambda i: i.new_zeros(i.shape[0], 50).scatter_(1, i[:, None], 1),
            lambda i: i.new_empty(i.shape[0], 50),
        ),
        lambda: (indices(50, 64),),
    ),
]


@pytest.mark.parametrize(("function", "make"), FAMILIES)
def test_family_agrees_with_the_plain_call(function: Callable[..., Any], make: Make) -> None:
    call = compiled(lambda *args: function(*args))
    with torch.no_grad():
        agree(call, lambda _: make())


@pytest.mark.parametrize(
    "backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION], ids=str
)
def test_attention_agrees_forward_and_backward(backend: SDPBackend) -> None:
    """The saved log-sum-exp is allocated by the kernel itself and read by the backward."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2

    call = compiled(function)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[Any]:
        out = call(q, k, v)
        out.float().square().sum().backward()
        return [out.detach(), q.grad, k.grad, v.grad]

    agree(step, lambda _: tuple(one.requires_grad_() for one in heads()))


def test_many_families_in_one_graph_agree() -> None:
    """Outputs of one library are inputs of the next; two of them are returned besides being used."""

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, table: torch.Tensor, i: torch.Tensor) -> Any:
        h = torch.ops.pygraph_tests_gpu.layer_norm(x + F.embedding(i, table), b, b)
        y = F.linear(h, w, b)
        values, order = torch.ops.pygraph_tests_gpu.sort(y.float())
        z = torch.ops.pygraph_tests_gpu.cat([y, values.to(y.dtype)])
        return z.relu(), order, torch.ops.pygraph_tests_gpu.clone(y), y.sum(-1)

    call = compiled(function)
    with torch.no_grad():
        agree(call, lambda _: (random(64, 512), random(512, 512), random(512), random(1000, 512), indices(1000, 64)))


def test_triton_kernel_of_the_user_agrees() -> None:
    triton_kernels = pytest.importorskip("tests.gpu.triton_kernels", reason="no Triton")

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.empty_like(x)
        triton_kernels.scale_and_add[(triton_kernels.blocks(x.numel()),)](x, y, out, x.numel(), BLOCK=256)
        return out, out @ y

    call = compiled(function)
    with torch.no_grad():
        agree(call, lambda _: (random(64, 64, dtype=FP32), random(64, 64, dtype=FP32)))


def test_address_hidden_in_device_memory_is_found_out() -> None:
    """The kernel reads its input's address, divided by 16, from memory: no word of a node moves as the input does."""
    triton_kernels = pytest.importorskip("tests.gpu.triton_kernels", reason="no Triton")
    through_a_table = opaque(
        "through_a_table", "(Tensor x) -> Tensor", triton_kernels.doubled_through_a_table, like_first
    )
    call = compiled(lambda x: through_a_table(x) + 1)
    with torch.no_grad():
        agree(call, lambda _: (random(4096, dtype=FP32),), replays=0, every=False)
