"""What making a call's outputs costs the host, by the way they are made; and what activations that serve again save.

    python -m scripts.bench.allocating --out docs/benchmarks/allocating.json --page docs/benchmarks/allocating.md

The first table is of tensors alone, from C, as the launcher makes them: one after the other by the function that
generated code calls, or by torch's C shim, or as views of one allocation. The second is of the package: a forward whose
activations are dropped at once, with and without `max_kept_bytes`. `--device cpu` shows that it works, and no times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import pygraph_inductor
from pygraph_inductor.replay.native import shim_address, wrap_address
from scripts.bench import facts
from scripts.bench.markdown import table
from scripts.bench.results import write_json

COUNTS = (1, 8, 64, 512)
SHAPE = (256, 256)  # of float32: 256 KiB
ROUNDS = 60
LAYERS = 64
WIDTH = 256
_SHIM = ("empty_strided", "_reinterpret_tensor", "delete_tensor_object")
WAYS = {
    "generated": "the function that generated code calls (what the package does)",
    "shim": "torch's C shim, and a Python object for it",
    "shared": "one allocation, and a view of it for each",
}


def module() -> Any:
    """The compiled ways. Raises what the compiler raises."""
    from triton.runtime.build import compile_module_from_src

    compiled = compile_module_from_src(Path(__file__).with_suffix(".c").read_text(), "pygraph_allocating")
    compiled.configure(*map(shim_address, _SHIM), wrap_address())
    return compiled


def makers(compiled: Any, device: torch.device) -> dict[str, Callable[[int], tuple[int, int]]]:
    """Each makes so many tensors and frees them; returns what both took, in ns."""
    guards: Any = torch._C._dynamo.guards
    function = guards._empty_strided_cuda if device.type == "cuda" else guards._empty_strided_cpu
    arguments = (SHAPE, (SHAPE[1], 1), torch.float32)
    described = (*SHAPE, 6, 1 if device.type == "cuda" else 0, device.index or 0)  # c10's numbers for them
    return {
        "generated": lambda count: compiled.generated(function, arguments, count),
        "shim": lambda count: compiled.shim(*described, count),
        "shared": lambda count: compiled.shared(*described, count),
    }


def tensors(device: torch.device, counts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """One row a count: by way, the median ns of making, and of freeing, one tensor. Ways take turns."""
    ways = makers(module(), device)
    rows = []
    for count in counts:
        took: dict[str, list[tuple[int, int]]] = {way: [] for way in ways}
        for number in range(rounds + 5):
            for way, make in ways.items():
                answer = make(count)
                if number >= 5:
                    took[way].append(answer)
        row: dict[str, Any] = {"count": count}
        for way, answers in took.items():
            row[way] = {
                part: round(statistics.median(answer[place] for answer in answers) / count, 1)
                for place, part in enumerate(("make", "free"))
            }
        rows.append(row)
    return rows


def forward_with(kept: int, device: torch.device) -> tuple[Callable[[torch.Tensor], torch.Tensor], Any]:
    """A compiled forward that saves an activation per layer, of which at most `kept` bytes serve again."""
    weights = [torch.randn(WIDTH, WIDTH, device=device).div_(16).requires_grad_() for _ in range(LAYERS)]

    def forward(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight)
        return x.sum()

    # Code of its own: Dynamo would let one of two functions of the same code serve for both.
    code = forward.__code__.replace(co_name=f"forward_keeping_{kept}")
    own = types.FunctionType(code, globals(), closure=forward.__closure__)
    settings = pygraph_inductor.config.patch(max_kept_bytes=kept, selection=False, simulate=device.type == "cpu")
    with settings:
        call = torch.compile(own, mode="reduce-overhead")
        for _ in range(5):
            call(torch.randn(WIDTH, WIDTH, device=device))
    functions = [one for one in pygraph_inductor.report().functions if one.kind == "forward" and one.replays]
    return call, functions[-1].recordings[0]


def activations(device: torch.device, rounds: int) -> dict[str, Any]:
    """Median µs of the host for one forward whose result is dropped, with activations that serve again and without."""
    programs = {name: forward_with(kept, device) for name, kept in (("again", 1 << 40), ("anew", 0))}
    found: dict[str, Any] = {"layers": LAYERS}
    took: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds + 5):
        for name, (call, _) in programs.items():
            x = torch.randn(WIDTH, WIDTH, device=device)
            if device.type == "cuda":
                torch.cuda.synchronize()
            before = time.perf_counter_ns()
            call(x)  # nobody has the result, so that its activations are freed within this time
            if number >= 5:
                took[name].append((time.perf_counter_ns() - before) / 1e3)
    for name, (_, recording) in programs.items():
        found[name] = {"host": round(statistics.median(took[name]), 1), "bytes_kept": recording.bytes_kept}
    return found


def page(data: dict[str, Any]) -> str:
    environment = data["environment"]
    where = f"{environment.get('gpu', 'CPU')}, {environment.get('cpu', '')}, torch {environment.get('torch', '')}"
    heads = ["tensors", *(f"{part}, {way}" for way in WAYS for part in ("make", "free"))]
    rows = [
        [row["count"], *(f"{row[way][part]:,.0f}" for way in WAYS for part in ("make", "free"))]
        for row in data["tensors"]
    ]
    kept = data["activations"]
    saved = (kept["anew"]["host"] - kept["again"]["host"]) / kept["layers"] * 1e3
    lines = [
        "# What making outputs costs the host",
        "",
        "Generated by `python -m scripts.bench.allocating --read JSON --page …`.",
        "",
        f"{where}, commit {str(data['commit']['id'])[:7]}. Medians of {data['rounds']} rounds in which the ways took "
        "turns.",
        "",
        "## One tensor, by the way it is made",
        "",
        f"ns for each of so many float32 tensors of {SHAPE[0]}x{SHAPE[1]} that are made and then freed, from C: "
        + "; ".join(f"*{way}*: {what}" for way, what in WAYS.items())
        + ".",
        "",
        table(heads, rows),
        "",
        "## Activations that serve again",
        "",
        f"A forward of {kept['layers']} layers that saves an activation for each, and whose result is dropped at once: "
        f"µs of the host for one call. With activations that serve again (`max_kept_bytes`) "
        f"{kept['again']['host']:,.1f}, {kept['again']['bytes_kept']:,} bytes of which are kept; with new ones in each "
        f"call {kept['anew']['host']:,.1f}: {saved:,.0f} ns for each activation, which views of one allocation would "
        "have to save as well.",
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--commit", help="the commit's name, where git cannot tell")
    parser.add_argument("--read", type=Path, help="a JSON file of an earlier run, in place of measuring")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    parser.add_argument("--page", type=Path, help="a Markdown file for the tables")
    options = parser.parse_args(arguments)
    if options.read:
        data = json.loads(options.read.read_text())
    else:
        device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
        data = {
            "environment": facts.environment(options.device),
            "commit": facts.commit(options.commit),
            "rounds": options.rounds,
            "tensors": tensors(device, COUNTS, options.rounds),
            "activations": activations(device, options.rounds),
        }
    if options.out:
        write_json(options.out, data)
    if options.page:
        options.page.write_text(page(data))
    print(page(data))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
