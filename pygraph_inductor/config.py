"""Every knob, as a config module of torch: `config.strict = True`, `config.patch(strict=True)`, PYGRAPH_STRICT=1.

A knob is read when a function is compiled (`settings.py` keeps what was read with the function), because from torch
2.12 on an assignment is seen only by the thread that made it, and backwards run in threads of their own.
"""

import sys
import typing

from torch.utils._config_module import install_config_module

from pygraph_inductor import environment

# Act also where Inductor's triton.cudagraphs is off (the default mode of torch.compile).
always: bool = environment.flag("always", False)

# Record and replay CPU graphs on the simulated driver. Without it CPU graphs are left alone.
simulate: bool = environment.flag("simulate", False)

# How a replay is told where tensors are: "patch" rewrites addresses in the graph, "indirect" writes a table from which
# Triton kernels read them, "copy" copies them to fixed buffers and back, "auto" chooses per tensor.
engine: str = environment.word("engine", "auto")

# Who manages graphs: "borrowed" is this package, "trees" is stock PyTorch's torch._inductor.cudagraph_trees.
graph_manager: str = environment.word("graph_manager", "borrowed")

# Measure, for each recording, whether the graph pays, and call plainly where it does not. Off: every recording is used.
selection: bool = environment.flag("selection", True)

# What a call costs when variants are compared: "latency" is one call at a time, "throughput" is calls in flight, "auto"
# is the larger of its time on the host and on the device.
objective: str = environment.word("objective", "auto")

# The part of a call's cost that a graph has to save to be worth its memory.
min_gain: float = environment.fraction("min_gain", 0.02)

# What measuring may cost, as a part of the time that compiling and recording took. A few rounds are always measured.
measure_budget: float = environment.fraction("measure_budget", 0.02)

# Bytes that the intermediates of all graphs of one stream may take. A recording beyond it is given up. 0: no limit.
max_graph_memory: int = environment.number("max_graph_memory", 0)

# Recordings kept per function, one per combination of shapes, numbers and aliasing. The least recently used goes.
max_recordings: int = environment.number("max_recordings", 64)

# Combinations of a function that are recorded as soon as they come again. Where more come, each must come so often that
# its graph would have paid for recording it; and what recording costs has to be earned by the function's graphs.
free_recordings: int = environment.number("free_recordings", 8)

# Rewrite graphs so that host values, copies and detours over the host do not cut them. Off: none of the following acts.
transform: bool = environment.flag("transform", True)

# CPU tensors that a graph only copies to the device: one packed, asynchronous copy before the replay.
transform_uploads: bool = environment.flag("transform_uploads", True)

# Bytes that the uploads of one graph may take on the device, where they are all at once. What does not fit is copied
# where the program copies it, which cuts the graph there.
max_upload_bytes: int = environment.number("max_upload_bytes", 256 << 20)

# 0-d CPU tensors next to device tensors: uploaded too, so that their values are no part of a recording.
transform_host_scalars: bool = environment.flag("transform_host_scalars", True)

# What the CPU computes for the device, where every operator gives the same on the device: bit for bit, or, computed
# from numbers or from nothing, within rounding.
transform_host_arithmetic: bool = environment.flag("transform_host_arithmetic", True)

# Integers that `.item()` takes out of a tensor, where the graph goes on and only the device uses them.
transform_items: bool = environment.flag("transform_items", True)

# Functions with torch.cond, or its relative for more branches (torch 2.14), keep graphs on both sides of it.
transform_control_flow: bool = environment.flag("transform_control_flow", True)

# Nodes are put in an order in which a function falls into fewer graphs than Inductor would make of it, and those hand
# on only what they computed.
transform_order: bool = environment.flag("transform_order", True)

# CPU constants of a graph that are used on the device: one copy there, made when the graph is compiled.
transform_constants: bool = environment.flag("transform_constants", True)

# Bytes that those copies of one graph may take.
max_constant_bytes: int = environment.number("max_constant_bytes", 256 << 20)

# CPU parameters, buffers and attributes of modules that are used on the device: a copy is kept there, compared with its
# source before each call, and made anew when that changed.
transform_mirrors: bool = environment.flag("transform_mirrors", True)

# Bytes that those copies may take on one device. What does not fit is uploaded in every call.
max_mirror_bytes: int = environment.number("max_mirror_bytes", 256 << 20)

# Detours from the device over the CPU and back; float results may differ by rounding.
transform_round_trips: bool = environment.flag("transform_round_trips", True)

# Backwards return the gradients of parameters laid out as those, which autograd takes over; what has other strides, as
# of convolutions computed channels-last, it copies. Off by default until it was measured on a GPU.
transform_gradients: bool = environment.flag("transform_gradients", False)

# Extra memory, in bytes, that verifying one recording may take, within half of what is free. Where outputs of two calls
# do not fit, they are compared by digests, one after the other; what needs more even so runs without a graph.
max_verify_bytes: int = environment.number("max_verify_bytes", 32 << 30)

# Bytes of small activations that recorded forwards keep from step to step instead of making them anew, on one device.
# 0: none.
max_kept_bytes: int = environment.number("max_kept_bytes", 512 << 20)

# Raise instead of falling back to the plain call when something of ours fails.
strict: bool = environment.flag("strict", False)

# Install on a torch whose version is unknown or whose private functions changed.
force: bool = environment.flag("force", False)

# Importing the package installs nothing.
disable: bool = environment.flag("disable", False)

if typing.TYPE_CHECKING:
    from torch.utils._config_typing import *  # noqa: F403

install_config_module(sys.modules[__name__])
