"""Gives device computations their host values on the device, so that no copy cuts the graph in two.

Six rewrites, with a switch each (`config.transform_*`). They are one walk over the graph, and share its condition: what
is computed elsewhere gives the same there (`same_results.py`), and no result changes its dtype, sizes or strides.

- `uploads`: a CPU tensor that only has to be copied is part of one packed, asynchronous copy before the replay.
- `host_scalars`: a 0-d CPU tensor in an operator on the device becomes a 0-d device tensor, if the result of the
  operator stays what it is (dtype, sizes, strides).
- `host_arithmetic`: what is computed on the CPU for the device is computed on the device, if every operator gives
  the same there bit for bit, and raises nothing. Floats that are computed from numbers or from nothing (schedules,
  tables of positions) may differ by rounding, as with Inductor's own pass; they must then decide nothing.
- `constants`: a CPU constant is on the device from the start (see `constants.py`).
- `mirrors`: what is to be uploaded, and is a parameter or buffer, is kept on the device (see `mirrors.py`).
- `round_trips`: what comes from the device and goes back stays there, if every operator between gives the same there,
  or float results that differ by rounding, which must then decide nothing (no comparison, no integer).

What the program returns on the CPU is still computed on the CPU.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pygraph_inductor.replay.uploads import by_dtype
from pygraph_inductor.transform import constants, mirrors
from pygraph_inductor.transform import switches as switches_on
from pygraph_inductor.transform.host_values import (
    ARITHMETIC,
    CONSTANTS,
    ROUND_TRIPS,
    SCALARS,
    UPLOADS,
    Host,
    Hosts,
    bytes_of,
    device_of,
    devices_of,
    look_at,
    moved_to,
    tensors_in,
)
from pygraph_inductor.transform.limited import fitting
from pygraph_inductor.transform.mirrors import MIRRORS
from pygraph_inductor.transform.operators import UPLOAD
from pygraph_inductor.transform.outcome import Outcome
from pygraph_inductor.transform.same_results import is_constructor, is_integral, makes_new, name_of

_ITEM = operator.getitem
REWRITES = (UPLOADS, SCALARS, ARITHMETIC, ROUND_TRIPS, CONSTANTS, MIRRORS)
# Operators on device tensors that take indices from the host.
_INDEXED = frozenset({"index", "index_put", "_unsafe_index", "_unsafe_index_put"})
# Operators on device tensors that copy from the host.
_COPYING = frozenset({"copy", "copy_", "slice_scatter", "select_scatter"})
# Where the memory of a result may be the argument's.
_COPY_LIKE = frozenset(
    [
        "alias",
        "clone",
        "contiguous",
        "expand",
        "permute",
        "reshape",
        "select",
        "slice",
        "squeeze",
        "t",
        "transpose",
        "unsqueeze",
        "view",
        "detach",
        "_to_copy",
        "convert_element_type",
        "device_put",
        "copy",
        "lift_fresh_copy",
        "_unsafe_view",
        "as_strided",
        "diagonal",
        "unfold",
        "split",
        "split_with_sizes",
        "unbind",
        "cat",
        "constant_pad_nd",
        "view_as_real",
        "view_as_complex",
        "repeat",
    ]
)


class Refused(Exception):
    """This place is left as it is; the text says why."""


@dataclass
class _Place:
    """A use of a CPU tensor by something on the device."""

    user: fx.Node
    host: fx.Node
    rewrite: str
    way: Host
    returned: bool = False  # its memory may become an output's, so it must be memory of its own


@dataclass
class _Work:
    graph: fx.Graph
    hosts: Hosts
    made: dict[fx.Node, fx.Node] = field(default_factory=dict)  # CPU node -> its value on the device
    mirrors: dict[fx.Node, Outcome] = field(default_factory=dict)
    front: fx.Node | None = None  # the last node of the uploads in front of everything on the device
    outcomes: list[Outcome] = field(default_factory=list)


def bring_to_device(graph: fx.Graph, switches: Collection[str]) -> list[Outcome]:
    """Rewrite `graph` in place. An exception leaves it half done, and the caller puts the old one back."""
    device, on_host = devices_of(graph)
    if device is None or not on_host:
        return []
    work = _Work(graph, look_at(graph, device, switches))
    places = list(_places(work))
    if MIRRORS in switches:
        _mirror(work, places)
    places = _that_fit(work, places)
    _upload(work, places)
    for place in places:
        _rewrite(work, place)
    graph.eliminate_dead_code()
    work.outcomes += [work.mirrors[mirror] for mirror in mirrors.used(graph)]
    _keep_on_host(graph)
    return list(dict.fromkeys(work.outcomes))


def _places(work: _Work) -> list[_Place]:
    found = []
    returned = _reaching_host_outputs(work.graph)
    for user in work.graph.nodes:
        mine = [one for one in dict.fromkeys(tensors_in((user.args, user.kwargs))) if one in work.hosts.of]
        if not mine or not _is_on(user, work.hosts.device):
            continue
        # All at once first: an optimizer's operators take hundreds of them.
        scalars = {one for one in mine if one.meta["val"].dim() == 0}
        fits = moved_to(user) is None and bool(scalars) and _gives_the_same(work, user, scalars)
        for host in mine:
            way = work.hosts.of[host]
            rewrite = _rewrite_for(user, host, way)
            if way.way == "upload" and way.from_nothing and not returned & _with_parts(host):
                continue  # Inductor's own pass makes such tensors on the device
            reason = _reason_against(work, user, host, way, rewrite, fits and host in scalars)
            if reason:
                work.outcomes.append(Outcome.at(user, rewrite or UPLOADS, False, reason))
            elif rewrite:
                found.append(_Place(user, host, rewrite, way, moved_to(user) is not None and _reaches_output(user)))
    return found


def _with_parts(node: fx.Node) -> set[fx.Node]:
    found, todo = set(), [node]
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += one.all_input_nodes
    return found


def _reaching_host_outputs(graph: fx.Graph) -> set[fx.Node]:
    """The CPU tensors that outputs on the CPU are computed from, and those outputs."""
    found: set[fx.Node] = set()
    for output in graph.output_node().all_input_nodes:
        if device_of(output) == torch.device("cpu"):
            found |= _with_parts(output)
    return found


def _rewrite_for(user: fx.Node, host: fx.Node, way: Host) -> str | None:
    """Which rewrite brings `host` to `user`; None if none does."""
    if not name_of(user.target):
        return None
    scalar = host.meta["val"].dim() == 0
    if moved_to(user) is None and not scalar and not _is_index(user, host) and not _is_source(user, host):
        return None
    if way.back:
        return ROUND_TRIPS
    if way.leaves and all(leaf.op == "get_attr" for leaf in way.leaves):
        return CONSTANTS
    if way.way == "compute":
        return ARITHMETIC
    return SCALARS if scalar else UPLOADS


def _is_index(user: fx.Node, host: fx.Node) -> bool:
    if name_of(user.target) not in _INDEXED or len(user.args) < 2:
        return False
    dtype = host.meta["val"].dtype
    return host in tensors_in(user.args[1]) and is_integral(dtype) and dtype not in (torch.bool, torch.uint8)


def _is_source(user: fx.Node, host: fx.Node) -> bool:
    return name_of(user.target) in _COPYING and len(user.args) > 1 and user.args[1] is host


def _reason_against(work: _Work, user: fx.Node, host: fx.Node, way: Host, rewrite: str | None, fits: bool) -> str:
    if rewrite is None:
        return f"{user.target} takes a CPU tensor, and may look at it on the host"
    if way.way == "no":
        return way.why
    if rewrite not in work.hosts.switches:
        return f"{rewrite} is switched off"
    needed = {SCALARS if leaf.meta["val"].dim() == 0 else UPLOADS for leaf in way.leaves if leaf.op != "get_attr"}
    if rewrite == CONSTANTS and moved_to(user) is not None and _may_be_returned(user):
        return "what is returned must not be the constant"
    if off := sorted(needed - set(work.hosts.switches)):
        return f"{off[0]} is switched off"
    if name_of(user.target) in ("index_put", "_unsafe_index_put") and not _is_index(user, host) and _has_mask(user):
        return "writing a number through a mask asks the host how many elements there are"
    if way.back and name_of(host.target) in _COPY_LIKE and moved_to(user) is not None and _reaches_output(user):
        return "what is returned must not share memory with what it was a copy of"
    if moved_to(user) is None and not fits and not _gives_the_same(work, user, {host}):
        return f"{user.target} would give another dtype or layout with a device tensor"
    return ""


def _has_mask(user: fx.Node) -> bool:
    return any(one.meta["val"].dtype in (torch.bool, torch.uint8, torch.int8) for one in tensors_in(user.args[1]))


def _is_on(user: fx.Node, device: torch.device) -> bool:
    """Whether a node gives tensors on the device and nowhere else: one, or a list of them."""
    leaves = torch.utils._pytree.tree_leaves(user.meta.get("val"))
    devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}
    return devices == {device}


def _gives_the_same(work: _Work, user: fx.Node, hosts: set[fx.Node]) -> bool:
    """Whether the result of `user` keeps its dtypes, sizes and strides with `hosts` on the device."""

    def there(node: fx.Node) -> Any:
        value = node.meta["val"]
        return torch.empty_like(value, device=work.hosts.device) if node in hosts else value

    with next(iter(hosts)).meta["val"].fake_mode:
        args, kwargs = fx.node.map_arg((user.args, user.kwargs), there)
        try:
            result = user.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:
            return False
    found, wanted = (torch.utils._pytree.tree_leaves(one) for one in (result, user.meta["val"]))
    return len(found) == len(wanted) and all(map(_alike, found, wanted))


def _alike(one: Any, other: Any) -> bool:
    return (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.dtype == other.dtype
        and one.device == other.device
        and tuple(one.size()) == tuple(other.size())
        and one.stride() == other.stride()
    )


# -- mirrors and uploads


def _mirror(work: _Work, places: list[_Place]) -> None:
    """Give parameters and buffers of the CPU a mirror where all their uses can do with one."""
    using: dict[fx.Node, list[_Place]] = {}
    for place in places:
        for leaf in place.way.leaves if not _is_uploaded_alone(place) else ():
            using.setdefault(leaf, []).append(place)
    candidates = {leaf: (leaf,) for leaf in using if mirrors.can_be_mirrored(leaf)}
    fit, _ = fitting(candidates, bytes_of, switches_on.limits().mirrors)
    for leaf in candidates:
        mine = using[leaf]
        if leaf not in fit:
            what = "what is kept on the device would take more than config.max_mirror_bytes"
            work.outcomes.append(Outcome.at(mine[0].user, MIRRORS, False, what))
        elif all(mirrors.stays_inside(place.user, moved_to(place.user) is not None) for place in mine):
            mirror = work.made[leaf] = mirrors.add(work.graph, leaf, work.hosts.device)
            what = "a parameter or buffer of the CPU is kept on the device"
            work.mirrors[mirror] = Outcome.at(mine[0].user, MIRRORS, True, what)
        else:
            what = "what is returned, or given to an operator that is not of PyTorch, must not be a mirror"
            work.outcomes.append(Outcome.at(mine[0].user, MIRRORS, False, what))


def _that_fit(work: _Work, places: list[_Place]) -> list[_Place]:
    """The places that are left if the uploads are not to take more than they may. All of a node, or none of it."""
    needs: dict[fx.Node, set[tuple[fx.Node, fx.Node | None]]] = {}
    for place in places:
        mine = needs.setdefault(place.user, set())
        if _is_uploaded_alone(place):
            mine.add((place.host, place.user))
        elif not place.returned:
            mine.update((leaf, None) for leaf in place.way.leaves if leaf.op != "get_attr" and leaf not in work.made)
    fit, _ = fitting(needs, lambda one: bytes_of(one[0]), switches_on.limits().uploads)
    for place in places:
        if place.user not in fit:
            what = "what is uploaded would take more than config.max_upload_bytes"
            work.outcomes.append(Outcome.at(place.user, place.rewrite, False, what))
    return [place for place in places if place.user in fit]


def _is_uploaded_alone(place: _Place) -> bool:
    return place.returned and bool(place.way.leaves) and not place.way.back


def _upload(work: _Work, places: list[_Place]) -> None:
    """One operator for all tensors to upload, behind the last of them and what they are computed from."""
    used = {leaf for place in places if not place.returned for leaf in place.way.leaves}
    shared = {leaf for leaf in used if leaf.op != "get_attr" and leaf not in work.made}
    order = {node: number for number, node in enumerate(work.graph.nodes)}
    together = sorted((leaf for leaf in shared if not work.hosts.of[leaf].random), key=order.__getitem__)
    if together:
        work.made.update(_upload_in_front(work, together))
    for leaf in sorted(shared - set(together), key=order.__getitem__):
        work.made.update(_call_upload(work, [leaf], leaf))  # where it is: hoisting would draw in another order


def _upload_in_front(work: _Work, leaves: list[fx.Node], own: bool = False) -> dict[fx.Node, fx.Node]:
    """An upload before everything on the device, and behind the uploads that are there already."""
    behind = _hoist(work.graph, leaves)
    if work.front is not None and behind < work.front:
        behind = work.front
    found = _call_upload(work, leaves, behind, own)
    work.front = list(found.values())[-1]
    return found


def _hoist(graph: fx.Graph, leaves: list[fx.Node]) -> fx.Node:
    """Move `leaves`, and what they are computed from, in front of everything else. Returns the last of them."""
    needed = set().union(*(_with_parts(leaf) for leaf in leaves))
    last = next(iter(reversed(list(graph.find_nodes(op="placeholder")))), None)
    moving = [node for node in graph.nodes if node in needed and node.op != "placeholder"]
    for node in moving:
        if last is None:
            first = next(iter(graph.nodes))
            if node is not first:
                first.prepend(node)
        elif last.next is not node:
            last.append(node)
        last = node
    assert last is not None
    return last


def _call_upload(work: _Work, leaves: list[fx.Node], behind: fx.Node, own: bool = False) -> dict[fx.Node, fx.Node]:
    """An upload behind a node; returns the device tensor of each leaf.

    Numbers of one type are packed into one tensor and taken out of it in the graph: one slot for all of them.
    """
    numbers = [leaf for leaf in leaves if leaf.meta["val"].dim() == 0 and not own]
    packed = set(numbers)
    tensors = [leaf for leaf in leaves if leaf not in packed]
    arguments = (numbers, tensors, work.hosts.device)
    upload = _node_behind(work.graph, behind, leaves[0], UPLOAD, arguments)
    groups = by_dtype([leaf.meta["val"] for leaf in numbers])
    last, packs = upload, {}
    for position, dtype in enumerate(groups):
        packs[dtype] = last = _node_behind(work.graph, last, leaves[0], _ITEM, (upload, position))
    found, taken = {}, dict.fromkeys(groups, 0)
    for leaf in numbers:
        dtype = leaf.meta["val"].dtype
        select = torch.ops.aten.select.int
        found[leaf] = last = _node_behind(work.graph, last, leaf, select, (packs[dtype], 0, taken[dtype]))
        taken[dtype] += 1
    for position, leaf in enumerate(tensors, len(groups)):
        found[leaf] = last = _node_behind(work.graph, last, leaf, _ITEM, (upload, position))
    return found


def _node_behind(graph: fx.Graph, behind: fx.Node, origin: fx.Node, target: Any, arguments: tuple[Any, ...]) -> fx.Node:
    with graph.inserting_after(behind):
        node = graph.call_function(target, arguments)
    with origin.meta["val"].fake_mode:
        node.meta["val"] = target(*fx.node.map_arg(arguments, lambda one: one.meta["val"]))
    _explain(node, origin)
    return node


def _explain(node: fx.Node, origin: fx.Node) -> None:
    for key in ("stack_trace", "nn_module_stack"):
        if key in origin.meta:
            node.meta[key] = origin.meta[key]


def _reaches_output(node: fx.Node) -> bool:
    """Whether the memory of `node`'s result may become an output's: then it must be memory of its own."""
    return _leads_to_output(node, lambda user: name_of(user.target) in _COPY_LIKE or not name_of(user.target))


def _may_be_returned(node: fx.Node) -> bool:
    """The same for memory that outlives the call, where a mistake would be one for ever: only results of arithmetic
    and the like are surely new."""
    return _leads_to_output(node, lambda user: not makes_new(user))


def _leads_to_output(node: fx.Node, passes: Callable[[fx.Node], bool]) -> bool:
    todo, seen = [node], set()
    while todo:
        for user in todo.pop().users:
            if user.op == "output":
                return True
            if user not in seen and passes(user):
                seen.add(user)
                todo.append(user)
    return False


# -- moving


def _rewrite(work: _Work, place: _Place) -> None:
    user = place.user
    try:
        value = _on_its_own(work, place) if place.returned else _on_device(work, place.host, user)
        if moved_to(user) is not None:
            _replace_copy(work, user, value)
        else:
            _replace_argument(work, place, value)
    except Refused as refusal:
        work.outcomes.append(Outcome.at(user, place.rewrite, False, str(refusal)))
    else:
        if value not in work.mirrors:
            work.outcomes.append(Outcome.at(user, place.rewrite, True, _WHAT[place.rewrite]))


_WHAT = {
    UPLOADS: "a CPU tensor is uploaded before the replay",
    SCALARS: "a CPU number is uploaded before the replay",
    ARITHMETIC: "what the CPU computed for the device is computed there",
    CONSTANTS: "a constant is kept on the device",
    ROUND_TRIPS: "a detour over the CPU stays on the device",
}


def _on_its_own(work: _Work, place: _Place) -> fx.Node:
    """A node with the value of a host tensor in memory that nobody else has."""
    if _is_uploaded_alone(place):
        if place.way.random:
            return _call_upload(work, [place.host], place.user, own=True)[place.host]
        return _upload_in_front(work, [place.host], own=True)[place.host]
    shared, work.made = work.made, {leaf: work.made[leaf] for leaf in place.way.leaves if leaf in work.made}
    try:
        return _on_device(work, place.host, place.user)
    finally:
        work.made = shared


def _on_device(work: _Work, host: fx.Node, user: fx.Node) -> fx.Node:
    """A node with the value of `host` on the device; new nodes come directly before `user`, if there are any."""
    if host in work.made and _comes_before(work.made[host], user):
        return work.made[host]
    way = work.hosts.of[host]
    if way.way == "there":
        source = host.args[0]
        assert isinstance(source, fx.Node)
        if not _alike_but_device(source.meta["val"], host.meta["val"]):
            raise Refused("the copy to the CPU has other strides")
        return source
    if way.way == "constant":
        try:
            work.made[host] = constants.copy_of(host, work.hosts.device)
        except RuntimeError as error:  # no memory left
            raise Refused(f"a constant could not be brought to the device: {error}") from error
        return work.made[host]
    if way.way != "compute":
        raise Refused(way.why or "it is not uploaded")
    arguments = fx.node.map_arg(
        (host.args, host.kwargs),
        lambda part: _on_device(work, part, user) if part in work.hosts.of else part,
    )
    keywords = dict(arguments[1])
    if is_constructor(host) or "device" in keywords:
        keywords["device"] = work.hosts.device
    with work.graph.inserting_before(user):
        copy = work.graph.call_function(host.target, arguments[0], keywords)  # type: ignore[arg-type]
    with host.meta["val"].fake_mode:
        values = fx.node.map_arg((copy.args, copy.kwargs), lambda one: one.meta["val"])
        copy.meta["val"] = host.target(*values[0], **values[1])  # type: ignore[operator]
    _explain(copy, host)
    if not _alike_but_device(copy.meta["val"], host.meta["val"]) or device_of(copy) != work.hosts.device:
        raise Refused(f"{host.target} has another layout on the device")
    work.made[host] = copy
    return copy


def _comes_before(node: fx.Node, other: fx.Node) -> bool:
    return node < other


def _alike_but_device(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and tuple(one.size()) == tuple(other.size()) and one.stride() == other.stride()


def _replace_copy(work: _Work, user: fx.Node, value: fx.Node) -> None:
    if user.meta["val"].dtype != value.meta["val"].dtype or not _alike(value.meta["val"], user.meta["val"]):
        raise Refused("the copy converts, or has other strides")
    user.replace_all_uses_with(value)
    work.graph.erase_node(user)


def _replace_argument(work: _Work, place: _Place, value: fx.Node) -> None:
    user = place.user
    args, kwargs = fx.node.map_arg((user.args, user.kwargs), lambda one: value if one is place.host else one)
    user.args, user.kwargs = args, kwargs


# -- what stays on the host


def _keep_on_host(graph: fx.Graph) -> None:
    """Keep CPU constructors behind CPU outputs from Inductor's pass that moves them, and the outputs, to the device.

    The pass looks for `torch.device("cpu")` (post_grad.ConstructorMoverPass, torch 2.11 to 2.15) and returned
    `torch.arange(3)` on the device; to every operator, "cpu" means the same.
    """
    for node in _reaching_host_outputs(graph):
        if name_of(node.target) and node.kwargs.get("device") == torch.device("cpu"):
            node.kwargs = {**node.kwargs, "device": "cpu"}
