"""Twins of Triton kernels: their text, what has none, and that indirection costs no wide load and no register."""

from __future__ import annotations

import ast
import collections
import json
import os
import re
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pygraph_inductor.codegen.twin import NotIndirectable, parameters_of, twin_of
from pygraph_inductor.codegen.twin_kernels import TritonTwins, compiled_like, kernel_texts
from pygraph_inductor.driver.protocol import TWIN
from pygraph_inductor.driver.thread_globals import meaning
from tests.unit.fresh_interpreter import ROOT, python

from .assembly import assembled
from .kernel_shapes import SHAPES, kernels_of

pytestmark = pytest.mark.usefixtures("cuda", "registered")
CAPABILITIES = (80, 90, 100)
# Bytes that a twin spills and its kernel does not: such a twin is not used (`compiled_like`).
SPILLED = {("2.13.0", "matmul template", 90): 8}
# What the interpreter, which runs one program after the other, cannot run: they wait for each other.
WAITING = {"cooperative reduction", "split scan"}
NO_MASK = "mask has unsupported dtype"


def whole_twin(text: str) -> str:
    """The twin with every argument indirect that can be."""
    parameters = parameters_of(text)
    return twin_of(text, [parameters.names[number] for number in parameters.pointers])[1]


def example(tmp_path: Path, name: str = "pointwise") -> str:
    (text,) = kernels_of(SHAPES[name], tmp_path).values()
    return text


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_twin_loads_and_stores_as_widely_and_spills_no_more(shape: str, capability: int, tmp_path: Path) -> None:
    if shape == "fp8" and capability < 89:
        pytest.skip("the device has no fp8")
    for text in kernels_of(SHAPES[shape], tmp_path).values():
        direct, twin = assembled(text, capability), assembled(whole_twin(text), capability)
        assert twin.instructions == direct.instructions
        assert not direct.instructions["over 16 bytes"]  # recording/alignment.py lets slots lie at multiples of 16
        assert 1 <= twin.loads - direct.loads <= len(parameters_of(text).pointers)
        allowed = SPILLED.get((torch.__version__.split("+")[0], shape, capability), 0)
        assert twin.spilled <= direct.spilled + allowed


def test_alignment_belongs_to_the_pointer(tmp_path: Path) -> None:
    """Without it, or with it on the number that is loaded, loads are narrow: the test above would see that."""
    text = example(tmp_path)
    wide = assembled(text, 90)
    assert wide.instructions["load of vectors"]
    twin = whole_twin(text)
    hint = re.compile(r"tl\.multiple_of\((.*?), 16\)$", re.MULTILINE)
    unaligned = hint.sub(r"\1", twin)
    on_the_number = hint.sub(r"\1", twin).replace("tl.load(in_ptr0)", "tl.multiple_of(tl.load(in_ptr0), 16)", 1)
    assert unaligned != twin
    assert assembled(unaligned, 90).instructions != wide.instructions
    assert assembled(on_the_number, 90).instructions != wide.instructions


def test_twin_leaves_the_same_bytes(tmp_path: Path) -> None:
    """In Triton's interpreter, every shape of kernel, all arguments indirect, and only the first one."""
    # Templates each in a process of their own, because of what one interpreter cannot run.
    processes: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for shape, made in SHAPES.items():
        if shape in WAITING:
            continue
        for name, text in kernels_of(made, tmp_path).items():
            source = (tmp_path / "generated_0.py").read_text()
            parameters = parameters_of(text)
            for some in (sorted(parameters.pointers), [min(parameters.pointers)]):
                twin = twin_of(text, [parameters.names[number] for number in some])[1]
                case = {"text": text, "twin": twin, "indirect": some, "numbers": numbers_of(source, name)}
                processes[shape if made.template else ""][f"{shape}: {name}, {len(some)} indirect"] = case
    for shape, cases in processes.items():
        file = tmp_path / "cases.json"
        file.write_text(json.dumps(cases))
        done = interpreted(file)
        if shape and torch.__version__ >= "2.15" and NO_MASK in done.stderr:
            continue  # the kernel itself, in some of the configurations among which chance chooses without a GPU
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert sum(map(len, processes.values())) > 40


def interpreted(file: Path) -> subprocess.CompletedProcess[str]:
    """Run the cases of a file; with the torch and the Triton of this process."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    cache = str(file.parent / "cache")
    return python("-m", "tests.codegen.interpreted", str(file), PYTHONPATH=paths, TORCHINDUCTOR_CACHE_DIR=cache)


def numbers_of(source: str, kernel: str) -> list[int | None]:
    """The numbers among the arguments of a kernel's launch; None for a tensor."""
    (call,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{kernel}.run"
    ]
    return [argument.value if isinstance(argument, ast.Constant) else None for argument in call.args]  # type: ignore[misc]


def test_interpreter_sees_a_twin_that_reads_elsewhere(tmp_path: Path) -> None:
    text = example(tmp_path)
    twin = whole_twin(text).replace("tl.load(in_ptr1)", "(tl.load(in_ptr1) + 4)")
    case = {"text": text, "twin": twin, "indirect": [0, 1, 2], "numbers": [None, None, None, 4096]}
    (tmp_path / "cases.json").write_text(json.dumps({"wrong": case}))
    done = interpreted(tmp_path / "cases.json")
    assert json.loads(done.stdout) == {"wrong": "the twin leaves other bytes than the kernel"}, done.stderr[-2000:]


@pytest.mark.parametrize("shape", SHAPES)
def test_only_arguments_and_the_first_lines_differ(shape: str, tmp_path: Path) -> None:
    for name, text in kernels_of(SHAPES[shape], tmp_path).items():
        parameters = parameters_of(text)
        direct = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == name)
        twin = next(
            n for n in ast.parse(whole_twin(text)).body if isinstance(n, ast.FunctionDef) and n.name == name + TWIN
        )
        assert [ast.dump(one) for one in twin.body[len(parameters.pointers) :]] == [
            ast.dump(one) for one in direct.body
        ]
        assert ast.dump(twin.args) == ast.dump(direct.args)


def test_arguments_that_are_not_chosen_stay_as_they_were(tmp_path: Path) -> None:
    name, text = twin_of(example(tmp_path), ["in_ptr1"])
    assert name.endswith(TWIN) and f"def {name}(" in text
    assert "'in_ptr0': '*fp32', 'in_ptr1': '*i64', 'out_ptr0': '*fp32'" in text
    assert "(0,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]]" in text


def test_twin_is_never_tuned(tmp_path: Path) -> None:
    text = whole_twin(example(tmp_path, "looped reduction"))
    assert "'dynamic_scale_rblock': False" in text
    assert "'coordinate_descent_tuning': True" not in text
    tuned = example(tmp_path, "looped reduction").replace(
        "'dynamic_scale_rblock': True", "'dynamic_scale_rblock': True, 'coordinate_descent_tuning': True"
    )
    assert "'coordinate_descent_tuning': False" in whole_twin(tuned)


REFUSED = {
    "it is written by the user": ("triton_heuristics.pointwise(", "triton_heuristics.user_autotune("),
    "it starts before": ("'launch_pdl': False", "'launch_pdl': True"),
    "another form": ("'constants': {}", "**{}"),
    "its text has 0 kernels": ("triton_heuristics.pointwise(", "other.pointwise("),
    "cannot be read": ("def ", "def def "),
    "it relies on": ("[['tt.divisibility', 16]]", "[['tt.divisibility', 32]]"),
    "not a pointer to numbers": ("'in_ptr0': '*fp32'", "'in_ptr0': 'tensordesc<fp32[64]>'"),
    "a tensor map": ("inductor_meta={", "inductor_meta={'host_tma_descriptor_args': {'in_ptr0': {'block': [64]}}, "),
    "told about its arguments": ("'configs': [{", "'configs': [AttrsDescriptor(), {"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_kernel_without_a_twin_is_refused_with_a_reason(reason: str, tmp_path: Path) -> None:
    old, new = REFUSED[reason]
    text = example(tmp_path)
    assert old in text
    with pytest.raises(NotIndirectable, match=reason):
        twin_of(text.replace(old, new), ["in_ptr0"])


def test_size_of_one_that_is_a_constant_still_counts_as_an_argument(tmp_path: Path) -> None:
    text = example(tmp_path).replace("'xnumel': 'i32'", "'xnumel': 'constexpr'")
    assert parameters_of(text).names == ("in_ptr0", "in_ptr1", "out_ptr0", "xnumel")


class Kernel:
    """A kernel of a module that notes its launches."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def run(self, *args: Any, stream: int) -> None:
        self.launches.append(args)


def test_module_says_which_kernels_it_has(tmp_path: Path) -> None:
    kernels = kernels_of(SHAPES["atomics"], tmp_path)
    assert len(kernels) == 2
    source = (tmp_path / "generated_0.py").read_text()
    assert kernel_texts(source) == kernels
    first, second = kernels
    twins = TritonTwins({first: Kernel(), second: Kernel()}, source)
    assert twins.refusal(second, 0) is None
    assert "no pointer" in (twins.refusal(second, 3) or "")
    assert twins.prepare(first, (0,)) == "it has 0 configurations"  # it never ran


@pytest.mark.parametrize(
    "source", ["kernel = (", "kernel = \0", "kernel = " + "-" * 100_000 + "1", "kernel = f(" * 500]
)
def test_module_whose_text_cannot_be_read_has_no_twins(source: str) -> None:
    """This is asked while a function is captured, which must not fail for it."""
    assert TritonTwins({"kernel": Kernel()}, source).meanings(lambda kernel, args: {}) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0",
        "-" * 100_000 + "1",
        "@triton_heuristics.pointwise(**options)\ndef k(x): pass",
        "@triton_heuristics.pointwise(triton_meta={**meta}, inductor_meta={})\ndef k(x): pass",
        "@triton_heuristics.pointwise(triton_meta={'signature': {}, 'configs': [{}]}, inductor_meta={})\ndef k(*x): 0",
    ],
)
def test_kernel_of_a_form_that_nobody_thought_of_has_no_twin(text: str) -> None:
    twins = TritonTwins({"kernel": Kernel()}, f"kernel = async_compile.triton('kernel', {text!r}, device_str='cuda')")
    assert twins.refusal("kernel", 0) is not None
    assert twins.prepare("kernel", (0,)) is not None


def test_launch_without_an_entry_is_the_kernels_own(tmp_path: Path) -> None:
    (name,) = kernels_of(SHAPES["pointwise"], tmp_path)
    kernel = Kernel()
    twins = TritonTwins({name: kernel}, (tmp_path / "generated_0.py").read_text())
    meant = twins.meanings(lambda kernel, args: {})[name](kernel)
    meant.run("x", "y", "z", 4096, stream=0)
    assert kernel.launches == [("x", "y", "z", 4096)]
    assert meant.launches is kernel.launches


def test_chosen_launches_of_a_module_are_the_twins_in_this_thread_alone(tmp_path: Path) -> None:
    (name,) = kernels_of(SHAPES["pointwise"], tmp_path)
    kernel, twin = Kernel(), Kernel()
    namespace = {name: kernel}
    twins = TritonTwins(namespace, (tmp_path / "generated_0.py").read_text())
    twins._twins[name, (0, 2)] = twin
    x, y, out = (torch.empty(4) for _ in range(3))
    entries = torch.zeros(2, dtype=torch.int64).split(1)

    def choose(kernel: str, args: tuple[Any, ...]) -> dict[int, torch.Tensor]:
        return {n: entry for n, entry in ((0, entries[0]), (2, entries[1])) if args[n] is not y}

    def launch(*args: Any) -> None:
        namespace[name].run(*args, 4096, stream=7)  # as generated code does

    with meaning(namespace, twins.meanings(choose)):
        launch(x, y, out)
        other = threading.Thread(target=launch, args=(x, y, y))
        other.start()
        other.join()
    launch(y, y, x)
    assert namespace == {name: kernel}
    ((first, second, third, number),) = twin.launches
    assert first is entries[0] and second is y and third is entries[1] and number == 4096
    assert [[id(value) for value in args[:3]] for args in kernel.launches] == [
        [id(x), id(y), id(y)],
        [id(y), id(y), id(x)],
    ]


def test_twin_is_compiled_once_in_the_configuration_that_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime import triton_heuristics

    def launchers(self: Any) -> None:  # in place of loading onto a device
        self.launchers = [SimpleNamespace(config=result.config) for result in self.compile_results]

    monkeypatch.setattr(triton_heuristics.CachingAutotuner, "_make_launchers", launchers)
    text = example(tmp_path, "looped reduction").replace("'max_autotune': False", "'max_autotune': True")
    kernel = getattr(PyCodeCache.load(text), function_name(text))
    assert len(kernel.configs) > 1
    won = kernel.configs[-1]
    kernel.launchers = [SimpleNamespace(config=won)]
    name, twin_text = twin_of(text, ["in_ptr0"])
    twin = compiled_like(kernel, name, twin_text)
    (launcher,) = twin.launchers
    assert (launcher.config.kwargs, launcher.config.num_warps) == (won.kwargs, won.num_warps)
    assert launcher.config.found_by_coordesc and not getattr(won, "found_by_coordesc", False)
    assert twin.fn.__name__ == name == kernel.fn.__name__ + TWIN
    assert compiled_like(kernel, name, twin_text) is not twin  # each module's kernels have twins of their own


@pytest.mark.parametrize("spills", [(0, 8), (8, 16), (8, 8), (None, None)])
def test_twin_that_spills_more_registers_than_its_kernel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spills: tuple[int | None, int | None]
) -> None:
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime import triton_heuristics

    def launchers(self: Any) -> None:
        self.launchers = [SimpleNamespace(config=result.config, n_spills=spills[1]) for result in self.compile_results]

    monkeypatch.setattr(triton_heuristics.CachingAutotuner, "_make_launchers", launchers)
    text = example(tmp_path)
    kernel = getattr(PyCodeCache.load(text), function_name(text))
    kernel.launchers = [SimpleNamespace(config=kernel.configs[0], n_spills=spills[0])]
    name, twin_text = twin_of(text, ["in_ptr0"])
    if spills[0] == spills[1]:
        compiled_like(kernel, name, twin_text)
    else:
        with pytest.raises(NotIndirectable, match="registers"):
            compiled_like(kernel, name, twin_text)


def function_name(text: str) -> str:
    found = re.search(r"^def (triton_\w+)", text, re.MULTILINE)
    assert found
    return found[1]
