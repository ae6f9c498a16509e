"""Two frames that tell apart what a training step spends on our path: what they make, free and launch, and the sums."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pygraph_inductor import config
from pygraph_inductor.recording.keeping import LARGEST
from scripts.bench import (
    bare_frame,
    event_profile,
    facts,
    host_cost,
    host_cost_recordings,
    host_cost_timing,
    host_cost_training,
    host_cost_training_page,
    variants,
)
from scripts.bench.host_cost_page import page as page_of
from scripts.bench.host_cost_rows import Row, double
from scripts.bench.host_cost_training import AMID, ANEW, Frames
from scripts.bench.made_anew import made_anew
from tests.simulated.hand_written import HandWritten

FOLDER = facts.ROOT / "docs" / "benchmarks"
ROWS, WIDE, NARROW = 2048, 1024, 8  # (ROWS, WIDE) of float32 are 8 MiB, (ROWS, NARROW) 64 KiB


class Model(torch.nn.Module):
    """Saves two large activations, small ones, its input, and views of weights, of which one is large."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = torch.nn.Linear(NARROW, WIDE)
        self.keep = torch.nn.Linear(WIDE, 2 * WIDE)
        self.narrow = torch.nn.Linear(2 * WIDE, NARROW)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.tanh(self.widen(x))
        return torch.tanh(self.narrow(torch.sigmoid(self.keep(wide)))).square().mean()


def step(call: Any, model: torch.nn.Module, inputs: Any) -> torch.Tensor:
    for parameter in model.parameters():
        parameter.grad = None
    loss = call(*inputs)
    loss.backward()
    return loss


def row_of(model: torch.nn.Module) -> Row:
    return Row(
        "a step",
        lambda: model,
        lambda: [torch.empty(ROWS, NARROW)],
        lambda call, x: step(call, model, x),
        training=True,
    )


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setattr(host_cost_timing, "SETTLE", 2)
    monkeypatch.setattr(host_cost_timing, "BURST", 3)
    yield
    torch._dynamo.reset()


@pytest.fixture
def ours() -> list[HandWritten]:
    """What answers in place of ours: a forward in two pieces, and a backward, each of one kernel."""

    def one(namespace: Any, x: torch.Tensor) -> Any:
        out = namespace["empty_strided_cpu"]((8,), (1,), torch.float32)
        namespace["cpp_fused_0"](out, x)
        return (out,)

    functions = [HandWritten(one, name=str(number), kind=kind) for number, kind in enumerate(["forward"] * 2)]
    functions.append(HandWritten(one, name="2", kind="backward"))
    return functions


def use(functions: list[HandWritten]) -> None:
    for function in functions:
        function(torch.randn(8))


class Graphs:
    """In place of graphs on a device: who was launched, and in which thread."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.launched: list[tuple[int, int]] = []

    def __call__(self, kernels: int) -> Any:
        self.made.append(kernels)
        return lambda: self.launched.append((kernels, threading.get_ident()))


class Watch:
    """What pieces return, call by call, and which memory of forwards is alive as backwards begin and after the step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forwards: list[list[tuple[int, StorageWeakRef]]] = []  # bytes, memory
        self.alive: list[list[bool]] = []
        original = bare_frame.Piece.__call__

        def watched(piece: Any, inputs: list[Any]) -> list[Any]:
            if piece.kind == "backward":
                self.alive.append([not memory.expired() for _, memory in self.forwards[-1]])
            results = original(piece, inputs)
            if piece.kind == "forward":
                self.forwards.append(
                    [(one.nbytes, StorageWeakRef(one.untyped_storage())) for one in results if one is not None]
                )
            return results

        monkeypatch.setattr(bare_frame.Piece, "__call__", watched)


def hidden(forward: list[tuple[int, StorageWeakRef]], model: torch.nn.Module, x: torch.Tensor) -> list[Any]:
    """Without the loss, and what is of the caller."""
    known = {id_of(one) for one in (*model.parameters(), x)}
    return [(nbytes, memory) for nbytes, memory in forward[1:] if memory.cdata not in known]


def id_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


@pytest.mark.parametrize("anew", [False, True], ids=["nothing", "made anew"])
def test_larger_activations_are_new_in_every_call_and_freed_by_the_backward(
    monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    model, x, watch, pieces = Model(), torch.empty(ROWS, NARROW), Watch(monkeypatch), []
    frame = bare_frame.bare_frame(model, made_anew, pieces) if anew else bare_frame.bare_frame(model, pieces=pieces)
    losses = []
    for _ in range(3):
        losses.append(step(frame, model, [x]))
        saved = hidden(watch.forwards[-1], model, x)
        assert all(watch.alive[-1]), "until the backward is under way"
        large = [memory for nbytes, memory in saved if nbytes > LARGEST]
        small = [memory for nbytes, memory in saved if nbytes <= LARGEST]
        assert len(large) == 2 and len(small) >= 1
        assert all(memory.expired() is anew for memory in large)
        assert not any(memory.expired() for memory in small)
    first, _, last = ([memory.cdata for _, memory in hidden(one, model, x)] for one in watch.forwards)
    if not anew:
        assert first == last, "they serve again"
    [forward] = [piece for piece in pieces if piece.kind == "forward"]
    spans = sorted(layout.span for layout in forward.layouts)
    assert spans == [4, *([ROWS * WIDE * 4, ROWS * WIDE * 8] if anew else [])], "the loss, and what is anew"
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert [piece.kind for piece in pieces] == ["forward", "backward"]


def test_new_memory_is_another_one_while_that_of_the_step_before_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, watch = Model(), torch.empty(ROWS, NARROW), Watch(monkeypatch)
    frame = bare_frame.bare_frame(model, made_anew)
    losses = [frame(x) for _ in range(2)]  # no backward yet
    one, other = ([memory.cdata for nbytes, memory in hidden(forward, model, x)] for forward in watch.forwards)
    large = [place for place, (nbytes, _) in enumerate(hidden(watch.forwards[0], model, x)) if nbytes > LARGEST]
    assert all((one[place] != other[place]) is (place in large) for place in range(len(one))) and len(large) == 2
    del losses
    assert all(memory.expired() for nbytes, memory in hidden(watch.forwards[1], model, x) if nbytes > LARGEST)


def made_of(function: Any, *inputs: torch.Tensor) -> list[int]:
    """The bytes of what a frame's forward makes beyond what the user sees."""
    pieces: list[bare_frame.Piece] = []
    results = bare_frame.bare_frame(function, made_anew, pieces)(*inputs)
    visible = len(results) if isinstance(results, tuple) else 1
    [forward] = [piece for piece in pieces if piece.kind == "forward"]
    return sorted(layout.span for layout in forward.layouts)[: len(forward.layouts) - visible]


def test_what_shares_memory_is_not_made() -> None:
    large = torch.empty(ROWS, WIDE, requires_grad=True)
    other = torch.empty(WIDE, WIDE, requires_grad=True)
    assert made_of(lambda a: a.exp(), large) == [], "saved for the backward, and what the user sees"
    assert made_of(lambda a, b: a @ b.t(), large, other) == [], "inputs and a view of one"


def test_what_does_not_fit_among_what_is_kept_is_made() -> None:
    def function(x: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.tanh(x @ one) @ other)

    inputs = [torch.empty(64, 64), *(torch.empty(64, 64, requires_grad=True) for _ in range(2))]
    assert made_of(function, *inputs) == []
    torch._dynamo.reset()
    with config.patch(max_kept_bytes=0):
        assert made_of(function, *inputs) == [inputs[0].nbytes]


def test_the_frame_makes_what_ours_makes() -> None:
    model, graphs = Model(), Graphs()
    row = Row("", lambda: model, lambda: [torch.randn(ROWS, NARROW)], lambda call, x: step(call, model, x), True)
    frames = Frames(row, model, graphs)
    with variants.active(variants.OURS, simulate=True):
        call = variants.compiled(variants.OURS, model)
        for _ in range(8):
            step(call, model, row.draw())
    for number in range(3):
        frames.turn(number)
    summary = frames.summary({})
    # The loss, two activations, six gradients.
    assert summary["made"]["ours"] == summary["made"]["frame"] and summary["made"]["frame"]["tensors"] == 9
    assert len(graphs.made) == 2 and all(graphs.made)


def test_pieces_launch_as_many_kernels_as_ours(ours: list[HandWritten], monkeypatch: pytest.MonkeyPatch) -> None:
    model, graphs = Model(), Graphs()
    frames = Frames(row_of(model), model, graphs)  # before ours answers
    for _ in range(4):
        use(ours)
    kernels = {function.log.kind: 0 for function in ours}
    for function in ours:
        [recording] = function.recordings
        kernels[function.log.kind] += recording.log.kernels
    assert kernels == {"forward": 2, "backward": 1}
    frames.turn(0)
    assert graphs.made == [2, 1] and graphs.launched
    before = len(graphs.launched)
    for number in (1, 2):
        frames.turn(number)
    calls = 4 + 2 * host_cost_timing.BURST + 2 * host_cost_timing.SINGLES
    assert [kernels for kernels, _ in graphs.launched[before:]] == [2, 1] * (2 * calls)
    summary = frames.summary({})
    assert summary["kernels"] == {"forward": [2], "backward": [1]} and "parts" not in summary
    assert summary["made"]["ours"] == {"tensors": 3, "bytes": 96}
    assert summary["made"]["frame"]["tensors"] == 1 + 2 + 6
    anew, amid = summary[ANEW.name], summary[AMID.name]
    assert 0 < anew["making"]["host"] < anew["host"] and anew["launching"]["host"] == 0
    assert 0 < amid["launching"]["host"] < amid["host"] and 0 < amid["launching"]["alone"] < amid["alone"]


@pytest.mark.parametrize(("kernels", "pieces", "shares"), [(7, 3, [3, 2, 2]), (6, 2, [3, 3]), (1, 2, [1, 0])])
def test_kernels_are_spread_evenly(kernels: int, pieces: int, shares: list[int]) -> None:
    assert host_cost_training.spread(kernels, pieces) == shares


def test_of_each_function_the_recording_counts_that_served_last(ours: list[HandWritten]) -> None:
    first, second, backward = ours
    for size in (8, 16):
        for _ in range(4):
            first(torch.randn(size))
    for _ in range(4):
        second(torch.randn(8))
        backward(torch.randn(8))
    since = host_cost_training.time.monotonic_ns()
    assert host_cost_recordings.served(since) == {}, "nothing since then"
    use([first, backward])
    found = host_cost_recordings.served(since)
    assert {kind: len(recordings) for kind, recordings in found.items()} == {"forward": 1, "backward": 1}
    [recording] = found["forward"]
    assert recording.log.key == "8" and len(first.recordings) == 2


def figures(scale: float) -> dict[str, Any]:
    return {"host": 1000.0 * scale, "alone": 1100.0 * scale}


def measured() -> dict[str, Any]:
    """A row of which everything but the frames is known."""
    found: dict[str, Any] = {
        "nothing": {**figures(3.0), "latency": 1.0, "wait": 1.0},
        "ours": {**figures(4.0), "latency": 1.0, "wait": 1.0},
        "replay": {"host": 16.0, "alone": 90.0, "latency": 1.0, "wait": 1.0},
        "guards": figures(0.1),
        "outputs": {"host": 300.0, "alone": 310.0},
        "phases": {"accept": 60.0, "allocate": 350.0, "tell": 10.0, "launch": 70.0, "wrap": 60.0},
        "training": True,
    }
    found["phases_alone"] = {name: spent + 1 for name, spent in found["phases"].items()}
    found["floor"] = host_cost.floor(found["nothing"], found["replay"], training=True)
    found["split"] = host_cost.split(found, "host", found["phases"])
    found["split_alone"] = host_cost.split(found, "alone", found["phases_alone"])
    return found


def with_step(found: dict[str, Any]) -> dict[str, Any]:
    zero = {"host": 0.0, "alone": 0.0}
    step: dict[str, Any] = {
        "anew": {**figures(3.2), "making": {"host": 340.0, "alone": 350.0}, "launching": zero},
        "amid": {
            **figures(3.4),
            "making": {"host": 345.0, "alone": 355.0},
            "launching": {"host": 50.0, "alone": 60.0},
        },
        "kernels": {"forward": [300, 21], "backward": [600]},
        "made": {
            "frame": {"tensors": 200, "bytes": 250_000_000},
            "ours": {"tensors": 201, "bytes": 251_000_000},
        },
    }
    step["parts"] = host_cost_training.parts(found, step, "host", "split", "phases")
    step["parts_alone"] = host_cost_training.parts(found, step, "alone", "split_alone", "phases_alone")
    return {**found, "step": step}


def test_parts_add_up_to_our_time() -> None:
    found = with_step(measured())
    assert found["step"]["parts"] == {
        "guards": 100.0,
        "frame": 2600.0,
        "freeing": 3200 - 340 - (3000 - 300),
        "amid": (3400 - 345 - 50) - (3200 - 340),
        "launcher": 470.0,
        "driver": 80.0,
        "left": 4000 - (3400 - 345 - 50) - 470 - 80,
    }
    for which, figure in (("parts", "host"), ("parts_alone", "alone")):
        assert sum(found["step"][which].values()) == pytest.approx(found["ours"][figure])
    ours = ("freeing", "amid", "launcher", "left")
    assert sum(found["step"]["parts"][part] for part in ours) == pytest.approx(found["split"]["path"])


def page_with(row: dict[str, Any]) -> str:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    return page_of({**data, "rows": {"a step": row}})


def test_page_takes_our_path_apart_where_that_was_measured() -> None:
    page = page_with(with_step(measured()))
    assert "| a step | 2700.0 | 160.0 | 145.0 | 470.0 | 80.0 | 445.0 | 4000.0 | 345.0 | 50.0 |" in page
    assert "| one alone | " in page and "Kernels of graphs: forward 300 + 21; backward 600." in page
    assert "ours makes 201 tensors (251.0 MB) in each step, the frame 200 tensors (250.0 MB)" in page
    assert page.index("| driver | left | total |") < page.index("By phase:")


def test_page_without_it_is_as_it_was() -> None:
    old, page = page_with(measured()), page_with(with_step(measured()))
    assert "two more frames" not in old and "## Events" not in old
    start, end = page.index("Of training steps two more frames"), page.index("By phase:")
    assert page[:start] + page[end:] == old


def test_page_says_why_it_could_not_be_measured() -> None:
    failed = {"failed": "RuntimeError: no such graph"}
    page = page_with({**measured(), "step": failed, "events": failed})
    assert "Our path was not taken apart of a step: RuntimeError: no such graph" in page
    assert "There is no profile of a step: RuntimeError: no such graph" in page
    assert "two more frames" not in page and "| a step | 100.0 | 2600.0 |" in page


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch, ours: list[HandWritten]) -> pytest.MonkeyPatch:
    """Measures rows, of which ours is the bare frame and some recordings; its graphs are none."""

    def compiled(variant: Any, function: Any) -> Any:
        call = bare_frame.bare_frame(function)
        if variant is not variants.OURS:
            return call

        def answer(*inputs: Any) -> Any:
            use(ours)
            return call(*inputs)

        return answer

    monkeypatch.setattr(host_cost, "compiled", compiled)
    monkeypatch.setattr(host_cost, "captured", lambda row, call: lambda: None)
    monkeypatch.setattr(host_cost_timing, "SETTLE", 6)
    monkeypatch.setattr(event_profile, "STEPS", 2)
    return monkeypatch


def test_a_row_is_measured_with_both_frames_and_a_profile(without_gpu: pytest.MonkeyPatch) -> None:
    graphs = Graphs()
    without_gpu.setattr(host_cost_training, "graph_of", graphs)
    found = host_cost.measure(row_of(Model()), 3)
    assert graphs.made == [2, 1]
    if not host_cost.launchers():
        pytest.skip("there is no compiler for the launcher in C")
    for which, figure in (("parts", "host"), ("parts_alone", "alone")):
        assert sum(found["step"][which].values()) == pytest.approx(found["ours"][figure], abs=0.1)
    found["events"] = host_cost.events(row_of(Model()))
    assert list(found["events"]["sum"]) == ["nothing", "inductor", "ours"]
    json.dumps(found)
    page = page_with(found)
    assert page.count("| a step |") == 6 and "## Events of one training step" in page
    assert "| event | nothing | inductor | ours | ours, beyond nothing |" in page


def nothing_can_be_captured(kernels: int) -> Any:
    raise RuntimeError("CUDA error: operation not permitted")


def launches_that_end(kernels: int) -> Any:
    left = iter(range(40))
    return lambda: next(left)


@pytest.mark.parametrize("graph_of", [nothing_can_be_captured, launches_that_end])
def test_a_failure_of_the_frames_costs_no_other_number(without_gpu: pytest.MonkeyPatch, graph_of: Any) -> None:
    without_gpu.setattr(host_cost_training, "graph_of", graph_of)
    found = host_cost.measure(row_of(Model()), 3)
    assert set(found["step"]) == {"failed"} and found["step"]["failed"]
    assert found["ours"]["host"] > 0
    if "split" in found:  # there is a launcher in C, and so a section
        assert "Our path was not taken apart of a step: " in page_with(found)


def test_without_graphs_of_ours_it_is_said(without_gpu: pytest.MonkeyPatch) -> None:
    without_gpu.setattr(host_cost, "compiled", lambda variant, function: bare_frame.bare_frame(function))
    found = host_cost.measure(row_of(Model()), 3)
    assert found["step"] == {"failed": "ValueError: no graph of ours answers"}


def test_a_frame_that_launches_less_than_it_should_fails() -> None:
    with pytest.raises(ValueError, match="3 steps of the frame launched 0 graphs, not 2 each"):
        host_cost_training.spent(lambda inputs: None, [[]], host_cost_timing.in_a_burst, 2)


def test_a_graph_is_captured_on_a_stream_of_its_own_after_its_kernel_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Number:
        def add_(self, other: int) -> None:
            done.append("kernel")

    class Stream:
        def wait_stream(self, other: Any) -> None:
            done.append("order")

    class Graph:
        def replay(self) -> None:
            done.append("replay")

    @contextlib.contextmanager
    def within(what: str) -> Iterator[None]:
        done.append(what)
        yield
        done.append(f"end of {what}")

    side = Stream()

    def capture(graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global") -> Any:
        assert type(graph) is Graph and stream is not None and capture_error_mode == "thread_local"
        return within("capture")

    monkeypatch.setattr(torch, "zeros", lambda *size, device: Number())
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: side)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    monkeypatch.setattr(torch.cuda, "stream", lambda one: within("ours" if one is side else "side"))
    monkeypatch.setattr(torch.cuda, "graph", capture)
    launch = host_cost_training.graph_of(3)
    warm = ["order", "side", "kernel", "end of side", "wait"]
    captured = ["ours", "capture", *["kernel"] * 3, "end of capture", "end of ours"]
    assert done == [*warm, *captured, "replay", "wait"]
    launch()
    assert done[-1] == "replay"


def test_events_are_compared_by_name_per_step() -> None:
    calls = {"nothing": bare_frame.bare_frame(double), "ours": bare_frame.bare_frame(double)}
    weight = torch.ones(4, requires_grad=True)

    def iterate(name: str) -> Any:
        def one(inputs: Any) -> None:
            weight.grad = None
            loss = calls[name](weight * inputs[0])
            if name == "ours":
                loss = loss.neg()
            loss.sum().backward()

        return one

    waits: list[int] = []
    steps = {variants.Variant(name, name): iterate(name) for name in calls}
    found = event_profile.compared(steps, [[torch.ones(4)]] * 3, lambda: waits.append(1))
    names = [one["event"] for one in found["events"]]
    assert len(names) == len(set(names)) == event_profile.SHOWN and len(waits) == 8
    by_name = {one["event"]: one for one in found["events"]}
    assert by_name["aten::neg"]["nothing"] == {"times": 0.0, "own": 0.0, "total": 0.0}
    assert by_name["aten::neg"]["ours"]["times"] == 2.0, "forward and backward"
    beyond = [abs(one["ours"]["own"] - one["nothing"]["own"]) for one in found["events"]]
    assert beyond == pytest.approx(sorted(beyond, reverse=True), abs=0.02), "as far as they are rounded"
    every = event_profile.events(iterate("ours"), [[torch.ones(4)]], lambda: None)
    assert {"CompiledFunction", "CompiledFunctionBackward", "Torch-Compiled Region:"} <= set(every), "without numbers"
    assert all(total >= own for _, own, total in every.values())
    lines = "\n".join(host_cost_training_page.events({"a step": {"events": found}, "another": {}}))
    assert "### a step" in lines and "### another" not in lines and "| `aten::neg` | 0.0 (0) | " in lines
    assert host_cost_training_page.events({"another": {}}) == []


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("Torch-Compiled Region: 12/3", "Torch-Compiled Region:"),
        ("## Call CompiledFxGraph fxy7ccg5tsqnkkbz7ckz ##", "## Call CompiledFxGraph ##"),
        ("autograd::engine::evaluate_function: AddBackward0", "autograd::engine::evaluate_function: AddBackward0"),
    ],
)
def test_names_are_the_same_for_all_variants(key: str, shown: str) -> None:
    assert event_profile._OWN.sub("", key).strip() == shown
