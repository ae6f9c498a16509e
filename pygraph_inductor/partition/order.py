"""Orders in which a graph falls into the fewest pieces: arithmetic on numbered nodes, nothing of Inductor.

Nodes that can be captured and nodes that run outside alternate in phases, and each run of the former is a piece. A
chain of dependencies that changes kinds k times needs k + 1 phases, and putting every node into the first phase that
its predecessors leave to it needs no more. Which of those orders is taken is a matter of memory: it is left to the
caller, who is given an order that makes everything early, one that makes everything late, and one that stays as near as
it can to the order at hand.
"""

from __future__ import annotations

from collections.abc import Sequence


def pieces(outside: Sequence[bool]) -> int:
    """Into how many pieces nodes in this order fall."""
    return sum(1 for number, out in enumerate(outside) if not out and (number == 0 or outside[number - 1]))


def fewest(before: Sequence[Sequence[int]], outside: Sequence[bool]) -> int:
    """The least number of pieces. `before[n]` are nodes that must come before node n; their numbers are smaller."""
    return max((phase // 2 + 1 for phase in _first_phases(before, outside) if phase % 2), default=0)


def orders(before: Sequence[Sequence[int]], outside: Sequence[bool]) -> list[list[int]]:
    """Orders of the nodes with the fewest pieces, without repetitions."""
    first = _first_phases(before, outside)
    last = _last_phases(before, outside, 2 * fewest(before, outside))
    near: list[int] = []
    reached = 0
    for number, out in enumerate(outside):
        earliest = max((_next(near[one], outside[one], out) for one in before[number]), default=_start(out))
        wanted = reached if reached % 2 != out else reached + 1
        near.append(max(earliest, min(wanted, last[number])))
        reached = max(reached, near[-1])
    found = [sorted(range(len(outside)), key=phases.__getitem__) for phases in (near, first, last)]
    return [order for position, order in enumerate(found) if order not in found[:position]]


def most_numbers(order: Sequence[int], outside: Sequence[bool], numbers: Sequence[frozenset[object]]) -> int:
    """How many numbers the piece needs that needs the most. `numbers[n]` are those of node n."""
    most, current = 0, set[object]()
    for one in order:
        current = set() if outside[one] else current | numbers[one]
        most = max(most, len(current))
    return most


# Even phases are outside of graphs, odd ones are pieces.


def _start(out: bool) -> int:
    return 0 if out else 1


def _next(phase: int, one_is_out: bool, out: bool) -> int:
    return phase if one_is_out == out else phase + 1


def _first_phases(before: Sequence[Sequence[int]], outside: Sequence[bool]) -> list[int]:
    phases: list[int] = []
    for number, out in enumerate(outside):
        phases.append(max((_next(phases[one], outside[one], out) for one in before[number]), default=_start(out)))
    return phases


def _last_phases(before: Sequence[Sequence[int]], outside: Sequence[bool], end: int) -> list[int]:
    """`end` is the phase behind the last piece."""
    phases = [end if out else end - 1 for out in outside]
    for number in reversed(range(len(outside))):
        for one in before[number]:
            latest = phases[number] if outside[one] == outside[number] else phases[number] - 1
            phases[one] = min(phases[one], latest)
    return phases
