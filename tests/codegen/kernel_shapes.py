"""One program for each shape of kernel that Inductor makes, and the Triton kernels that it generates for them.

Used by the tests of twins: what is compiled there for several devices, and run by Triton's interpreter.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from pygraph_inductor.codegen.twin_kernels import kernel_texts

from .fake_cuda import generate

F32, F16, BF16, I64 = torch.float32, torch.float16, torch.bfloat16, torch.int64
FP8 = torch.float8_e4m3fn


def given(*size: int, dtype: torch.dtype = F32) -> dict[str, Any]:
    """An input of `generate`."""
    return {"size": size, "dtype": dtype}


@dataclass(frozen=True)
class Shape:
    """A program, its inputs (small ones, for the interpreter), and what its kernels' texts must contain.

    `options` are Inductor's; one whose name ends in "?" is set where it exists.
    """

    program: Callable[..., Any]
    inputs: Sequence[Any]
    marks: Sequence[str]
    options: dict[str, Any] = field(default_factory=dict)
    template: bool = False


def _normalized(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    return (torch.nn.functional.layer_norm(x, (x.size(-1),), weight, bias).to(BF16),)


def _added(target: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> Any:
    return (target.index_add(0, index, value),)


def _in_place(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (x.add_(y),)


def _sums(x: torch.Tensor, y: torch.Tensor) -> Any:
    product = x * y
    return product.sum(1), product.sum(0)


_ROWS, _BLOCK = 896, 128


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, counts: torch.Tensor, blocks: torch.Tensor
) -> Any:
    """Causal, with a bias that the template reads besides; for each block of queries, blocks of keys are listed."""
    absent = (None,) * 6  # blocks without a mask, and what only the backward needs
    mask = BlockMask((_ROWS, _ROWS), counts, blocks, *absent, (_BLOCK, _BLOCK), lambda b, h, i, j: i >= j)
    return (flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[j], block_mask=mask),)


ONLY_TRITON = {
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON",
    "max_autotune_conv_backends": "TRITON",
}

SHAPES: dict[str, Shape] = {
    "pointwise": Shape(lambda x, y: (torch.relu(x + y) * 2,), (given(64, 64), given(64, 64)), ["pointwise"]),
    "pointwise, mixed types": Shape(
        lambda x, y, z: (x.float() + y + z,),
        (given(32, 64, dtype=F16), given(64, dtype=torch.float64), given(32, 64, dtype=torch.int32)),
        ["*fp16", "*fp64", "*i32"],
    ),
    "two tiles": Shape(lambda x, y: (x.t() + y,), (given(64, 32), given(32, 64)), ["YBLOCK"]),
    "strided": Shape(lambda x: (x[3:, ::2] * 2,), (given(40, 64),), ["pointwise"]),
    "persistent reduction": Shape(
        _normalized, (given(16, 256), given(256), given(256)), ["persistent_reduction", "*bf16"]
    ),
    "looped reduction": Shape(lambda x: (x.sum(-1), x.amax(-1)), (given(4, 5000),), ["triton_heuristics.reduction"]),
    "reduction over the outer dimension": Shape(lambda x: (x.sum(0),), (given(300, 16),), ["reduction"]),
    "softmax": Shape(lambda x: (torch.softmax(x, -1),), (given(4, 200),), ["persistent_reduction", "libdevice.exp"]),
    "welford": Shape(lambda x: (x.var(-1),), (given(3, 4096),), ["welford"]),
    "scan": Shape(lambda x: (torch.cumsum(x, 0),), (given(16, 8),), ["associative_scan"]),
    "split scan": Shape(lambda x: (torch.cumsum(x, 0),), (given(1 << 17),), ["split_scan"]),
    "sort": Shape(lambda x: torch.sort(x, -1), (given(4, 16),), ["sort"]),
    "gather": Shape(lambda x, i: (x[i] * 2,), (given(50, 16, dtype=BF16), given(7, dtype=I64)), ["*bf16", "*i64"]),
    "embedding": Shape(
        lambda w, i: (torch.nn.functional.embedding(i, w) + 1,), (given(50, 16), given(2, 7, dtype=I64)), ["*i64"]
    ),
    "atomics": Shape(_added, (given(8, 16), given(20, dtype=I64), given(20, 16)), ["atomic_add"]),
    "in place": Shape(_in_place, (given(64, 64), given(64, 64)), ["mutated_arg_names': ['in_"]),
    "bool": Shape(
        lambda x, m: (torch.where(m, x, 0.0), m.logical_not()),
        (given(64, 64), given(64, 64, dtype=torch.bool)),
        ["*i1"],
    ),
    "fp8": Shape(lambda x: (x.to(FP8), (x * 2).to(torch.float8_e5m2)), (given(64, 64),), ["*fp8e4nv", "*fp8e5"]),
    "foreach": Shape(
        lambda x, y, z: tuple(torch._foreach_add([x, y], z)),
        (given(64), given(32, 8), 2.0),
        ["triton_heuristics.foreach"],
    ),
    "combo kernel": Shape(
        lambda x, y: (x.sin(), y + 1),
        (given(64, 8), given(100)),
        ["combo_grid_meta"],
        # The last one is of torch 2.13 and later, which makes none where memory is tight, as here.
        {"combo_kernels": True, "benchmark_combo_kernel": False, "combo_kernel_peak_memory_pct_threshold?": None},
    ),
    "cooperative reduction": Shape(
        lambda x: (x.sum(),),
        (given(1 << 16),),
        ["cooperative_reduction"],
        {"triton.force_cooperative_reductions": True},
    ),
    "matmul template": Shape(
        lambda x, w: (torch.relu(x @ w),),
        (given(64, 128, dtype=F16), given(128, 64, dtype=F16)),
        ["triton_heuristics.template", "tl.dot"],
        ONLY_TRITON,
        template=True,
    ),
    "bmm template": Shape(
        lambda x, w: (torch.relu(x @ w),),
        (given(2, 64, 128, dtype=F16), given(2, 128, 64, dtype=F16)),
        ["triton_heuristics.template", "tl.dot", "idx_q"],
        ONLY_TRITON,
        template=True,
    ),
    "convolution template": Shape(
        lambda x, w: (torch.relu(torch.nn.functional.conv2d(x, w, padding=1)),),
        (given(2, 16, 8, 8, dtype=F16), given(32, 16, 3, 3, dtype=F16)),
        ["triton_heuristics.template", "tl.dot"],
        ONLY_TRITON,
        template=True,
    ),
    "flex attention": Shape(
        _attention,
        # So many that the interpreter's integers, which are below 7, are counts and numbers of blocks.
        (
            *[given(1, 1, _ROWS, 16, dtype=F16)] * 3,
            given(_ROWS),
            given(1, 1, _ROWS // _BLOCK, dtype=torch.int32),
            given(1, 1, _ROWS // _BLOCK, _ROWS // _BLOCK, dtype=torch.int32),
        ),
        ["triton_heuristics.template", "tl.dot", "arg_KV_IDX"],
        template=True,
    ),
    "mix-order reduction": Shape(
        _sums,
        (given(256, 64), given(256, 64)),
        ["RSPLIT_SIZE"],
        # Also where it is too small to be worth it.
        {"triton.mix_order_reduction": True, "triton.mix_order_reduction_non_strict_mode": True},
    ),
    "three tiles": Shape(
        lambda x, y: (x.permute(2, 1, 0) + y,),
        (given(8, 16, 32), given(32, 16, 8)),
        ["ZBLOCK"],
        {"triton.max_tiles": 3, "triton.prefer_nd_tiling": True},
    ),
}


def kernels_of(shape: Shape, folder: Any) -> dict[str, str]:
    """The texts of the Triton kernels generated for it, by name. Within `fake_cuda`."""
    with _templates() if shape.template else contextlib.nullcontext():
        known = {name: value for name, value in shape.options.items() if "?" not in name or _has_option(name[:-1])}
        options = {name.removesuffix("?"): value for name, value in known.items()}
        generated = generate(shape.program, *shape.inputs, folder=folder, options=options)
    texts: dict[str, str] = {}
    for source in generated.sources:
        texts.update(kernel_texts(source))
    together = "\n".join(texts.values())
    missing = [mark for mark in shape.marks if mark not in together]
    assert not missing, f"Inductor makes another kernel of it: no {missing}"
    return texts


def _has_option(name: str) -> bool:
    from torch._inductor import config

    return hasattr(config, name)


@contextlib.contextmanager
def _templates() -> Iterator[None]:
    """Take a Triton template where there is one: without a device nothing can be measured."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache, TritonTemplateCaller

    bare = "return_choice" in inspect.signature(AlgorithmSelectorCache.__call__).parameters  # torch 2.11

    def first(self: Any, name: str, choices: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        choice = next(choice for choice in choices if isinstance(choice, TritonTemplateCaller))
        return choice.output_node() if bare else (choice.output_node(), choice)

    with mock.patch.object(AlgorithmSelectorCache, "__call__", first):
        yield
