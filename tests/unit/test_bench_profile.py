"""What is read from a profiler's trace: copies by direction, kernels in and out of graphs. Traces written by hand."""

from __future__ import annotations

import json

import pytest
import torch

from scripts.bench.profile import COMPILED, read_trace


def launch(name: str, correlation: int, at: float = 0.0, thread: int = 1) -> dict:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": at, "tid": thread, "args": args}


def call_of_compiled_code(start: float, end: float, thread: int = 1, category: str = "cpu_op") -> dict:
    name = "## Call CompiledFxGraph fabc ##"
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, "tid": thread, "args": {}}


def kernel(name: str, correlation: int, origin: int = 0, microseconds: float = 2.0) -> dict:
    args = {"correlation": correlation, "External id": origin}
    return {"ph": "X", "cat": "kernel", "name": name, "dur": microseconds, "args": args}


def copy_node(direction: str, nbytes: int, correlation: int) -> dict:
    args = {"correlation": correlation, "bytes": nbytes}
    return {"ph": "X", "cat": "gpu_memcpy", "name": f"Memcpy {direction} (A -> B)", "dur": 1.0, "args": args}


def operator(name: str, origin: int, shapes: list, kinds: list) -> dict:
    args = {"External id": origin, "Input Dims": shapes, "Input type": kinds}
    return {"ph": "X", "cat": "cpu_op", "name": name, "args": args}


def test_kernels_of_a_graph_launch_are_in_graphs():
    found = read_trace(
        [launch("cudaGraphLaunch", 1), kernel("a", 1), kernel("b", 1), launch("cuLaunchKernelEx", 2), kernel("c", 2)], 1
    )
    assert (found.kernels, found.kernels_in_graphs, found.graph_launches) == (3, 2, 1)
    assert found.busy_us == 6.0


@pytest.mark.parametrize("category", ["cpu_op", "user_annotation"])
def test_kernels_of_compiled_code_are_those_launched_in_its_calls(category):
    events = [
        launch("cuLaunchKernel", 1, at=5),  # before
        call_of_compiled_code(10, 30, category=category),
        call_of_compiled_code(12, 14, category=category),  # one in the other, which goes on after it
        launch("cudaGraphLaunch", 2, at=13),
        launch("cuLaunchKernel", 3, at=20),
        launch("cuLaunchKernel", 4, at=20, thread=2),  # another thread's
        launch("cuLaunchKernel", 5, at=31),  # after
        *(kernel("k", correlation) for correlation in (1, 2, 2, 3, 4, 5, 6)),
    ]
    found = read_trace(events, 1)
    assert (found.kernels, found.kernels_compiled, found.kernels_in_graphs) == (7, 3, 2)


def test_calls_of_compiled_code_are_found_in_a_real_trace(tmp_path):
    doubled = torch.compile(lambda x: x * 2 + 1)
    doubled(torch.ones(3))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        doubled(torch.ones(3))
    found.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    [call] = [event for event in events if event.get("name", "").startswith(COMPILED) and event["ph"] == "X"]
    inside = launch("cuLaunchKernel", 1, at=call["ts"] + call["dur"] / 2, thread=call["tid"])
    assert read_trace([*events, inside, kernel("k", 1)], 1).kernels_compiled == 1


def test_copies_are_told_apart_by_direction():
    found = read_trace([copy_node("DtoD", 100, 1), copy_node("HtoD", 10, 2), copy_node("DtoH", 1, 3)], 1)
    assert found.copied_bytes == {"device_to_device": 100, "host_to_device": 10, "device_to_host": 1, "other": 0}


def test_a_copy_kernel_outside_graphs_counts_with_its_operators_size():
    events = [
        operator("aten::copy_", 7, [[3, 4], [3, 4], []], ["c10::BFloat16", "c10::BFloat16", "Scalar"]),
        launch("cudaLaunchKernel", 1),
        kernel("direct_copy_kernel", 1, origin=7),
    ]
    assert read_trace(events, 1).copied_bytes["device_to_device"] == 24


@pytest.mark.parametrize(("element", "size"), [("float", 4), ("c10::BFloat16", 2), ("long", 8)])
def test_a_list_of_copies_counts_once_however_many_kernels_it_takes(element, size):
    name = f"multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<{element}, {element}, 2, 1, 1>>"
    events = [
        operator("aten::_foreach_copy_", 7, [[[3, 4], [5]], [[3, 4], [5]], []], ["TensorList", "TensorList", "Scalar"]),
        kernel(name, 1, origin=7),
        kernel(name, 2, origin=7),
    ]
    assert read_trace(events, 1).copied_bytes["device_to_device"] == 17 * size


def test_every_way_to_copy_on_the_device_is_counted():
    """Graphs run their copies as kernels, of which the profiler does not tell the bytes."""
    tensors = [[[3, 4], [5]], [[3, 4], [5]], []], ["TensorList", "TensorList", "Scalar"]
    events = [
        copy_node("DtoD", 100, 1),
        copy_node("HtoD", 10, 2),
        launch("cudaGraphLaunch", 3),
        kernel("memcpy128", 3),
        kernel("memcpy32_post", 3),
        kernel("triton_poi_fused_add_0", 3),
        operator("aten::_foreach_copy_", 7, *tensors),
        kernel("CopyFunctor<float, float, 2, 1, 1>", 4, origin=7),
        kernel("CopyFunctor<float, float, 2, 1, 1>", 5, origin=7),
        kernel("memcpy of somebody's own", 6),
    ]
    assert read_trace(events, 1).copies == 4
    assert read_trace(events, 2).copies == 2


def test_other_kernels_copy_nothing():
    events = [operator("aten::add_", 7, [[3, 4]], ["float"]), kernel("add", 1, origin=7)]
    assert read_trace(events, 1).copied_bytes["device_to_device"] == 0


def test_counts_are_per_iteration():
    found = read_trace([launch("cudaGraphLaunch", 1), kernel("a", 1), launch("cudaGraphLaunch", 2), kernel("a", 2)], 2)
    assert (found.kernels, found.graph_launches, found.busy_us) == (1, 1, 2)


def test_what_takes_most_time_is_named_per_iteration():
    events = [kernel("slow", 1), kernel("slow", 2), kernel("quick", 3), copy_node("DtoD", 100, 4)]
    found = read_trace(events, 2).heaviest
    by_name = {activity.name: (activity.count, activity.us) for activity in found}
    assert by_name == {"slow": (1.0, 2.0), "quick": (0.5, 1.0), "Memcpy DtoD (A -> B)": (0.5, 0.5)}
    assert found[0].name == "slow"
