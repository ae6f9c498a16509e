"""What is known about a compiled function before its first call: written by `seams`, read by `recording`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pygraph_inductor.driver.protocol import Twins
from pygraph_inductor.settings import Settings

NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Facts:
    """One callable that a graph may be recorded from: a whole compiled graph, or one partition of it.

    Positions count the callable's inputs, or its outputs, from 0.
    """

    # "forward 0/1, partition 2": unique enough to find the graph again in logs.
    name: str
    # "inference", "forward" or "backward".
    kind: str
    # "model.py:12 in forward", or "".
    source: str
    device: torch.device
    # Not expected to move: parameters, buffers, activations saved by a graph.
    static_inputs: frozenset[int] = NONE
    # What Inductor declares as written. Not the whole write set: see `reused_inputs`.
    mutated_inputs: frozenset[int] = NONE
    # The generated code writes intermediates into these inputs' memory (donated buffers).
    reused_inputs: frozenset[int] = NONE
    # Inputs that the kernels take to be 16-byte aligned; may depend on which tensors came aligned in the first call.
    checked_inputs: Callable[[Sequence[Any]], Sequence[int]] | frozenset[int] = NONE
    # Inputs that the generated kernels, which alone are given them, were compiled to find at any address; as far
    # as they do not write to them.
    anywhere_inputs: frozenset[int] = NONE
    # Outputs that the user or autograd's result sees, as opposed to activations saved for the backward. None: all.
    visible_outputs: frozenset[int] | None = None
    # Globals of the generated module.
    namespace: dict[str, Any] = field(default_factory=dict)
    # The Triton kernels of the generated module. They are compiled for tensors at multiples of 16 bytes, or for any:
    # unlike those of libraries they are not chosen by a call's addresses.
    triton_kernels: frozenset[str] = frozenset()
    # The names in `namespace` that allocate tensors.
    allocators: tuple[str, ...] = ()
    # Positions of an attention's random seed and offset: a plain call wants them on the host (codegen/attention_seeds).
    attention_seeds: tuple[tuple[int, int], ...] = ()
    # Why this function is never recorded, known before its first call (collectives, effects), or None.
    refusal: str | None = None
    # The function must not be executed an extra time, neither to verify nor to measure: it has host nodes, effectful
    # operators or (in a process group of one rank) collectives.
    once_only: bool = False
    # triton.cudagraph_capture_sizes: with int inputs, only these values are recorded. None: every value.
    capture_sizes: tuple[int | tuple[int, ...], ...] | None = None
    # triton.cudagraph_skip_dynamic_graphs: a function with int inputs is not recorded.
    skip_dynamic: bool = False
    settings: Settings = field(default_factory=Settings)
    # Twins of the kernels among `namespace`, which take addresses of addresses. None: the driver has them, or nobody.
    twins: Twins | None = None
    # Names the generated code, alike in every process; and the folder where decisions about it are kept. None: nowhere.
    graph_hash: str | None = None
    decisions_folder: str | None = None
    # What compiling it took; functions of one graph share it evenly. 0: a cache answered, or it is not known.
    compile_ns: int = 0
