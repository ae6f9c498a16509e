"""What each CPU tensor of a graph is, seen from the device: which can be had there without asking the host.

The analysis behind the rewrites `uploads`, `host_scalars`, `host_arithmetic` and `round_trips`, which share one walk
over the graph. A CPU tensor comes to the device in one of four ways: it is there already (a copy of a device tensor),
it is computed there by the same operators, its content is uploaded before the replay, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pygraph_inductor.transform import constants
from pygraph_inductor.transform import switches as switches_on
from pygraph_inductor.transform.same_results import Same, agreement, is_constructor, name_of

UPLOADS, SCALARS, ARITHMETIC, ROUND_TRIPS = "uploads", "host_scalars", "host_arithmetic", "round_trips"
CONSTANTS = "constants"

# Operators after which Inductor may take the argument for the result.
_LITTLE = 64 << 10  # bytes: uploading them costs less than a kernel on the CPU
UNCHANGED = frozenset({"clone", "lift_fresh_copy", "alias", "detach"})


@dataclass
class Host:
    """One CPU tensor of the graph.

    `way` is "there", "compute", "upload", "constant" or "no" (`why` says why). `leaves` are the CPU tensors that it
    is made from: to be uploaded, or constants.
    `waits` for the device: something it is computed from is. `rounded`: it may differ in the last places.
    """

    way: str
    why: str = ""
    leaves: frozenset[fx.Node] = frozenset()
    waits: bool = False
    rounded: bool = False
    random: bool = False
    from_nothing: bool = False  # computed from no input: the same on every call
    back: bool = False  # computed on the device from a value that came from there


@dataclass
class Hosts:
    """The CPU tensors of a graph."""

    device: torch.device
    switches: Collection[str]
    of: dict[fx.Node, Host] = field(default_factory=dict)
    constant_bytes: int = 0


def device_of(node: fx.Node) -> torch.device | None:
    """Where the tensor that a node stands for lives; None if it is no single tensor."""
    value = node.meta.get("val")
    return value.device if isinstance(value, torch.Tensor) else None


def devices_of(graph: fx.Graph) -> tuple[torch.device | None, bool]:
    """The CUDA device of a graph, if it has exactly one; and whether there are tensors on the CPU, too."""
    devices = {device for node in graph.nodes if (device := device_of(node)) is not None}
    on_device = [device for device in devices if device.type == "cuda"]
    return on_device[0] if len(on_device) == 1 else None, any(device.type == "cpu" for device in devices)


def moved_to(node: fx.Node) -> torch.device | None:
    """The device that `node` copies its first argument to; None if it is no copy between devices."""
    if name_of(node.target) == "device_put" or (name_of(node.target) == "_to_copy" and node.kwargs.get("device")):
        source = node.args[0]
        if isinstance(source, fx.Node) and device_of(source) != device_of(node):
            return device_of(node)
    return None


def look_at(graph: fx.Graph, device: torch.device, switches: Collection[str]) -> Hosts:
    """Decide for every CPU tensor, from the first to the last."""
    constants.describe(graph)
    hosts = Hosts(device, switches)
    waiting: set[fx.Node] = set()  # depends on the device; sizes and numbers that came from there included
    for node in graph.nodes:
        on_device = _touches(node.meta.get("val"), "cuda")
        if on_device or any(one in waiting for one in node.all_input_nodes):
            waiting.add(node)
        if device_of(node) == torch.device("cpu") and node.op != "output":
            hosts.of[node] = _look(node, hosts, node in waiting)
    return hosts


def _touches(value: Any, kind: str) -> bool:
    leaves = torch.utils._pytree.tree_leaves(value)
    return any(isinstance(leaf, torch.Tensor) and leaf.device.type == kind for leaf in leaves)


def _look(node: fx.Node, hosts: Hosts, waits: bool) -> Host:
    if node.op == "placeholder":
        return Host("upload", leaves=frozenset({node}))
    if node.op == "get_attr":
        return _constant(node, hosts)
    if waits and moved_to(node) is not None:
        return _copy_from_device(node, hosts)
    parts = [hosts.of[one] for one in node.all_input_nodes if one in hosts.of]
    random = _is_random(node) or any(part.random for part in parts)
    from_nothing = bool(parts or is_constructor(node)) and all(part.from_nothing for part in parts)
    found = agreement(node, any(part.rounded for part in parts))
    if waits:
        return _after_device(node, hosts, parts, found)
    leaves = frozenset().union(*(part.leaves for part in parts))
    # Of numbers and of nothing, Inductor's own pass computes on the device, too; rounding is accepted there.
    numbers = all(leaf.op == "get_attr" or leaf.meta["val"].dim() == 0 for leaf in leaves)
    uploaded = sum(bytes_of(leaf) for leaf in leaves if leaf.op != "get_attr")
    worth = numbers or uploaded <= max(bytes_of(node), _LITTLE)
    constant = bool(leaves) and all(leaf.op == "get_attr" for leaf in leaves)
    wanted = ARITHMETIC in hosts.switches or (constant and name_of(node.target) in UNCHANGED)
    same = found is Same.EXACT or (found is Same.ROUNDED and numbers)
    if same and wanted and worth and all(part.way != "no" for part in parts):
        rounded = found is Same.ROUNDED
        return Host("compute", leaves=leaves, rounded=rounded, random=random, from_nothing=from_nothing)
    if parts and parts[0].why and name_of(node.target) in UNCHANGED:
        return Host("no", parts[0].why)  # the compiler would hand out the constant itself, which has no name in a call
    return Host("upload", leaves=frozenset({node}), random=random, from_nothing=from_nothing)


def _constant(node: fx.Node, hosts: Hosts) -> Host:
    if CONSTANTS not in hosts.switches:
        return Host("no", f"{CONSTANTS} is switched off")
    value = constants.real_value(node)
    if value is None:
        return Host("no", "it is no plain constant")
    hosts.constant_bytes += value.nbytes
    if hosts.constant_bytes > switches_on.limits().constants:
        return Host("no", "constants on the device would take more than config.max_constant_bytes")
    return Host("constant", leaves=frozenset({node}))


def _copy_from_device(node: fx.Node, hosts: Hosts) -> Host:
    source = node.args[0]
    if ROUND_TRIPS not in hosts.switches:
        return Host("no", "round_trips is switched off", waits=True)
    if not isinstance(source, fx.Node) or device_of(source) != hosts.device:
        return Host("no", "it comes from another device", waits=True)
    if name_of(node.target) == "_to_copy" and node.meta["val"].dtype != source.meta["val"].dtype:
        return Host("no", "it is converted on the way", waits=True)
    return Host("there", waits=True, back=True)


def _after_device(node: fx.Node, hosts: Hosts, parts: list[Host], found: Same) -> Host:
    """A CPU tensor that waits for the device: to the device with it, or the graph is cut here."""
    blocked = next((part for part in parts if part.way == "no"), None)
    if blocked is not None:
        return Host("no", blocked.why, waits=True)
    if not any(part.back for part in parts):
        name = next((str(one.target) for one in (node, *node.all_input_nodes) if name_of(one.target)), str(node.target))
        return Host("no", f"the CPU computes {name} from what the device gives", waits=True)
    if ROUND_TRIPS not in hosts.switches or found is Same.UNKNOWN:
        return Host("no", f"{node.target} is not known to give the same on the device as on the CPU", waits=True)
    leaves = frozenset().union(*(part.leaves for part in parts))
    return Host("compute", leaves=leaves, waits=True, rounded=found is Same.ROUNDED, back=True)


def _is_random(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def bytes_of(node: fx.Node) -> int:
    """How large a tensor is; of sizes that are not known, what they were when the graph was made."""
    value = node.meta["val"]
    total = value.element_size()
    for size in value.size():
        hint = size if isinstance(size, int) else getattr(size.node, "hint", None)
        total *= hint if isinstance(hint, int) else 1
    return total


def tensors_in(arguments: Any) -> Iterator[fx.Node]:
    """All nodes among arguments."""
    found: list[fx.Node] = []
    fx.node.map_arg(arguments, found.append)
    return iter(found)
