"""Kernels, graph launches and copied bytes of an iteration, seen from outside by torch's profiler."""

from __future__ import annotations

import bisect
import json
import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from scripts.bench.results import Activity, Profile

HEAVIEST = 16  # device activities that a result names
COPIES = ("aten::copy_", "aten::_foreach_copy_")
COPY_NODE = "memcpy"  # so begin the names of the kernels as which graphs run copies on the device
COMPILED = "## Call CompiledFxGraph"  # how Inductor names the calls of what it compiled
DIRECTIONS = {"DtoD": "device_to_device", "HtoD": "host_to_device", "DtoH": "device_to_host"}
SIZES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4, "short int": 2,
    "short": 2, "signed char": 1, "char": 1, "unsigned char": 1, "bool": 1, "c10::complex<float>": 8,
}  # fmt: skip


def profiled(iterate: Callable[[], Any], iterations: int) -> Profile:
    """Profile `iterations` calls of `iterate`, after one that only warms the profiler up."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities):
        iterate()
        torch.cuda.synchronize()
    with profile(activities=activities, record_shapes=True) as found:
        for _ in range(iterations):
            iterate()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
    return read_trace(trace["traceEvents"], iterations)


def read_trace(events: Iterable[dict[str, Any]], iterations: int) -> Profile:
    """Count what a Chrome trace says. A kernel belongs to a graph if the call that launched it launched a graph."""
    launchers: dict[Any, dict[str, Any]] = {}
    compiled = Ranges()
    operators: dict[Any, dict[str, Any]] = {}
    device: list[dict[str, Any]] = []
    for event in events:
        category, args = event.get("cat"), event.get("args", {})
        if category in ("cpu_op", "user_annotation") and event["name"].startswith(COMPILED):
            compiled.add(event)  # an annotation before torch 2.14, since then an operator
        if category in ("cuda_runtime", "cuda_driver"):
            launchers[args.get("correlation")] = event
        elif category == "cpu_op":
            operators[args.get("External id")] = event
        elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
            device.append(event)
    kernels = in_graphs = in_compiled = copies = busy = 0.0
    copied = dict.fromkeys((*DIRECTIONS.values(), "other"), 0.0)
    counted: set[Any] = set()
    by_name: dict[str, tuple[int, float]] = {}
    for event in device:
        args = event.get("args", {})
        busy += event.get("dur", 0.0)
        count, spent = by_name.get(event["name"], (0, 0.0))
        by_name[event["name"]] = (count + 1, spent + event.get("dur", 0.0))
        launcher = launchers.get(args.get("correlation"), {"name": ""})
        graph = "GraphLaunch" in launcher["name"]
        if event["cat"] == "gpu_memcpy":
            direction = next((DIRECTIONS[d] for d in DIRECTIONS if d in event["name"]), "other")
            copied[direction] += args.get("bytes", 0)
            copies += direction == "device_to_device"
        elif event["cat"] == "kernel":
            kernels += 1
            in_graphs += graph
            in_compiled += compiled.hold(launcher)
            origin = args.get("External id")
            operator = operators.get(origin)
            copies += graph and event["name"].startswith(COPY_NODE)
            if not graph and operator is not None and operator["name"] in COPIES and origin not in counted:
                copies += 1
                counted.add(origin)  # a list of tensors may take several kernels
                copied["device_to_device"] += bytes_of(operator["args"], event["name"])
    launches = sum("GraphLaunch" in launcher["name"] for launcher in launchers.values())
    heaviest = sorted(by_name.items(), key=lambda item: -item[1][1])[:HEAVIEST]
    return Profile(
        iterations=iterations,
        kernels=kernels / iterations,
        kernels_in_graphs=in_graphs / iterations,
        kernels_compiled=in_compiled / iterations,
        copies=copies / iterations,
        graph_launches=launches / iterations,
        busy_us=busy / iterations,
        copied_bytes={kind: amount / iterations for kind, amount in copied.items()},
        heaviest=[Activity(name, count / iterations, spent / iterations) for name, (count, spent) in heaviest],
    )


class Ranges:
    """Spans of time by thread, none of which overlap unless one holds the other."""

    def __init__(self) -> None:
        self._by_thread: dict[Any, list[tuple[float, float]]] = defaultdict(list)

    def add(self, event: dict[str, Any]) -> None:
        bisect.insort(self._by_thread[event["tid"]], (event["ts"], event["ts"] + event["dur"]))

    def hold(self, event: dict[str, Any]) -> bool:
        """Whether the event began within one of its thread's spans."""
        spans = self._by_thread.get(event.get("tid"), [])
        started = spans[: bisect.bisect_right(spans, (event.get("ts", 0.0), math.inf))]
        return any(end > event["ts"] for _, end in reversed(started))


def bytes_of(args: dict[str, Any], kernel: str) -> float:
    """The size of a copy's destination, from the shapes that the profiler recorded with the operator.

    It does not record the element type of a list of tensors. One kernel over a list means that all have one type, and
    then the kernel's name holds it; mixed lists are copied one by one.
    """
    shapes, kinds = args.get("Input Dims", [[]]), args.get("Input type", [""])
    if kinds[0] != "TensorList":
        return float(math.prod(shapes[0]) * SIZES.get(kinds[0], 4))
    element = re.search(r"Functor<\s*([\w:]+(?:<\w+>)?)", kernel)
    size = SIZES.get(element.group(1), 4) if element else 4
    return float(sum(math.prod(shape) for shape in shapes[0]) * size)
