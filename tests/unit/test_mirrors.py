"""Copies of CPU tensors that are kept from call to call, with the CPU as the device they are kept on: never stale."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

from pygraph_inductor.replay import mirrors
from pygraph_inductor.replay.mirrors import following, held

CPU = torch.device("cpu")
ROOMY = 1 << 30


class Function:
    """What a compiled function with mirrors of its inputs 0 … n-1 is given behind its inputs."""

    def __init__(self, count: int = 1, limit: int = ROOMY) -> None:
        self.count = count
        self.call = following(self._run, range(count), CPU, limit)
        self.given: list[torch.Tensor] = []

    def _run(self, inputs: list[Any]) -> str:
        assert len(inputs) == 2 * self.count
        self.given = inputs[self.count :]
        return "result"

    def __call__(self, *hosts: torch.Tensor) -> list[torch.Tensor]:
        """The copies, which must be what the hosts are now."""
        assert self.call(list(hosts)) == "result"
        for host, copy in zip(hosts, self.given, strict=True):
            assert copy.dtype == host.dtype and copy.size() == host.size() and copy.stride() == host.stride()
            assert copy.untyped_storage().data_ptr() != host.untyped_storage().data_ptr()
            assert bytes_of(copy) == bytes_of(host)
        return self.given


def bytes_of(tensor: torch.Tensor) -> bytes:
    """All bytes between the first and the last element."""
    tensor = tensor.detach()
    span = tensor.numel() * tensor.itemsize
    flat = torch.empty(0, dtype=torch.uint8)
    flat.set_(tensor.untyped_storage(), tensor.storage_offset() * tensor.itemsize, (span,), (1,))
    return bytes(flat.tolist())


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    mirrors._mirrors.clear()
    yield
    mirrors._mirrors.clear()


def test_what_did_not_change_is_copied_once():
    function, host = Function(), torch.rand(100)
    [first] = function(host)
    for _ in range(5):
        [again] = function(host)
        assert again is first
    assert held(CPU) == 400


def _through_data(host: torch.Tensor) -> None:
    host.data[3] = 7


def _through_numpy(host: torch.Tensor) -> None:
    host.detach().numpy()[3] = 7


def _to_nan(host: torch.Tensor) -> None:
    host.detach().fill_(float("nan"))


def _to_minus_zero(host: torch.Tensor) -> None:
    host.detach().zero_()
    host.detach().neg_()


def _last_bit(host: torch.Tensor) -> None:
    host.detach().view(torch.int32)[-1] ^= 1


def _elsewhere(host: torch.Tensor) -> None:
    host.data = torch.rand(8)


def _in_place(host: torch.Tensor) -> None:
    with torch.no_grad():
        host.add_(1)


WRITES = [_through_data, _through_numpy, _to_nan, _to_minus_zero, _last_bit, _elsewhere, _in_place]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__.strip("_"))
@pytest.mark.parametrize("zero", [False, True])
def test_every_write_is_seen(write, zero):
    host = torch.nn.Parameter(torch.zeros(8) if zero else torch.rand(8))
    function = Function()
    [before] = function(host)
    content = bytes_of(before)
    write(host)
    [after] = function(host)
    assert after is not before
    assert bytes_of(before) == content, "an earlier call may still be reading it"
    assert function(host)[0] is after


def test_values_that_are_not_numbers_are_no_change():
    function, host = Function(), torch.full((8,), float("nan"))
    assert function(host)[0] is function(host)[0]


def test_write_while_it_is_copied_is_seen_later(monkeypatch):
    """What is compared is what was copied, not what the source was some time before."""
    function, host = Function(), torch.rand(8)
    move = mirrors.ctypes.memmove

    def moved(*arguments: Any) -> None:
        move(*arguments)
        host.fill_(5)

    with monkeypatch.context() as patch:
        patch.setattr(mirrors.ctypes, "memmove", moved)
        function.call([host])
    function(host)


def test_functions_share_mirrors_and_views_have_their_own():
    base = torch.rand(4, 6)
    one, other = Function(), Function()
    assert one(base)[0] is other(base)[0] is one(base.detach())[0]
    assert one(base.T)[0].stride() == (1, 6)
    assert one(base[1:])[0] is not one(base)[0]
    assert one(base.view(torch.int32))[0].dtype is torch.int32


def test_another_tensor_at_the_address_of_a_dead_one_is_not_taken_for_it():
    function = Function()
    addresses = set()
    for number in range(50):
        host = torch.full((4096,), float(number))
        addresses.add(host.data_ptr())
        function(host)
        del host
    assert len(addresses) < 50, "no address was used twice"


def test_it_is_freed_with_its_module():
    module = torch.nn.Linear(16, 16)
    function = Function(2)
    function(module.weight, module.bias)
    assert held(CPU) == 4 * (256 + 16)
    with torch.no_grad():
        module.bias.add_(1)
    function(module.weight, module.bias)
    assert held(CPU) == 4 * (256 + 16)
    function.given = []
    del module
    gc.collect()
    assert held(CPU) == 0


def test_storage_that_lives_on_keeps_it():
    host = torch.rand(100)
    function = Function()
    function(host)
    view = host[:50]
    del host
    gc.collect()
    assert held(CPU) == 400
    del view
    gc.collect()
    assert held(CPU) == 0


def test_limit_holds_for_all_functions_together():
    one, other = Function(2, limit=500), Function(limit=500)
    small, large, third = torch.rand(100), torch.rand(50), torch.rand(100)
    first, second = one(small, large)
    again = one(small, large)
    assert again[0] is first and again[1] is not second
    assert other(third)[0] is not other(third)[0]
    assert held(CPU) == 400
    with torch.no_grad():
        small.add_(1)  # its new copy takes the place of the old one
    assert one(small, large)[0] is one(small, large)[0]


def test_what_changes_in_every_call_is_uploaded_at_last(monkeypatch):
    made = []
    stock = mirrors._made
    monkeypatch.setattr(mirrors, "_made", lambda *arguments: made.append(1) or stock(*arguments))
    function, host = Function(), torch.zeros(8)
    for number in range(300):
        host.fill_(number)
        function(host)
    assert len(made) < 100
    made.clear()
    seldom, host = Function(), torch.zeros(8)
    for number in range(2000):
        host.fill_(number // 10)
        seldom(host)
    assert len(made) == 200


@pytest.mark.parametrize(
    "host",
    [
        torch.rand(4, 1).expand(4, 6),
        torch.rand(8, 8)[:, ::2],
        torch.rand(3, 4).as_strided((3, 3), (1, 1)),
    ],
    ids=["expanded", "with gaps", "overlapping"],
)
def test_what_is_not_dense_is_uploaded(host):
    function = Function()
    function.call([host])
    [first] = function.given
    assert torch.equal(first, host) and held(CPU) == 0


@pytest.mark.parametrize("host", [torch.rand(4, dtype=torch.complex64).conj(), torch._neg_view(torch.rand(4))])
def test_memory_that_does_not_hold_the_values_is_uploaded(host):
    function = Function()
    function.call([host])
    [copy] = function.given
    assert torch.equal(copy.resolve_conj().resolve_neg(), host.resolve_conj().resolve_neg()) and held(CPU) == 0


def test_memory_that_was_taken_away_is_not_read():
    """As sharded training does with parameters between their uses."""
    function, host = Function(), torch.rand(1000)
    function(host)
    host.untyped_storage().resize_(0)
    with upload_noted() as asked:
        function.call([host])
    assert asked == [host.size()]
    host.untyped_storage().resize_(4000)
    host.fill_(3)
    function(host)


@contextlib.contextmanager
def upload_noted() -> Iterator[list[Any]]:
    """Nothing is read; the sizes of what should have been uploaded are noted."""
    asked: list[Any] = []

    def upload(hosts: Any, device: torch.device) -> list[torch.Tensor]:
        asked.extend(host.size() for host in hosts)
        return [torch.empty(host.size()) for host in hosts]

    with mock.patch.object(mirrors, "_uploaded", upload):
        yield asked


def test_no_memory_for_a_mirror_is_no_error(monkeypatch):
    def full(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(mirrors, "_made", full)
    function = Function()
    function(torch.rand(8))
    assert held(CPU) == 0


def test_mirrors_are_ordinary_tensors_whatever_the_mode():
    function, host = Function(), torch.nn.Parameter(torch.rand(4))
    with torch.inference_mode():
        function.call([host])
    [mirror] = function.given
    assert not mirror.is_inference() and not mirror.requires_grad and mirror.is_leaf
