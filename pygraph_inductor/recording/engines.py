"""Which slots of a recording are found through a table, and which the graph copies: asked once, between the first
captures and the next ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pygraph_inductor.recording.bindings import Found
from pygraph_inductor.recording.capture import Work
from pygraph_inductor.recording.indirection import Watching, twins_for
from pygraph_inductor.selection.calibration import coefficients
from pygraph_inductor.selection.cost_model import Choice, Coefficients, Consumers, CostModel, SlotUse, choose, value

# Compiling a twin takes about so long, in µs, which has to be saved again by so many calls: a table is used where it
# saves a microsecond.
COMPILING = 300_000.0
PAID_BACK = 300_000
# µs of a call that copies have to save: a replay copies nothing but for a reason.
LEAST_SAVED_BY_COPIES = 3.0
# Bytes of the largest slot that is copied although patching can serve it: it needs as much memory beside it.
MOST_COPIED = 1 << 20
_SHOWN = 8  # slots whose costs are reported: those with the most consumers


@dataclass(frozen=True)
class Wanted:
    """The places that shall be indirect or copied, and what the model says about it, in µs a call.

    `slots` has the costs of single places, by engine: of those with the most consumers.
    """

    places: frozenset[int]
    copied: frozenset[int]
    costs: dict[str, float]
    why: str
    slots: dict[int, dict[str, float]]


def wanted(
    forced: bool,
    work: Work,
    written: Collection[int],
    found: Found,
    staged: Collection[int],
    alone: Collection[int],
) -> Wanted:
    """`forced`: every place that can be is indirect. `written`: positions of inputs; `alone`: places of inputs that
    overlap no other.
    """
    assert isinstance(work.indirection, Watching)
    c = coefficients(work.driver, work.facts.decisions_folder)
    uses = _uses(work, written, _consumers(found, work.indirection, staged))
    consumers = {
        number: replace(
            one, copying=value(CostModel(c).copy(use)) if _may_be_copied(work, number, use, alone) else None
        )
        for number, (one, use) in uses.items()
    }
    moving = {number: one for number, one in consumers.items() if uses[number][1].moves}
    model = choose(moving, c)
    slots = _costs_of_slots({number: (consumers[number], use) for number, (_, use) in uses.items()}, c)
    costs = {"patch": model.patched, "indirect": model.indirected, "copy": model.all_copied}
    if forced:
        able = frozenset(number for number, one in consumers.items() if one.kernels)
        return Wanted(able, frozenset(), costs, "config.engine asks for a table", slots)
    uncopied = {number: replace(one, copying=None) for number, one in moving.items()}
    found_uncopied = choose(uncopied, c) if model.copied else model
    choice, refused = _paid_back(work.indirection, found_uncopied, uncopied, c)
    if model.copied or refused:  # copies may be the next best to a table
        copying, its_refused = _paid_back(work.indirection, model, moving, c)
        if copying.copied and choice.cost - copying.cost >= LEAST_SAVED_BY_COPIES:
            choice, refused = copying, its_refused
    costs["chosen"] = choice.cost
    chosen = choice.indirect or choice.copied
    why = _words(choice, moving) if chosen else _words_for_patching(model, moving)
    return Wanted(choice.indirect, choice.copied, costs, why + refused, slots)


def _paid_back(watched: Watching, found: Choice, slots: Mapping[int, Consumers], c: Coefficients) -> tuple[Choice, str]:
    """The plan `found` for slots if its twins save what compiling them takes; else the best one without any, and what
    is to be said of the other.
    """
    if not found.indirect:
        return found, ""
    without = choose({number: replace(one, kernels=frozenset()) for number, one in slots.items()}, c)
    twins = len(twins_for(watched, found.indirect))
    if (without.cost - found.cost) * PAID_BACK >= COMPILING * twins:
        return found, ""
    better = f"{found.cost:.1f} µs with some slots through a table"
    return without, f"; {better}, but compiling {twins} twins takes too long for that"


def _moves(work: Work, number: int) -> bool:
    place = work.places[number]
    return place.is_output or place.source not in work.facts.static_inputs


def _may_be_copied(work: Work, number: int, use: SlotUse, alone: Collection[int]) -> bool:
    """Only what can be in two places at once: an input that nobody writes to, under this or another name."""
    return (
        number in alone
        and not work.places[number].is_output
        and use.moves
        and not use.written
        and use.nbytes <= MOST_COPIED
    )


def _uses(
    work: Work, written: Collection[int], consumers: Mapping[int, Consumers]
) -> dict[int, tuple[Consumers, SlotUse]]:
    uses = {}
    for number, one in consumers.items():
        place = work.places[number]
        use = SlotUse(
            nodes=len(one.nodes),
            kernels=len(one.kernels),
            nbytes=place.layout.span,
            written=not place.is_output and place.source in written,
            moves=_moves(work, number),
        )
        uses[number] = one, use
    return uses


def _costs_of_slots(uses: Mapping[int, tuple[Consumers, SlotUse]], c: Coefficients) -> dict[int, dict[str, float]]:
    """No cost of an engine: it cannot serve the slot, or is not chosen whatever it costs."""
    model = CostModel(c)
    sharing = sum(1 for one, _ in uses.values() if one.kernels) or 1
    costs = {}
    for number in sorted(uses, key=lambda number: -len(uses[number][0].nodes))[:_SHOWN]:
        one, use = uses[number]
        by_engine = model.of(use, sharing)
        del by_engine["static" if use.moves else "patch"]
        if one.copying is None:
            del by_engine["copy"]
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
    parts = [f"{len(choice.indirect)} of {len(moving)} slots through a table"] if choice.indirect else []
    if choice.copied:
        parts.append(f"{len(choice.copied)} of {len(moving)} slots copied")
    return f"{', '.join(parts)}: {choice.cost:.1f} µs a call, {choice.patched:.1f} µs if all were patched"


def _words_for_patching(choice: Choice, moving: Mapping[int, Consumers]) -> str:
    if not moving:
        return "no slot is expected to move"
    nodes = len({node for one in moving.values() for node in one.nodes})
    others = []
    if any(one.kernels for one in moving.values()):
        others.append(f"a table {choice.indirected:.1f} µs")
    else:
        others.append("no kernel of its slots has a twin")
    if any(one.copying is not None for one in moving.values()):
        few = f", and have to save {LEAST_SAVED_BY_COPIES:.0f}" if choice.all_copied < choice.patched else ""
        others.append(f"copies {choice.all_copied:.1f} µs{few}")
    else:
        others.append("no slot is a small input that is only read and overlaps no other")
    return f"patching {nodes} nodes costs {choice.patched:.1f} µs a call; {', '.join(others)}"
