"""Functions that are never recorded: known at compile time, told with one warning or one reason."""

from __future__ import annotations

import pytest
import torch

import pygraph_inductor

CALLS = 4


@pytest.fixture(autouse=True)
def simulated():
    pygraph_inductor.enable()
    with pygraph_inductor.config.patch(simulate=True):
        yield


@pytest.fixture
def two_ranks():
    """A process group whose second rank is imagined."""
    import torch.distributed as distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@pytest.fixture
def counting_operator():
    """An operator with an effect on the host, and the list of its calls."""
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    seen = []

    @torch.library.custom_op("pygraph_tests::count", mutates_args=())
    def count(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.sum()))
        return x.clone()

    @count.register_fake
    def _(x):
        return torch.empty_like(x)

    handle = _register_effectful_op(torch.ops.pygraph_tests.count.default, _EffectType.ORDERED)
    yield count, seen
    handle.destroy()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without torch.distributed")
def test_collectives_among_ranks_run_plainly_with_one_warning(two_ranks, caplog):
    import torch.distributed._functional_collectives as collectives

    compiled = torch.compile(lambda x: collectives.all_reduce(x + 1, "sum", two_ranks) * 2, mode="reduce-overhead")
    for number in range(CALLS):
        compiled(torch.full((8,), float(number)))
    [function] = pygraph_inductor.report().functions
    assert (function.calls, function.plain_calls) == (CALLS, CALLS)
    assert function.verdict.startswith("plain: collectives while a process group of 2 ranks is initialised")
    [record] = [record for record in caplog.records if record.name == "pygraph_inductor"]
    assert "all_reduce" in record.getMessage() and function.name in record.getMessage()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without torch.distributed")
def test_function_without_collectives_is_recorded_among_ranks_too(two_ranks):
    compiled = torch.compile(lambda x: (x + 1).relu(), mode="reduce-overhead")
    for number in range(CALLS):
        compiled(torch.full((8,), float(number)))
    [function] = pygraph_inductor.report().functions
    assert function.verdict == "replayed"


def test_effect_on_the_host_happens_once_per_call(counting_operator):
    count, seen = counting_operator
    compiled = torch.compile(lambda x: count(x + 1) * 2, mode="reduce-overhead")
    for number in range(CALLS):
        assert torch.equal(compiled(torch.full((8,), float(number))), torch.full((8,), 2.0 * number + 2))
    assert seen == [8.0 * (number + 1) for number in range(CALLS)]
    [function] = pygraph_inductor.report().functions
    assert function.verdict == (
        "plain: torch.ops.pygraph_tests.count.default has effects on the host, which a replay would skip"
    )
