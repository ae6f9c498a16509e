"""What uploads bring over, and by how many copies."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pygraph_inductor.replay.uploads import _ALIGNMENT, STAGED_BYTES, STAGED_IN_ALL, by_dtype, upload
from tests.pinned import CUDA, to_nowhere

HOSTS = {
    "plain": lambda: torch.rand(3, 5),
    "transposed": lambda: torch.rand(5, 3).T,
    "every second": lambda: torch.rand(8, 8)[:, ::2],
    "part": lambda: torch.rand(9)[3:],
    "integers": lambda: torch.randint(0, 9, (7,)),
    "mask": lambda: torch.rand(4) > 0.5,
    "nothing": lambda: torch.rand(0, 3),
    "double": lambda: torch.rand(3, dtype=torch.float64),
    "conjugated": lambda: torch.rand(2, dtype=torch.complex64).conj(),
    "negated": lambda: torch.rand(2, dtype=torch.complex64).conj().imag,
    "zero tensor": lambda: torch._efficientzerotensor(4),
    "half": lambda: torch.rand(6).bfloat16(),
    "large": lambda: torch.rand(STAGED_BYTES // 4 + 1),
    "expanded": lambda: torch.rand(4, 1).expand(4, 6),
    "one row": lambda: torch.rand(7, 4)[2:3],
    "odd strides": lambda: torch.rand(40).as_strided((1, 4), (100, 1)),
    "number": lambda: torch.tensor(2.5),
    "parameter": lambda: torch.nn.Parameter(torch.rand(3, 4).T.contiguous()),
    "result": lambda: torch.nn.Parameter(torch.rand(3, 4)).exp()[:, ::2],
}


def same(results: list[torch.Tensor], hosts: list[torch.Tensor]) -> None:
    for host, result in zip(hosts, results, strict=True):
        assert result.dtype == host.dtype and result.size() == host.size()
        assert result.stride() == torch.empty_like(host).stride()
        assert torch.equal(result, host)
        assert not result.requires_grad and not result.is_conj() and not result.is_neg()


@pytest.mark.parametrize("name", HOSTS)
def test_tensor_alone(name: str) -> None:
    host = HOSTS[name]()
    with to_nowhere() as pinned:
        results = upload([], [host], CUDA)
    same(results, [host])
    assert len(pinned) == (name not in ("nothing", "large"))


@pytest.mark.parametrize("names", [list(HOSTS), [name for name in HOSTS if name != "large"], ["mask", "integers"]])
def test_tensors_and_numbers_come_in_one_aligned_copy(names: list[str]) -> None:
    hosts = [HOSTS[name]() for name in names]
    numbers = [torch.tensor(value) for value in (1.5, 2, True, -3, 0.25, 1 << 50)]
    with to_nowhere() as pinned:
        results = upload(numbers, hosts, CUDA)
    floats, integers, booleans = results[:3]
    assert floats.tolist() == [1.5, 0.25] and integers.tolist() == [2, -3, 1 << 50] and booleans.tolist() == [True]
    same(results[3:], hosts)
    [memory] = pinned
    assert memory.sent is not None
    start = memory.sent.data_ptr()
    packed = [result for result in results if start <= result.data_ptr() < start + memory.sent.nbytes]
    assert len(packed) == 3 + sum(0 < host.nbytes <= STAGED_BYTES for host in hosts)
    ranges = sorted((one.data_ptr() - start, one.data_ptr() - start + one.nbytes) for one in packed)
    assert all(first % _ALIGNMENT == 0 for first, _ in ranges)
    assert all(end <= first for (_, end), (first, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize(
    "value",
    [0.1, -0.0, float("inf"), float("nan"), 5e-324, 3.4e38, True, 255, -(1 << 63), (1 << 63) - 1, (1 << 53) + 1],
)
def test_number_alone_needs_no_staging(value: float) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8):
        try:
            number = torch.tensor(value, dtype=dtype)
        except (RuntimeError, TypeError, ValueError, OverflowError):
            continue
        with to_nowhere() as pinned:
            [result] = upload([number], [], CUDA)
        assert result.size() == (1,) and result.dtype == dtype and not pinned
        assert result.view(torch.uint8).tolist() == number.reshape(1).view(torch.uint8).tolist()


@pytest.mark.parametrize("count", [1, 2, 4, 5, 100])
@pytest.mark.parametrize("kind", ["float32", "parameter", "uint16", "complex64", "conjugated", "negated"])
def test_numbers_of_one_type(kind: str, count: int) -> None:
    numbers = []
    for n in range(count):
        if kind == "conjugated":
            numbers.append(torch.tensor(complex(n, 0.5 + n)).conj())
        elif kind == "negated":
            numbers.append(torch.tensor(complex(n, 0.5 + n)).conj().imag)
        elif kind == "parameter":
            numbers.append(torch.nn.Parameter(torch.tensor(0.5 * n)))
        else:
            numbers.append(torch.tensor(n, dtype=getattr(torch, kind)))
    assert count == 1 or numbers[-1].is_conj() or numbers[-1].is_neg() or kind not in ("conjugated", "negated")
    with to_nowhere() as pinned:
        [result] = upload(numbers, [], CUDA)
    assert result.tolist() == [number.item() for number in numbers] and not result.requires_grad
    assert len(pinned) == (count > 1 or kind in ("uint16", "complex64", "conjugated"))


def test_contents_are_those_of_the_moment() -> None:
    host, number = torch.arange(4.0), torch.tensor(2.0)
    with to_nowhere():
        results = [*upload([number], [host], CUDA), *upload([], [host], CUDA), *upload([number], [], CUDA)]
    host.fill_(-1)
    number.fill_(-1)
    assert [one.tolist() for one in results] == [[2.0], [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0], [2.0]]


def test_results_have_versions_and_no_history_of_their_own() -> None:
    hosts = [torch.rand(3), torch.nn.Parameter(torch.rand(3))]
    with to_nowhere():
        one, other = upload([], hosts, CUDA)
    assert one._base is None and other._base is None
    one.add_(1)
    assert (one._version, other._version) == (1, 0)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_fake_tensors_have_nothing_to_upload() -> None:
    with FakeTensorMode():
        fake = torch.empty(3)
    with to_nowhere(), pytest.raises(RuntimeError, match="fake"):
        upload([], [fake], CUDA)


def test_nothing_is_nothing() -> None:
    with to_nowhere() as pinned:
        assert upload([], [], CUDA) == [] and not pinned


def test_order_of_types_is_that_of_first_numbers() -> None:
    numbers = [torch.tensor(1), torch.tensor(1.0), torch.tensor(2)]
    assert list(by_dtype(numbers)) == [torch.int64, torch.float32]


def test_pinned_memory_has_a_limit() -> None:
    hosts = [torch.arange(number, number + STAGED_BYTES // 8) for number in range(STAGED_IN_ALL // STAGED_BYTES + 1)]
    hosts += [torch.arange(100), torch.rand(0)]
    numbers = [torch.tensor(1.5), torch.tensor(2)]
    with to_nowhere() as pinned:
        results = upload(numbers, hosts, CUDA)
    [memory] = pinned
    assert STAGED_IN_ALL - 2 * STAGED_BYTES < memory.tensor.nbytes <= STAGED_IN_ALL
    assert [one.tolist() for one in results[:2]] == [[1.5], [2]]
    same(results[2:], hosts)
