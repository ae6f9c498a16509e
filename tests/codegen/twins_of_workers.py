"""Makes twins of kernels that Inductor's worker processes compiled, and of the same ones compiled in this process.

A program of its own, since a pool of workers belongs to a process: `python -m tests.codegen.twins_of_workers FILE`,
with their number in TORCHINDUCTOR_COMPILE_THREADS. The file is JSON: the texts of generated modules, by name. Printed,
as JSON too: what became of each kernel and its twin, first with the workers, then without.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

# As `sitecustomize.py` in a folder of PYTHONPATH, it reaches the processes of the pool: they, too, believe in a GPU.
SITE = """
import sys

if any("compile_worker" in argument for argument in sys.orig_argv):
    from tests.codegen.fake_cuda import fake_cuda

    invented = fake_cuda()
    invented.__enter__()
"""


def load(source: str) -> dict[str, Any]:
    """The globals of a generated module, all its kernels compiled."""
    namespace: dict[str, Any] = {"__name__": "generated", "__file__": "generated.py"}
    exec(compile(source, "generated.py", "exec"), namespace)
    return namespace


def launchers(autotuner: Any) -> None:
    """In place of loading onto a device: as if tuning had taken the last configuration."""
    autotuner.launchers = [SimpleNamespace(config=autotuner.compile_results[-1].config)]


def twins(source: str) -> dict[str, Any]:
    """Each kernel of a module, and the twin in which all its pointers are indirect."""
    from pygraph_inductor.codegen.twin_kernels import TritonTwins, kernel_texts

    namespace = load(source)
    made = TritonTwins(namespace, source)
    found = {}
    for name in kernel_texts(source):
        kernel = namespace[name]
        arguments = tuple(number for number in range(len(kernel.fn.arg_names)) if made.refusal(name, number) is None)
        refusal = made.prepare(name, arguments)
        assert refusal is None, f"{name}: {refusal}"
        (result,) = made._twins[name, arguments].compile_results
        found[name] = {
            "by a worker": kernel.fn.fn is None,  # Python functions do not come with what a worker compiled
            "configuration": str(kernel.launchers[0].config),
            "the twin's": str(result.config),
            "the twin's code": result.kernel.asm["ptx"],
        }
    return found


def main(file: str) -> int:
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    from tests.codegen.fake_cuda import fake_cuda

    sources: dict[str, str] = json.loads(Path(file).read_text())
    # Not the launcher that keeps of a compiled kernel only what it needs.
    code_is_kept = config.patch(use_static_triton_launcher=False)
    with fake_cuda(), code_is_kept, mock.patch.object(CachingAutotuner, "_make_launchers", launchers):
        AsyncCompile.wait_pool_ready()
        with_workers = {name: twins(source) for name, source in sources.items()}
        with config.patch(compile_threads=1):
            without = {name: twins(source) for name, source in sources.items()}
    print(json.dumps([with_workers, without]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
