"""The plain call that comes before a capture: it gives the call's answer, and shows what a recording must know.

Which allocations are returned, which inputs it wrote (declared or not), how it moved the random state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pygraph_inductor.driver.protocol import Driver, RandomState
from pygraph_inductor.recording.allocations import Watched, storage_key, watched
from pygraph_inductor.recording.contents import Kept, digests
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.inputs import Call
from pygraph_inductor.recording.plain import run_plainly
from pygraph_inductor.replay.plan import Layout


@dataclass(frozen=True)
class Foreign:
    """A returned storage that an operator allocated itself: the outputs in it, and the buffer that shall hold it."""

    positions: tuple[int, ...]
    layout: Layout
    nbytes: int


class NotTried(RuntimeError):
    """Nothing ran: what the call would have been compared with could not be noted (its cause says why)."""


class NotSeen(RuntimeError):
    """The call ran and gave `result`, but what it did could not be noted (its cause says why)."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


Known = tuple[Layout, int]  # an output that is gone, with the digest of its bytes


@dataclass
class Trial:
    """What one plain call did."""

    result: Any
    returned: list[Any]
    allocated: list[Layout]  # by the generated code, in order
    returned_allocations: tuple[int, ...]  # those of them that are behind an output
    foreign: tuple[Foreign, ...]
    undeclared_writes: frozenset[int]
    replaced_inputs: tuple[int, ...]  # have another storage or layout than before the call
    before: Kept  # the write set as the call found it
    after: Kept  # and as it left it
    random_before: RandomState
    random_after: RandomState
    # By position, of outputs that were let go since (recording/digested.py). None: all are there.
    digests: dict[int, Known] | None = None


def listed(result: Any) -> list[Any]:
    """The returned values, also of a function that returns a bare one."""
    return list(result) if isinstance(result, (tuple, list)) else [result]


def run_trial(
    run: Callable[[list[Any]], Any],
    facts: Facts,
    driver: Driver,
    inputs: Sequence[Any],
    call: Call,
    checked: Sequence[int],
    written: Collection[int],
) -> Trial:
    """Call the function once, plainly. Exceptions of the function pass through; ours are `NotTried` and `NotSeen`."""
    written_tensors = [inputs[position] for position in call.slots if position in written]
    others = [position for position in call.slots if position not in written]
    try:
        random_before = driver.random_state(call.generators)
        before = Kept(written_tensors)
        digests_before = digests([inputs[position] for position in others])
        memory_before = _memory_of(inputs, call)
    except Exception as error:
        raise NotTried from error
    with watched(facts.namespace, facts.allocators) as seen:
        result = run_plainly(run, list(inputs), checked, written, facts.attention_seeds)
    try:
        digests_after = digests([inputs[position] for position in others])
        undeclared = {
            position for position, old, new in zip(others, digests_before, digests_after, strict=True) if old != new
        }
        memory = zip(call.slots, memory_before, _memory_of(inputs, call), strict=True)
        returned = listed(result)
        return Trial(
            result=result,
            returned=returned,
            allocated=seen.layouts,
            returned_allocations=_returned_allocations(returned, seen),
            foreign=_foreign(returned, seen, inputs, facts),
            undeclared_writes=frozenset(undeclared),
            replaced_inputs=tuple(position for position, old, new in memory if old != new),
            before=before,
            after=Kept(written_tensors),
            random_before=random_before,
            random_after=driver.random_state(call.generators),
        )
    except Exception as error:
        raise NotSeen(result) from error


def _memory_of(inputs: Sequence[Any], call: Call) -> list[tuple[int, int, Layout]]:
    tensors = [inputs[position] for position in call.slots]
    return [(storage_key(tensor), tensor.data_ptr(), Layout.of(tensor)) for tensor in tensors]


def _returned_allocations(returned: Sequence[Any], seen: Watched) -> tuple[int, ...]:
    found = {seen.position_of(value) for value in returned if isinstance(value, torch.Tensor)}
    return tuple(sorted(position for position in found if position is not None))


def constants_of(facts: Facts) -> dict[int, torch.Tensor]:
    """The tensors that the generated module owns, by storage."""
    return {storage_key(value): value for value in facts.namespace.values() if isinstance(value, torch.Tensor)}


def _foreign(returned: Sequence[Any], seen: Watched, inputs: Sequence[Any], facts: Facts) -> tuple[Foreign, ...]:
    known = {storage_key(value) for value in inputs if isinstance(value, torch.Tensor)} | set(constants_of(facts))
    groups: dict[int, list[int]] = {}
    for position, value in enumerate(returned):
        if isinstance(value, torch.Tensor) and seen.position_of(value) is None and storage_key(value) not in known:
            groups.setdefault(storage_key(value), []).append(position)
    return tuple(_foreign_storage(returned, positions) for positions in groups.values())


def _foreign_storage(returned: Sequence[Any], positions: Sequence[int]) -> Foreign:
    """The storage as the one output that is all of it, else as a flat buffer that the outputs are views of."""
    first = returned[positions[0]]
    nbytes = first.untyped_storage().nbytes()
    whole = Layout.of(first)
    if first.storage_offset() != 0 or whole.span != nbytes:
        # Of the outputs' own type where that fits: a view as another type is beyond the launcher in C.
        dtypes = {returned[position].dtype for position in positions}
        fits = len(dtypes) == 1 and nbytes % first.itemsize == 0
        dtype = first.dtype if fits else torch.uint8
        whole = Layout((nbytes // dtype.itemsize,), (1,), dtype)
    return Foreign(tuple(positions), whole, nbytes)
