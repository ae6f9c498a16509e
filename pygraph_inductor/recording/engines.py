"""Which slots of a recording are found through a table: asked once, between the first captures and the next ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pygraph_inductor.recording.bindings import Found
from pygraph_inductor.recording.capture import Work
from pygraph_inductor.recording.indirection import Watching, twins_for
from pygraph_inductor.selection.calibration import coefficients
from pygraph_inductor.selection.cost_model import Choice, Coefficients, Consumers, CostModel, SlotUse, choose, value

# Compiling a twin takes about so long, in µs, and has to be saved again by so many calls.
COMPILING = 300_000.0
PAID_BACK = 100_000
_SHOWN = 8  # slots whose costs are reported: those with the most consumers


@dataclass(frozen=True)
class Wanted:
    """The places that shall be indirect, and what the model says about it, in µs a call.

    `slots` has the costs of single places, by engine: of those with the most consumers.
    """

    places: frozenset[int]
    costs: dict[str, float]
    why: str
    slots: dict[int, dict[str, float]]


def wanted(forced: bool, work: Work, written: Collection[int], found: Found, staged: Collection[int]) -> Wanted:
    """`forced`: every place that can be. `written`: positions of inputs."""
    assert isinstance(work.indirection, Watching)
    c = coefficients(work.driver, work.facts.decisions_folder)
    consumers = _consumers(found, work.indirection, staged)
    moving = {number: one for number, one in consumers.items() if _moves(work, number)}
    choice = choose(moving, c)
    slots = _costs_of_slots(work, written, consumers, c)
    costs = {"patch": choice.patched, "indirect": choice.indirected}
    able = frozenset(number for number, one in consumers.items() if one.kernels)
    if forced:
        return Wanted(able, costs, "config.engine asks for a table", slots)
    twins = len(twins_for(work.indirection, choice.indirect))
    if choice.indirect and (choice.patched - choice.cost) * PAID_BACK >= COMPILING * twins:
        costs["chosen"] = choice.cost
        return Wanted(choice.indirect, costs, _words(choice, moving), slots)
    costs["chosen"] = choice.patched
    why = _words_for_patching(choice, moving, able)
    if choice.indirect:
        why += f", {choice.cost:.1f} µs for some slots only; compiling {twins} twins takes too long for that"
    return Wanted(frozenset(), costs, why, slots)


def _moves(work: Work, number: int) -> bool:
    place = work.places[number]
    return place.is_output or place.source not in work.facts.static_inputs


def _costs_of_slots(
    work: Work, written: Collection[int], consumers: Mapping[int, Consumers], c: Coefficients
) -> dict[int, dict[str, float]]:
    model = CostModel(c)
    shown = sorted(consumers, key=lambda number: -len(consumers[number].nodes))[:_SHOWN]
    costs = {}
    for number in shown:
        place, one = work.places[number], consumers[number]
        use = SlotUse(
            nodes=len(one.nodes),
            kernels=len(one.kernels),
            nbytes=place.layout.span,
            written=place.is_output or place.source in written,
            moves=_moves(work, number),
        )
        by_engine = model.of(use, sharing=sum(1 for other in consumers.values() if other.kernels) or 1)
        if not use.moves:
            del by_engine["patch"]
        else:
            del by_engine["static"]
        costs[number] = {engine: round(value(cost), 3) for engine, cost in by_engine.items()}
    return costs


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


def _words(choice: Choice, moving: Mapping[int, Consumers]) -> str:
    return (
        f"{len(choice.indirect)} of {len(moving)} slots through a table: {choice.cost:.1f} µs a call, "
        f"{choice.patched:.1f} µs if all were patched"
    )


def _words_for_patching(choice: Choice, moving: Mapping[int, Consumers], able: Collection[int]) -> str:
    if not moving:
        return "no slot is expected to move"
    if not able:
        return "no kernel of its slots has a twin"
    nodes = len({node for one in moving.values() for node in one.nodes})
    return f"patching {nodes} nodes costs {choice.patched:.1f} µs a call, a table {choice.indirected:.1f} µs"
