"""Which activations a recording of ours makes anew in every call, told from the graph that Inductor is given.

By the package's own rule for what may serve again (`recording/keeping.py`): the others, the larger ones above all.
What shares memory with an input, with what the user sees or with an earlier activation is made by nobody: generated
code and recordings hand out views of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from pygraph_inductor import settings
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.keeping import kept_on, to_keep
from pygraph_inductor.replay.plan import FromAllocation, FromConstant, Layout, Returned
from scripts.bench.bare_frame import layout_of


def made_anew(graph: torch.fx.GraphModule, visible: Collection[int]) -> frozenset[int]:
    """Their places in the results of a forward, of which the user sees `visible`."""
    [output] = graph.graph.find_nodes(op="output")
    inputs = {_memory(node) for node in graph.graph.find_nodes(op="placeholder")} - {None}
    allocations: dict[int, int] = {}  # memory -> its number
    owners: list[int] = []  # of each allocation the first place
    returned: list[Returned] = []
    layouts: list[Layout] = []
    for place, result in enumerate(output.args[0]):
        memory = _memory(result)
        if memory is None or memory in inputs:
            returned.append(FromConstant(None))
            continue
        if memory not in allocations:
            allocations[memory] = len(layouts)
            owners.append(place)
            layouts.append(layout_of(result.meta["val"]))
        returned.append(FromAllocation(allocations[memory], None, 0))
    if not owners:
        return frozenset()
    device = output.args[0][owners[0]].meta["val"].device
    now = settings.current()
    # What recordings keep by now, as one of the same function, is not to count for this one.
    now = replace(now, max_kept_bytes=now.max_kept_bytes + kept_on(device))
    facts = Facts("a bare frame", "forward", "", device, visible_outputs=frozenset(visible), settings=now)
    kept = to_keep(facts, returned, layouts)
    return frozenset(
        place for allocation, place in enumerate(owners) if allocation not in kept and place not in visible
    )


def _memory(result: object) -> int | None:
    """Tells apart what shares memory from what does not; None where it is no tensor."""
    value = result.meta.get("val") if isinstance(result, torch.fx.Node) else None
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
