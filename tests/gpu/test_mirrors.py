"""CPU parameters and buffers that are used on a GPU: against eager, while somebody writes to them between calls."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch

import pygraph_inductor
from pygraph_inductor import config
from pygraph_inductor.replay import mirrors
from tests.gpu.comparing import CALLS, Counting, compiled, same_bits

DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def nothing_held():
    mirrors._mirrors.clear()
    yield
    mirrors._mirrors.clear()


def rand(*size: int) -> torch.Tensor:
    return torch.rand(size, device=DEVICE)


def close(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, msg=lambda text: f"{what}: {text}")


class OnHost(torch.nn.Module):
    """A weight, a table, indices, a number, and an attribute that is none of these."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(16, 16))
        self.register_buffer("table", torch.rand(16))
        self.register_buffer("order", torch.randperm(16))
        self.register_buffer("scale", torch.tensor(1.5))
        self.anchors = torch.rand(16)

    def forward(self, x):
        table = self.table.to(x.device)
        later = table * 2 + 1  # could be written over the table
        y = (x * later) @ self.weight.to(x.device)
        return y[:, self.order] * self.scale + self.anchors.to(x.device) - table


def module_and_call() -> tuple[OnHost, Any]:
    torch.manual_seed(0)
    module = OnHost().requires_grad_(False)
    return module, compiled(module)


def held() -> int:
    return mirrors.held(DEVICE)


SIZE = 4 * (16 * 16 + 16 + 1 + 16) + 8 * 16


def test_they_are_copied_once_and_graphs_are_whole(monkeypatch):
    made = []
    stock = mirrors._made
    monkeypatch.setattr(mirrors, "_made", lambda *arguments: made.append(1) or stock(*arguments))
    module, call = module_and_call()
    counting = Counting()
    for number in range(CALLS + 2):
        x = rand(8, 16)
        close(call(x), module(x), f"call {number}")
    [graph] = pygraph_inductor.report().graphs
    assert graph.pieces == 1 and not graph.cuts, graph
    assert len(made) == 5 and held() == SIZE
    assert counting.recordings == 1, counting
    counting.expect(replays=CALLS)


def _in_place(module: OnHost) -> None:
    module.table.add_(1)


def _through_data(module: OnHost) -> None:
    module.weight.data[3, 4] = 7


def _through_numpy(module: OnHost) -> None:
    module.anchors.numpy()[5] = 100
    module.order.numpy()[:] = module.order.numpy()[::-1].copy()


def _a_number(module: OnHost) -> None:
    module.scale.fill_(-4)


def _other_memory(module: OnHost) -> None:
    module.weight.data = torch.rand(16, 16)


def _loaded(module: OnHost) -> None:
    module.load_state_dict(
        {name: value.flip(0) if value.dim() else value for name, value in module.state_dict().items()}
    )


WRITES = [_in_place, _through_data, _through_numpy, _a_number, _other_memory, _loaded]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__.strip("_"))
def test_no_write_is_missed_and_earlier_calls_keep_what_they_had(write):
    """Nobody waits for the device between the calls: what an earlier call reads must not be replaced under it."""
    module, call = module_and_call()
    for _ in range(3):
        call(rand(8, 16))
    busy = rand(4096, 4096)
    wanted, got = [], []
    for number in range(8):
        x = rand(8, 16)
        as_it_is = copy.deepcopy(module)
        for _ in range(4):
            busy = busy @ busy * 1e-4  # keeps the device behind the host
        got.append(call(x))
        wanted.append((x, as_it_is))
        if number % 2:
            write(module)
    for number, (result, (x, as_it_was)) in enumerate(zip(got, wanted, strict=True)):
        close(result, as_it_was(x), f"call {number}")
    call(rand(8, 16))  # what was written last may be other memory, which has no copy before it is used
    assert held() == SIZE


def test_what_is_returned_is_not_the_mirror():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(16.0))

        def forward(self, x):
            table = self.table.to(x.device)
            return x * table, self.table.to(x.device), table.view(4, 4)

    module = Module()
    call = compiled(module)
    for number in range(CALLS):
        x = rand(16)
        product, whole, view = call(x)
        assert same_bits(product, x * module.table.to(DEVICE)), f"call {number}"
        for one in (whole, view):
            assert torch.equal(one.cpu().reshape(-1), module.table), f"call {number}"
            one.fill_(-1)


def test_operator_that_writes_where_it_said_it_would_not():
    """In eager it writes to a copy that nobody sees again."""

    @torch.library.custom_op("pygraph_tests_mirrors_gpu::spoils", mutates_args=())
    def spoils(x: torch.Tensor) -> torch.Tensor:
        result = x * 2
        x.detach().fill_(-1)
        return result

    spoils.register_fake(torch.empty_like)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(16.0))

        def forward(self, x):
            return (x + 1) * torch.ops.pygraph_tests_mirrors_gpu.spoils(self.table.to(x.device))

    module = Module()
    call = compiled(module)
    for number in range(CALLS):
        x = rand(16)
        assert same_bits(call(x), (x + 1) * (module.table.to(DEVICE) * 2)), f"call {number}"
    assert held() == 0


def test_scattering_into_a_copy_leaves_the_mirror_alone():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.rand(16, 16))

        def forward(self, x, index):
            table = self.table.to(x.device)
            table[index] = x  # in eager, the copy is written
            return table @ table

    module = Module()
    call = compiled(module)
    for number in range(CALLS):
        x, index = rand(4, 16), torch.randperm(16, device=DEVICE)[:4]
        close(call(x, index), module(x, index), f"call {number}")


def test_modules_that_share_code_have_mirrors_of_their_own():
    torch.manual_seed(0)
    modules = [OnHost().requires_grad_(False) for _ in range(3)]
    calls = [compiled(module) for module in modules]
    for number in range(CALLS):
        x = rand(8, 16)
        for module, call in zip(modules, calls, strict=True):
            close(call(x), module(x), f"call {number}")
    assert held() == 3 * SIZE


def test_they_are_freed_with_the_module():
    module, call = module_and_call()
    for _ in range(CALLS):
        call(rand(8, 16))
    assert held() == SIZE
    del module, call
    torch._dynamo.reset()
    gc.collect()
    assert held() == 0


def test_other_streams_wait_for_the_copy():
    module, call = module_and_call()
    x = rand(8, 16)
    for _ in range(3):
        call(x)
    busy = rand(4096, 4096)
    side = torch.cuda.Stream()
    for number in range(6):
        module.table.add_(1)
        torch.cuda.synchronize()
        for _ in range(6):
            busy = busy @ busy * 1e-4
        call(x)  # its copy waits for what the device is busy with
        with torch.cuda.stream(side):
            got = call(x)
        side.synchronize()
        close(got, module(x), f"round {number}")


def test_training_with_a_parameter_of_the_host():
    torch.manual_seed(0)
    eager = OnHost()
    module = copy.deepcopy(eager)
    call = compiled(module)
    counting = Counting()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (eager, module)]
    for number in range(CALLS):
        x = rand(8, 16)
        losses = [one(x).square().mean() for one in (eager, call)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        close(losses[1], losses[0], f"loss {number}")
        close(module.weight, eager.weight, f"call {number}")
    assert counting.replays, counting


def test_code_from_the_cache_is_given_its_mirrors():
    module, call = module_and_call()
    for _ in range(CALLS):
        call(rand(8, 16))
    torch._dynamo.reset()
    mirrors._mirrors.clear()
    call = compiled(module)
    for number in range(CALLS):
        x = rand(8, 16)
        close(call(x), module(x), f"call {number}")
    assert held() == SIZE


def test_what_does_not_fit_is_uploaded():
    with config.patch(max_mirror_bytes=200):
        module, call = module_and_call()
        for number in range(CALLS):
            x = rand(8, 16)
            close(call(x), module(x), f"call {number}")
            module.table.add_(1)
        assert 0 < held() <= 200


def test_large_one_that_is_not_copied_again():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.rand(2048, 2048))

        def forward(self, x):
            return (x * self.table.to(x.device)).sum(-1)

    module = Module()
    call = compiled(module)
    for number in range(CALLS):
        x = rand(2048, 2048)
        close(call(x), module(x), f"call {number}")
        if number == 3:
            module.table.numpy()[-1, -1] += 1000
    assert held() == 4 * 2048 * 2048
