"""Two captures of the same work with every slot elsewhere, and the bindings that the comparison shows.

The second one is the graph that is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pygraph_inductor.driver.protocol import SMALL, Node, NodeKind
from pygraph_inductor.recording.bindings import Found, Movement, find_bindings
from pygraph_inductor.recording.capture import Captured, StandInSpace, Work, capture_with
from pygraph_inductor.recording.in_place import in_place
from pygraph_inductor.recording.pools import Pool, ScratchPool
from pygraph_inductor.replay.plan import Binding

# No node mentions a block of so few bytes: nobody writes there, and a copy would be of what was in the pool before.
# Larger ones may be written by who was given an address outside of them; verification would tell, but stage all slots.
_STATE = 64


@dataclass(frozen=True)
class Pair:
    """The graph to keep, its bindings by place, and the nodes that copy outputs which need no copy."""

    captured: Captured
    found: Found
    needless: tuple[int, ...]


@contextlib.contextmanager
def captured_twice(work: Work, staging: Mapping[int, torch.Tensor]) -> Iterator[Pair]:
    """Capture; `staging` has the tensors of places that the player copies.

    Stand-ins stay mapped while the context is open. The caller closes the graph.
    """
    moving = [number for number in range(len(work.places)) if number not in staging]
    with contextlib.ExitStack() as spaces:
        if not moving:
            captured = capture_with(work, [staging[number] for number in range(len(work.places))])
            yield Pair(captured, Found(tuple(() for _ in work.places)), ())
            return
        yield _apart(work, moving, staging, spaces) or _pair(work, moving, staging, spaces)


def _apart(
    work: Work, moving: Sequence[int], staging: Mapping[int, torch.Tensor], spaces: contextlib.ExitStack
) -> Pair | None:
    """Both captures, the first one in memory of its own; None if that is not worth it, or does not help.

    Outputs that operators allocate live until their capture ends. In one pool those of the first would keep the second
    from their blocks, and the pool would be larger by them for as long as it lives.
    """
    if sum(buffer.foreign.nbytes for buffer in work.buffers if buffer.foreign is not None) <= SMALL:
        return None
    scratch = work.driver.new_pool()
    pair = None
    # Two captures apart take intermediates twice.
    with contextlib.ExitStack() as closing, contextlib.suppress(torch.OutOfMemoryError):
        first = _capture(replace(work, pool=ScratchPool(scratch)), moving, staging, 0, spaces)
        closing.callback(first.graph.close)
        first.result = None
        # What is there now, operators keep for their next calls: a workspace per stream, say. The second graph may
        # mention it, even if they drop it then, so it has to live as long as the pool.
        if work.driver.is_held(scratch):
            assert isinstance(work.pool, Pool)
            work.pool.keep(closing.pop_all())
        pair = _compared(work, moving, first, _capture(work, moving, staging, 1, spaces))
    # All that is cached, to be rid of one pool: a `torch.cuda.MemPool` would free just its own, but aborts the process
    # if that is while another thread captures or, up to torch 2.11, while anybody allocates to a pool of the user's.
    work.driver.release_cached()
    if pair is not None and pair.found.unexplained is not None:
        pair.captured.graph.close()
        return None
    return pair


def _pair(work: Work, moving: Sequence[int], staging: Mapping[int, torch.Tensor], spaces: contextlib.ExitStack) -> Pair:
    """Both captures in one pool. What the first returned lives on, so that the second one's outputs are elsewhere."""
    first = _capture(work, moving, staging, 0, spaces)
    try:
        return _compared(work, moving, first, _capture(work, moving, staging, 1, spaces))
    finally:
        first.graph.close()


def _capture(
    work: Work, moving: Sequence[int], staging: Mapping[int, torch.Tensor], spread: int, spaces: contextlib.ExitStack
) -> Captured:
    space = StandInSpace(work.driver, [work.places[number] for number in moving], spread)
    spaces.callback(space.close)
    tensors = dict(staging) | dict(zip(moving, space.tensors(), strict=True))
    return replace(capture_with(work, [tensors[number] for number in range(len(tensors))]), stand_ins=space)


def _compared(work: Work, moving: Sequence[int], first: Captured, second: Captured) -> Pair:
    spans = [place.layout.span for place in work.places]
    nodes = (first.graph.nodes, second.graph.nodes)
    # Where all slots are copied, nobody but the copies was given an address that moved, so other nodes may be anything.
    asked = nodes if any(number not in work.copied for number in moving) else (_copies(nodes[0]), _copies(nodes[1]))
    open_kernels = work.indirection.open_kernels() if work.indirection is not None else ()
    found = find_bindings(*asked, Movement(first.addresses, second.addresses, spans), open_kernels)
    if found.unexplained is not None:
        return Pair(second, found, ())
    by_slot = list(found.by_slot)
    needless = []
    for number in moving if work.in_place else ():
        place = work.places[number]
        if not place.is_output or place.source not in first.blocks or place.source not in second.blocks:
            continue
        before, after = first.blocks[place.source], second.blocks[place.source]
        own = in_place(*nodes, before, after)
        if own is None or (not own and after.nbytes > _STATE):
            continue
        if _only_in(by_slot[number], after.copy_node):
            by_slot[number] = own
            needless.append(after.copy_node)
    return Pair(second, Found(tuple(by_slot)), tuple(needless))


def _copies(nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if node.kind is NodeKind.MEMCPY and node.updatable]


def _only_in(bindings: Sequence[Binding], node: int) -> bool:
    """Whether the stand-in is where the copy is expected, and nowhere else."""
    return bool(bindings) and all(binding.node == node for binding in bindings)
