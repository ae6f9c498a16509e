"""Conditional nodes whose condition a kernel in front of them sets, by what it reads on the device in each replay."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pygraph_inductor.driver.libcuda import bindings, checked, launch
from tests.gpu.child_graphs import under_way
from tests.gpu.conditional_graphs import body_under, new_condition

DECIDES = "condition_from_flag"  # the kernel's name

# The driver has cudaGraphSetConditional, as it has malloc and printf of kernels, and resolves it when it loads the
# module: no library has to be linked. Without a flag the kernel does nothing.
PTX = f"""
.version 7.0
.target sm_70
.address_size 64

.extern .func cudaGraphSetConditional(.param .b64 condition, .param .b32 value);

.visible .entry {DECIDES}(
    .param .u64 condition,
    .param .u64 flag
)
{{
    .reg .pred %nothing, %holds;
    .reg .b32 %value;
    .reg .b64 %condition, %flag;

    ld.param.u64 %flag, [flag];
    setp.eq.u64 %nothing, %flag, 0;
    @%nothing ret;
    cvta.to.global.u64 %flag, %flag;
    ld.global.u32 %value, [%flag];
    setp.ne.u32 %holds, %value, 0;
    selp.u32 %value, 1, 0, %holds;
    ld.param.u64 %condition, [condition];
    {{
        .param .b64 to;
        .param .b32 what;
        st.param.b64 [to], %condition;
        st.param.b32 [what], %value;
        call.uni cudaGraphSetConditional, (to, what);
    }}
    ret;
}}
"""


def new_flag(value: int) -> torch.Tensor:
    """What a condition is read from."""
    return torch.full((1,), value, dtype=torch.int32, device="cuda")


def is_set(flag: torch.Tensor) -> bool:
    """What the host does instead, where nothing is captured."""
    _kernel()  # no capture that comes later has to load it, which none survives
    return bool(flag.item())


@contextlib.contextmanager
def body_if(flag: torch.Tensor) -> Iterator[torch.cuda.Stream]:
    """What is launched on the stream that this gives is in the body of a conditional node afterwards, in the capture of
    the current stream, and is executed in those replays that find the flag set.
    """
    condition = new_condition(under_way()[0], 0)
    _launch(_kernel(), int(condition), flag.data_ptr())
    with body_under(condition) as side:
        yield side


def do_if(flag: torch.Tensor, work: Callable[[], Any]) -> None:
    """Do it if the flag is set: decided by the device under capture, by the host elsewhere."""
    if torch.cuda.is_current_stream_capturing():
        with body_if(flag) as stream, torch.cuda.stream(stream):
            work()
    elif is_set(flag):
        work()


def _launch(kernel: int, condition: int, flag: int) -> None:
    stream = torch.cuda.current_stream().cuda_stream
    launch(kernel, 1, 1, stream, (ctypes.c_uint64(condition), ctypes.c_uint64(flag)))


@functools.cache
def _kernel() -> int:
    """The function's handle. It stays loaded, and was launched once: it may be loaded as late as by that."""
    module = checked(bindings().cuModuleLoadData(PTX.encode() + b"\0"))
    kernel = int(checked(bindings().cuModuleGetFunction(module, DECIDES.encode())))
    _launch(kernel, 0, 0)
    torch.cuda.current_stream().synchronize()
    return kernel
