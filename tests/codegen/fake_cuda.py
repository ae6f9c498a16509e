"""Inductor's CUDA code generation on a machine without a GPU: a CUDA build of torch is told about an invented device.

Inputs are fake tensors on `cuda:0`, device properties and Triton's driver are replaced, and the generated module is
loaded with stubs in place of its kernels. So everything up to the first launch is the real thing.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

PROPERTIES = types.SimpleNamespace(
    name="invented device",
    major=9,
    minor=0,
    total_memory=140 << 30,
    multi_processor_count=132,
    warp_size=32,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=60 << 20,
    is_integrated=0,
    gcnArchName="",
    uuid="0",
    pci_bus_id=0,
    clock_rate=1980000,
    memory_clock_rate=3201000,
    memory_bus_width=6144,
)


class _TritonDriver:
    """What Triton and Inductor ask of a driver before anything is launched."""

    class utils:
        @staticmethod
        def get_device_properties(device: int) -> dict[str, int]:
            return {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": 32, "max_num_regs": 65536}

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def _forget_cached_answers() -> None:
    """Inductor remembers what it learned about devices; what it learns here must not outlive the pretence."""
    import torch._inductor.runtime.hints as hints
    import torch.utils._triton as about_triton

    hints.DeviceProperties.create.cache_clear()
    for name, function in vars(about_triton).items():
        if ("triton" in name or "tma" in name) and hasattr(function, "cache_clear"):
            function.cache_clear()


@contextlib.contextmanager
def fake_cuda() -> Iterator[None]:
    """Within it, Inductor believes that `cuda:0` is an sm_90 device."""
    import torch._inductor.runtime.triton_helpers as triton_helpers
    from torch._dynamo.device_interface import CudaInterface
    from triton.runtime import driver as triton_driver

    def always(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    interface = {
        "is_available": True,
        "get_compute_capability": 90,
        "get_device_properties": PROPERTIES,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
        "current_device": 0,
        "is_bf16_supported": True,
    }
    cuda = {
        "get_device_properties": PROPERTIES,
        "get_device_capability": (9, 0),
        "get_device_name": PROPERTIES.name,
        "current_device": 0,
        "device_count": 1,
        "synchronize": None,
        "is_bf16_supported": True,
    }
    with contextlib.ExitStack() as stack:
        for name, value in interface.items():
            stack.enter_context(mock.patch.object(CudaInterface, name, staticmethod(always(value)), create=True))
        worker = CudaInterface.Worker
        stack.enter_context(mock.patch.object(worker, "get_device_properties", staticmethod(always(PROPERTIES))))
        stack.enter_context(mock.patch.object(worker, "current_device", staticmethod(always(0))))
        for name, value in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, always(value)))
        stack.enter_context(mock.patch.object(triton_helpers, "set_driver_to_gpu", always(None)))
        # Triton 3.6 finds its driver lazily in `_active`, later versions behind a property of the class.
        if isinstance(getattr(type(triton_driver), "active", None), property):
            stack.enter_context(mock.patch.object(type(triton_driver), "active", _TritonDriver()))
        else:
            stack.enter_context(mock.patch.object(triton_driver, "_active", _TritonDriver(), create=True))
        _forget_cached_answers()
        try:
            yield
        finally:
            _forget_cached_answers()


class Kernel:
    """Stands where a compiled Triton kernel would; launching it fails loudly."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source

    def run(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"{self.name} was launched on a machine without a GPU")


@dataclass
class Generated:
    """What a compilation left behind: per graph the text, the module and the compiled graph, in order."""

    sources: list[str] = field(default_factory=list)
    modules: list[types.ModuleType] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)

    @property
    def source(self) -> str:
        assert len(self.sources) == 1
        return self.sources[0]


def load(source: str, path: str) -> types.ModuleType:
    """Run generated text as a module, its kernels replaced by stubs."""
    from torch._inductor.async_compile import AsyncCompile

    module = types.ModuleType("generated")
    module.__file__ = path
    stub = mock.patch.object(AsyncCompile, "triton", lambda self, name, text, **kwargs: Kernel(name, text))
    with stub, mock.patch.object(AsyncCompile, "wait", lambda self, scope: None):
        exec(compile(source, path, "exec"), vars(module))
    return module


@contextlib.contextmanager
def caught(folder: str) -> Iterator[Generated]:
    """Keep what Inductor generates instead of compiling its kernels."""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.output_code import CompiledFxGraph

    generated = Generated()

    def to_module(self: Any, wrapper_code: Any) -> types.ModuleType:
        source = wrapper_code.value
        path = f"{folder}/generated_{len(generated.sources)}.py"
        with open(path, "w") as file:
            file.write(source)
        self.cache_key, self.cache_path, self.cache_linemap = f"generated{len(generated.sources)}", path, []
        generated.sources.append(source)
        generated.modules.append(load(source, path))
        return generated.modules[-1]

    construct = CompiledFxGraph.__init__

    def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        generated.graphs.append(self)

    with (
        mock.patch.object(GraphLowering, "_compile_to_module_lines", to_module),
        mock.patch.object(CompiledFxGraph, "__init__", constructed),
    ):
        yield generated


def tensors(mode: FakeTensorMode, specs: Sequence[Any]) -> list[Any]:
    """Fake inputs: a shape means float32 on the device, a dict is passed to `torch.empty`, numbers stay numbers.

    "offset" in a dict: so many elements behind the beginning of its memory.
    """
    inputs: list[Any] = []
    with mode:
        for spec in specs:
            if isinstance(spec, (int, float, numpy.generic)):
                inputs.append(spec)
            elif isinstance(spec, dict) and "offset" in spec:
                size, offset = spec["size"], spec["offset"]
                inputs.append(torch.empty(offset + math.prod(size), device="cuda:0")[offset:].view(size))
            elif isinstance(spec, dict):
                make = torch.empty_strided if "stride" in spec else torch.empty
                inputs.append(make(**{"device": "cuda:0", **spec}))
            else:
                inputs.append(torch.empty(spec, device="cuda:0"))
    return inputs


def generate(
    function: Callable[..., Any],
    *specs: Any,
    folder: Any,
    options: dict[str, Any] | None = None,
    inner: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Generated:
    """Trace `function` and let Inductor compile the graph, as AOTAutograd would have it done.

    `options` are Inductor's, `inner` stands for `compile_fx_inner`, and `kwargs` go to it.
    """
    import torch._inductor.config as inductor_config
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.cudagraph_utils import BoxedDeviceIndex
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.utils import BoxedBool
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = FakeTensorMode(shape_env=ShapeEnv())
    inputs = tensors(mode, specs)
    with mode:
        graph = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="real")(*inputs)
    options = {"fx_graph_cache": False, "triton.cudagraphs": True, "compile_threads": 1, **(options or {})}
    arguments: dict[str, Any] = {
        "cudagraphs": BoxedBool(options["triton.cudagraphs"]),
        "is_inference": True,
        "static_input_idxs": (),
        "boxed_forward_device_index": BoxedDeviceIndex(None),
        "graph_id": 0,
        **kwargs,
    }
    with inductor_config.patch(options), tracing(TracingContext(mode)), caught(str(folder)) as generated:
        (inner or compile_fx_inner)(graph, inputs, **arguments)
    return generated


def compile_module(
    module: torch.nn.Module, *specs: Any, folder: Any, options: dict[str, Any] | None = None, **kwargs: Any
) -> Generated:
    """The whole way of `torch.compile` for a module in inference, up to its first launch."""
    import torch._functorch.config as functorch_config
    import torch._inductor.config as inductor_config

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    patches = {"fx_graph_cache": False, "compile_threads": 1}
    torch._dynamo.reset()
    with (
        inductor_config.patch(patches),
        functorch_config.patch({"enable_autograd_cache": False}),
        caught(str(folder)) as generated,
        torch.no_grad(),
        mode,
    ):
        inputs = tensors(mode, specs)
        with contextlib.suppress(AssertionError, RuntimeError):  # the first thing that needs the device
            torch.compile(module, options=options, **kwargs)(*inputs)
    assert generated.sources
    return generated
