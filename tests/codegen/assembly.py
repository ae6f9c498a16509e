"""What Triton makes of a kernel's text for a device that is not there."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What tells whether loads are still as wide, copies as asynchronous, and products on the same units.
_WIDE = {
    "load 128": r"ld\.global[\w.:]*\.v4\.[bfu]32|ld\.global[\w.:]*\.v2\.[bfu]64",
    "load 64": r"ld\.global[\w.:]*\.v2\.[bfu]32",
    "load of vectors": r"ld\.global[\w.:]*\.v\d",
    "store 128": r"st\.global[\w.:]*\.v4\.[bfu]32|st\.global[\w.:]*\.v2\.[bfu]64",
    "store 64": r"st\.global[\w.:]*\.v2\.[bfu]32",
    "store": r"st\.global",
    "over 16 bytes": r"(ld|st)\.global[\w.:]*\.(v8\.[bfu]32|v4\.[bfu]64)",
    "atomic": r"(atom|red)\.global",
    "asynchronous copy": r"cp\.async\.c[ag]",
    "bulk copy": r"cp\.async\.bulk",
    "mma": r"mma\.sync",
    "wgmma": r"wgmma\.mma_async",
    "tcgen05": r"tcgen05\.mma",
}


@dataclass(frozen=True)
class Assembly:
    """Counts of instructions, and bytes of memory that the kernel uses beside its own (registers spilled there)."""

    instructions: Counter[str]
    loads: int
    spilled: int


def assembled(text: str, capability: int) -> Assembly:
    """Compile a kernel's text in its first configuration. Within `fake_cuda`."""
    import triton
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    (kernel,) = [value for value in vars(PyCodeCache.load(text)).values() if isinstance(value, CachingAutotuner)]
    config = kernel.configs[0]
    meta = kernel._create_compile_meta(config)
    options = kernel._create_compile_options(config, meta)
    source = ASTSource(kernel.fn, meta["signature"], meta["constants"], meta["configs"][0])
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = binary.asm["ptx"]
    counts = Counter({name: len(re.findall(pattern, ptx)) for name, pattern in _WIDE.items()})
    return Assembly(counts, len(re.findall(r"ld\.global", ptx)), _spilled(binary))


def _spilled(binary: Any) -> int:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    file = next(Path(path) for name, path in binary.metadata_group.items() if name.endswith(".cubin"))
    shown = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True).stdout
    stack, local = re.findall(r"STACK:(\d+)", shown), re.findall(r"LOCAL:(\d+)", shown)
    assert stack and local, shown
    return sum(map(int, stack + local))
