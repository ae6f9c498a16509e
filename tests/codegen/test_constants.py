"""Constants of a graph that lie on the CPU: on the device from the start, where the graph only reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from pygraph_inductor.transform import constants
from pygraph_inductor.transform.apply import ALL, apply
from pygraph_inductor.transform.host_values import device_of, moved_to
from pygraph_inductor.transform.operators import UPLOAD
from pygraph_inductor.transform.switches import Limits, turned_on

from .rewritten import retargeted, traced


def with_constant(function: Callable[..., Any], value: torch.Tensor, *specs: Any) -> fx.GraphModule:
    """The graph of a function whose last argument is a constant of the graph."""
    module = traced(function, *specs, {"size": value.size(), "dtype": value.dtype, "device": "cpu"})
    last = list(module.graph.find_nodes(op="placeholder"))[-1]
    module.register_buffer("table", value)
    with module.graph.inserting_before(last):
        constant = module.graph.get_attr("table")
    last.replace_all_uses_with(constant)
    module.graph.erase_node(last)
    module.recompile()
    return module


VALUE = torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_constant_is_on_the_device_from_the_start(cuda, monkeypatch):
    made = []
    monkeypatch.setattr(constants, "place", lambda value, device: made.append(device) or value.clone())
    module = with_constant(lambda x, c: (x * c.to(x.device) + c.flip(0).to(x.device),), VALUE, (4,))
    outcomes = apply(module, ALL, strict=True)
    assert {one.rewrite for one in outcomes if one.applied} == {"constants"} and made == [torch.device("cuda", 0)]
    assert [device_of(node).type for node in module.graph.find_nodes(op="get_attr")] == ["cuda"]
    assert not any(moved_to(node) for node in module.graph.nodes)
    x = torch.rand(4)
    assert torch.equal(retargeted(module)(x)[0], x * VALUE + VALUE.flip(0))


def test_table_out_of_a_constant_is_computed_on_the_device(cuda, monkeypatch):
    monkeypatch.setattr(constants, "place", lambda value, device: value.clone())
    module = with_constant(lambda x, c: (x * torch.exp(c / 3).to(x.device),), VALUE, (4,))
    outcomes = apply(module, ALL, strict=True)
    assert [one.rewrite for one in outcomes] == ["constants"] and outcomes[0].applied
    assert not module.graph.find_nodes(op="call_function", target=UPLOAD)
    assert not any(moved_to(node) for node in module.graph.nodes)
    torch.testing.assert_close(retargeted(module)(torch.ones(4))[0], torch.exp(VALUE / 3))


def test_constant_that_is_returned_or_too_large_stays(cuda, monkeypatch):
    monkeypatch.setattr(constants, "place", lambda value, device: pytest.fail("it was copied"))
    returned = with_constant(lambda x, c: (x, c.clone().to(x.device)), VALUE, (4,))
    [outcome] = apply(returned, ALL, strict=True)
    assert not outcome.applied and outcome.what == "what is returned must not be the constant"
    large = with_constant(lambda x, c: (x * c.to(x.device),), VALUE, (4,))
    with turned_on(ALL, Limits(constants=VALUE.nbytes - 1)):
        [outcome] = apply(large, ALL, strict=True)
    assert "max_constant_bytes" in outcome.what


@pytest.mark.parametrize("view", [lambda c: c.unbind(0)[0], lambda c: c.diagonal(), lambda c: c.flip(0), lambda c: c.T])
def test_view_of_a_constant_that_is_returned_leaves_it_alone(cuda, monkeypatch, view):
    monkeypatch.setattr(constants, "place", lambda value, device: pytest.fail("it was copied"))
    square = VALUE.reshape(2, 2)
    returned = with_constant(lambda x, c: (x, view(c.to(x.device))), square, (4,))
    assert not any(one.applied for one in apply(returned, ALL, strict=True))


def test_constant_without_room_on_the_device_is_copied_in_each_call(cuda, monkeypatch):
    def full(value, device):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(constants, "place", full)
    module = with_constant(lambda x, c: (x * c.to(x.device),), VALUE, (4,))
    [outcome] = apply(module, ALL, strict=True)
    assert not outcome.applied and "no room" in outcome.what
    assert torch.equal(retargeted(module)(torch.ones(4))[0], VALUE)


def test_constant_is_never_handed_to_an_upload(cuda, monkeypatch):
    """Inductor takes a clone of a constant for the constant, which no operator can be given."""
    monkeypatch.setattr(constants, "place", lambda value, device: value.clone())
    clone = torch.ops.aten.lift_fresh_copy.default
    for on in (ALL, ALL - {"constants"}, ALL - {"host_arithmetic"}):
        module = with_constant(lambda x, c: (x * clone(c).to(x.device),), VALUE, (4,))
        apply(module, on, strict=True)
        assert not module.graph.find_nodes(op="call_function", target=UPLOAD)
        assert torch.equal(retargeted(module)(torch.ones(4))[0], VALUE)


def test_constant_without_contents_stays(cuda):
    """As a tensor subclass: what is behind it is not known."""

    class Own(torch.Tensor):
        pass

    module = with_constant(lambda x, c: (x * c.to(x.device),), VALUE, (4,))
    fake = next(iter(module.graph.find_nodes(op="placeholder"))).meta["val"].fake_mode
    [constant] = module.graph.find_nodes(op="get_attr")
    constant.meta["val"] = fake.from_tensor(VALUE)
    module.table = VALUE.as_subclass(Own)
    [outcome] = apply(module, ALL, strict=True)
    assert not outcome.applied and outcome.what == "it is no plain constant"


def test_constant_with_the_rewrite_switched_off_stays(cuda):
    module = with_constant(lambda x, c: (x * c.to(x.device),), VALUE, (4,))
    [outcome] = apply(module, ALL - {"constants"}, strict=True)
    assert not outcome.applied and outcome.what == "constants is switched off"
