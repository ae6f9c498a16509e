"""What every process that measures imports, for the server that they are forked from. Nothing here may use a GPU."""

import contextlib

import torch._inductor.compile_fx  # noqa: F401

import scripts.bench.worker  # noqa: F401
from scripts.bench.registry import all_workloads

with contextlib.suppress(ImportError):
    import transformers.modeling_utils  # noqa: F401
all_workloads()
