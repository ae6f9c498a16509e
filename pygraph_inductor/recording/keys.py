"""The key of a call: what its inputs are, how they alias each other, and how those that do are aligned.

Calls with equal keys may share a recording.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any

from pygraph_inductor.driver.protocol import Driver
from pygraph_inductor.recording.facts import Facts
from pygraph_inductor.recording.inputs import Call, Overlaps, Refusal, examine, overlaps
from pygraph_inductor.replay.plan import Layout


def key_of(inputs: Sequence[Any], driver: Driver) -> Hashable | Refusal:
    """The key, or why there is none."""
    call = examine(inputs, driver)
    if isinstance(call, Refusal):
        return call
    found = overlaps_of(inputs, call)
    return call.key, found, _residues(inputs, call, found, driver.alignment)


def call_key(key: Hashable) -> tuple[Hashable, ...]:
    """What `examine` saw, out of a key."""
    assert isinstance(key, tuple)
    return key[0]


def overlaps_of(inputs: Sequence[Any], call: Call) -> Overlaps:
    """How the slots of a call alias each other."""
    spans = [_span(call.key[position]) for position in call.slots]
    return overlaps([inputs[position].data_ptr() for position in call.slots], spans)


def may_be_recorded(inputs: Sequence[Any], facts: Facts) -> bool:
    """Inductor's options about dynamic shapes: which values of its int inputs a function is recorded for."""
    numbers = tuple(value for value in inputs if type(value) is int)
    if not numbers:
        return True
    if facts.skip_dynamic:
        return False
    sizes = facts.capture_sizes
    return sizes is None or numbers in sizes or (len(numbers) == 1 and numbers[0] in sizes)


def _residues(inputs: Sequence[Any], call: Call, found: Overlaps, alignment: int) -> tuple[int, ...]:
    """Inputs that alias cannot be staged one by one if they come less aligned: another alignment, another key."""
    aliased = sorted({index for first, second, _ in found for index in (first, second)})
    return tuple(inputs[call.slots[index]].data_ptr() % alignment for index in aliased)


@functools.lru_cache(maxsize=1 << 14)
def _span(entry: Any) -> int:
    """The bytes that a tensor spans, from its entry in the key."""
    dtype, size, stride = entry
    return Layout(size, stride, dtype).span
