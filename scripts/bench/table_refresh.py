"""What it costs to tell a graph so many addresses: by a node that writes a table, by a copy of a table, by patching.

    python -m scripts.bench.table_refresh --out table_refresh.json

`scripts.bench.engines` measures it, too, and shows it on its page.

Every graph has one kernel per address. `node`: the first node takes all addresses by value and writes the table from
which the kernels read, as the package does it; `ring`: the table is copied from pinned memory in front of the replay;
`patch`: each kernel is given its address itself. The host's part of each way is one call into C, so that each pays
alike for the interpreter: about a microsecond. After timing, each graph is told addresses once more, and what its
kernels read is looked at.

The table itself is safe, since copy and replay follow each other on one stream. Pinned memory is not: the copy reads it
when the device gets there. So there is a ring of it, an event follows each copy, and a place in the ring is written
again only when its event has happened.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.bench import facts

LENGTHS = (1, 2, 8, 32, 128, 512, 2048)
WAYS = ("node", "ring", "patch")
PLACES = 4  # in the ring
CALLS = 100
_WARM = 10
_ELEMENTS = 32  # that a kernel reads

C = """
#include <stdint.h>
#include <string.h>

typedef int (*SetNode)(void *executable, void *node, void *params);
typedef int (*Wait)(void *event);
typedef int (*Copy)(uint64_t to, const void *from, size_t count, void *stream);
typedef int (*Record)(void *event, void *stream);

int tell_nodes(SetNode set, void *executable, int node_count, void **nodes, void **params, int count,
               uint64_t **places, const uint64_t *addresses)
{
    int status = 0;
    for (int i = 0; i < count; i++)
        *places[i] = addresses[i];
    for (int i = 0; i < node_count && !status; i++)
        status = set(executable, nodes[i], params[i]);
    return status;
}

int tell_table(Wait wait, Copy copy, Record record, void *event, uint64_t *pinned, uint64_t table, void *stream,
               int count, const uint64_t *addresses)
{
    int status = wait(event);
    if (status)
        return status;
    memcpy(pinned, addresses, 8 * (size_t)count);
    status = copy(table, pinned, 8 * (size_t)count, stream);
    return status ? status : record(event, stream);
}
"""


@dataclass(frozen=True)
class Row:
    """For so many addresses, in µs: the latency of a replay that is told nothing, and by way of telling the host's time
    for it and the latency of telling and replaying."""

    length: int
    still: float
    host: dict[str, float]
    latency: dict[str, float]


def compiled(folder: Path) -> ctypes.CDLL:
    """The functions in C. Raises RuntimeError where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("measuring how a table is refreshed needs a C compiler")
    source, library = folder / "refresh.c", folder / "refresh.so"
    source.write_text(C)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


class Nodes:
    """Tells nodes of an executable graph. `places`: where the parameters hold the addresses, one after the other."""

    def __init__(
        self,
        functions: ctypes.CDLL,
        set_node: int,
        executable: int,
        nodes: Sequence[tuple[int, int]],
        places: Sequence[int],
    ) -> None:
        """`nodes`: handle and parameters of each."""
        handles = (ctypes.c_void_p * len(nodes))(*(handle for handle, _ in nodes))
        params = (ctypes.c_void_p * len(nodes))(*(address for _, address in nodes))
        words = (ctypes.c_void_p * len(places))(*places)
        self._function = functions.tell_nodes
        pointer = ctypes.c_void_p
        self._arguments = (pointer(set_node), pointer(executable), len(nodes), handles, params, len(places), words)

    def __call__(self, addresses: Any) -> None:
        _check(self._function(*self._arguments, addresses))


@dataclass(frozen=True)
class Calls:
    """Functions of the driver, by address."""

    wait: int  # for an event, on the host; one that was never recorded has happened
    copy: int  # from the host to the device, in order on a stream
    record: int  # an event on a stream


class Ring:
    """Copies a table to the device from places in pinned memory, each of which is free once its event has happened."""

    def __init__(
        self, functions: ctypes.CDLL, calls: Calls, places: Sequence[tuple[int, int]], table: int, stream: int
    ) -> None:
        """`places`: event and pinned memory of each."""
        pointer = ctypes.c_void_p
        self._function = functions.tell_table
        self._calls = (pointer(calls.wait), pointer(calls.copy), pointer(calls.record))
        self._places = [(pointer(event), pointer(memory)) for event, memory in places]
        self._target = (ctypes.c_uint64(table), pointer(stream))
        self._next = 0

    def __call__(self, addresses: Any) -> None:
        place = self._places[self._next]
        self._next = (self._next + 1) % len(self._places)
        _check(self._function(*self._calls, *place, *self._target, len(addresses), addresses))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"the driver answered {status}")


def timed(
    tell: Callable[[Any], None] | None,
    replay: Callable[[], None],
    wait: Callable[[], None],
    tables: Sequence[Any],
    calls: int,
) -> tuple[float, float]:
    """Medians in µs: the host's time to tell the addresses, and the time until the replay after it is over."""
    hosts, latencies = [], []
    for number in range(_WARM + calls):
        addresses = tables[number % len(tables)]
        wait()
        start = time.perf_counter_ns()
        if tell is not None:
            tell(addresses)
        told = time.perf_counter_ns()
        replay()
        wait()
        hosts.append(told - start)
        latencies.append(time.perf_counter_ns() - start)
    return statistics.median(hosts[_WARM:]) / 1e3, statistics.median(latencies[_WARM:]) / 1e3


def measure(calls: int = CALLS, lengths: Sequence[int] = LENGTHS) -> list[dict[str, Any]]:
    """On the current CUDA device; takes seconds."""
    with tempfile.TemporaryDirectory() as folder:
        functions = compiled(Path(folder))
        return [asdict(_measured(functions, length, calls)) for length in lengths]


def _measured(functions: ctypes.CDLL, length: int, calls: int) -> Row:
    import torch

    from pygraph_inductor.driver import libcuda
    from pygraph_inductor.driver.table import CudaTable

    device = torch.device("cuda", torch.cuda.current_device())
    stream = torch.cuda.current_stream(device)
    # Two sets of addresses with different contents, and what the kernels write.
    sets = [torch.arange(length * _ELEMENTS, device=device, dtype=torch.float32).add_(one) for one in (1, 1 << 20)]
    tables = [(ctypes.c_uint64 * length)(*(one.data_ptr() + 4 * _ELEMENTS * n for n in range(length))) for one in sets]
    target = torch.zeros(length * _ELEMENTS, device=device)
    table = CudaTable(length, device)
    setter = libcuda.address_of(libcuda.Kernel.setter)
    sources = list(sets[0].split(_ELEMENTS))

    def through_table() -> None:
        _touch(table.entries.split(1), target, indirect=True)

    def written_by_a_node() -> None:
        table.write(sources)
        through_table()

    # Once outside of captures, in which functions cannot be loaded.
    written_by_a_node()
    _touch(sources, target, indirect=False)
    torch.cuda.synchronize()
    graphs = {"node": _captured(written_by_a_node), "ring": _captured(through_table)}
    graphs["patch"] = _captured(lambda: _touch(sources, target, indirect=False))
    pinned = torch.zeros((PLACES, length), dtype=torch.int64, pin_memory=True)
    events = [torch.cuda.Event() for _ in range(PLACES)]
    for event in events:
        event.record(stream)  # torch makes the driver's event as late as here
    places = [(event.cuda_event, row.data_ptr()) for event, row in zip(events, pinned, strict=True)]
    driver = Calls(*map(libcuda.address_of, ("cuEventSynchronize", "cuMemcpyHtoDAsync_v2", "cuEventRecord")))
    writers = len(graphs["node"].nodes) - length
    tell: dict[str, Callable[[Any], None]] = {
        "node": _nodes(functions, setter, graphs["node"], range(writers), _words_of_table(graphs["node"], length)),
        "ring": Ring(functions, driver, places, table.entries.data_ptr(), stream.cuda_stream),
        "patch": _nodes(
            functions,
            setter,
            graphs["patch"],
            range(length),
            [node.areas[0].address for node in graphs["patch"].nodes],
        ),
    }
    wait = torch.cuda.synchronize
    host, latency = {}, {}
    _, still = timed(None, graphs["patch"].replay, wait, tables, calls)
    for way in WAYS:
        host[way], latency[way] = timed(tell[way], graphs[way].replay, wait, tables, calls)
        for addresses, content in zip(tables, sets, strict=True):
            target.zero_()
            tell[way](addresses)
            graphs[way].replay()
            if not torch.equal(target, content):
                raise RuntimeError(f"{way}: kernels read from other addresses than they were told")
    for graph in graphs.values():
        graph.close()
    return Row(length, still, host, latency)


def _touch(sources: Sequence[Any], target: Any, indirect: bool) -> None:
    """A kernel for each source; `indirect`: that is given the address of its address."""
    import torch

    from pygraph_inductor.driver import libcuda
    from pygraph_inductor.selection import probing

    kernel = probing.touch_kernels(target.device.index)[indirect]
    stream = torch.cuda.current_stream(target.device).cuda_stream
    for source, part in zip(sources, target.split(_ELEMENTS), strict=True):
        arguments = (ctypes.c_uint64(source.data_ptr()), ctypes.c_uint64(part.data_ptr()))
        libcuda.launch(kernel, 1, _ELEMENTS, stream, arguments)


def _captured(body: Callable[[], None]) -> Any:
    import torch

    from pygraph_inductor.driver.cuda import CudaGraph

    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        body()
    made = CudaGraph(graph)
    made.instantiate()
    return made


def _nodes(functions: ctypes.CDLL, setter: int, graph: Any, which: Sequence[int], places: Sequence[int]) -> Nodes:
    native = graph.native()
    return Nodes(functions, setter, native.executable, [native.nodes[number][1:] for number in which], places)


def _words_of_table(graph: Any, length: int) -> list[int]:
    """Where the nodes that write a table hold its addresses: their third parameter, so many of them."""
    places: list[int] = []
    for node in graph.nodes:
        if len(places) < length:
            _table, count, words = node.areas
            places += [words.address + 8 * number for number in range(int.from_bytes(count.content(), "little"))]
    return places


def section(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of a page."""
    found = [Row(**row) for row in rows]
    wins = [row.length for row in found if min(WAYS, key=lambda way: row.latency[way]) == "node"]
    said = f"is the fastest of the three for {', '.join(map(str, wins))} addresses" if wins else "is never the fastest"
    heads = ["addresses", "replay alone", *(f"{way}: host" for way in WAYS), *(f"{way}: with replay" for way in WAYS)]
    lines = [
        "## Ways to refresh the table",
        "",
        "A graph of one kernel per address is told all its addresses, in µs: by a *node* that takes them by value and",
        "writes the table, which is what the package does; by a copy of the table from a *ring* of pinned memory, of",
        f"which each of the {PLACES} places is written again only after the event behind its copy; and without a",
        f"table, by a *patch* of every kernel. In latency the node {said}.",
        "",
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
    ]
    for row in found:
        cells = [str(row.length), f"{row.still:.1f}"]
        cells += [f"{row.host[way]:.2f}" for way in WAYS]
        cells += [f"{row.latency[way]:.1f}" for way in WAYS]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    parser.add_argument("--calls", type=int, default=CALLS, help="timed calls per length and way")
    arguments = parser.parse_args()
    facts.gpu()  # says so where there is none
    rows = measure(arguments.calls)
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(section(rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
