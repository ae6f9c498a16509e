"""Which slots of a recording are found through a table: asked once, between the first captures and the next ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pygraph_inductor.recording.bindings import Found
from pygraph_inductor.recording.indirection import Watching
from pygraph_inductor.selection.cost_model import Choice, Coefficients, Consumers, choose, cost_of

WORTHWHILE = 1.0  # µs a call that have to be saved for twins to be compiled


@dataclass(frozen=True)
class Wanted:
    """The places that shall be indirect, and what the model says about it, in µs a call."""

    places: frozenset[int]
    costs: dict[str, float]
    why: str


def wanted(
    forced: bool, found: Found, watched: Watching, still: Collection[int], staged: Collection[int], c: Coefficients
) -> Wanted:
    """`forced`: every place that can be. `still` are the places that are not expected to move."""
    consumers = _consumers(found, watched, staged)
    moving = {place: one for place, one in consumers.items() if place not in still}
    choice = choose(moving, c)
    costs = {"patch": choice.patched, "indirect": choice.indirected}
    able = frozenset(place for place, one in consumers.items() if one.kernels)
    if forced:
        return Wanted(able, costs, "config.engine asks for it")
    if choice.indirect and choice.cost <= choice.patched - WORTHWHILE:
        costs["chosen"] = choice.cost
        return Wanted(choice.indirect, costs, _words(choice, moving, c))
    costs["chosen"] = choice.patched
    return Wanted(frozenset(), costs, _words_for_patching(choice, moving, able))


def _consumers(found: Found, watched: Watching, staged: Collection[int]) -> dict[int, Consumers]:
    launches: dict[int, set[int]] = {}
    for launch in watched.launches:
        for place in launch.places.values():
            launches.setdefault(place, set()).add(launch.node)
    consumers = {}
    for place, bindings in enumerate(found.by_slot):
        if place not in staged:
            nodes = frozenset(binding.node for binding in bindings)
            consumers[place] = Consumers(nodes, nodes & launches.get(place, set()))
    return consumers


def _words(choice: Choice, moving: dict[int, Consumers], c: Coefficients) -> str:
    rest = cost_of((), {place: one for place, one in moving.items() if place not in choice.indirect}, c)
    return (
        f"{len(choice.indirect)} of {len(moving)} slots through a table: {choice.cost:.1f} µs a call, "
        f"patching all of them {choice.patched:.1f} µs, the others {rest:.1f} µs"
    )


def _words_for_patching(choice: Choice, moving: dict[int, Consumers], able: Collection[int]) -> str:
    if not moving:
        return "no slot is expected to move"
    if not able:
        return "no kernel of its slots has a twin"
    nodes = len({node for one in moving.values() for node in one.nodes})
    return f"patching {nodes} nodes costs {choice.patched:.1f} µs a call, a table {choice.indirected:.1f} µs"
