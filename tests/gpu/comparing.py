"""The plain call as reference: run a program plainly twice and from graphs once, and compare everything that shows.

A program is a `step(*args)` with fresh arguments on every call and, where it has some, state (parameters, buffers)
that is put back before each run. The plain call is the same generated code, called without a graph.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

import pygraph_inductor

Step = Callable[..., Any]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CALLS = 6  # plain, recorded, and at least three replays of a function that is called once per step
EXTRA_PLAIN_RUNS = 8  # before a mismatch counts, to see whether the plain call repeats itself
EXTRA_REPLAYS = 4

# Process-wide on purpose: backwards run in autograd's own threads.
_plain = False


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Compiled functions run their generated code without graphs inside this block."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


class Returned:
    """Addresses of what compiled graphs returned, as numbers: watching must not keep the tensors alive."""

    def __init__(self) -> None:
        self.addresses: set[int] = set()

    def add(self, outputs: Any) -> None:
        found = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        self.addresses.update(one.data_ptr() for one in found if isinstance(one, torch.Tensor))


_watching: Returned | None = None


@contextlib.contextmanager
def watching_outputs() -> Iterator[Returned]:
    """Note the address of every tensor that a compiled graph returns inside this block."""
    global _watching
    _watching = Returned()
    try:
        yield _watching
    finally:
        _watching = None


def two_ways(cudagraphify: Callable[..., Any]) -> Callable[..., Any]:
    """The seam, made switchable: its callables run the generated code itself while `plainly` is active."""
    from torch._inductor import compile_fx
    from torch._inductor.utils import align_inputs_from_check_idxs

    @functools.wraps(cudagraphify)
    def switchable(model: Callable[[list], Any], static_input_idxs: Sequence[int] = (), **facts: Any) -> Any:
        recorded = cudagraphify(model, static_input_idxs, **facts)
        aligned = None

        def call(inputs: list) -> Any:
            nonlocal aligned
            if _plain:
                if aligned is None:  # as Inductor aligns them where it uses no graphs
                    checked = compile_fx.get_input_idxs_to_check(inputs, static_input_idxs)
                    if facts["is_backward"]:  # compiled before anybody knows its inputs: they do not tell what for
                        checked = [number for number, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
                    aligned = align_inputs_from_check_idxs(model, checked, set(facts.get("mutated_input_idxs", ())))
                outputs = aligned(inputs)
            else:
                outputs = recorded(inputs)
            if _watching is not None:
                _watching.add(outputs)
            return outputs

        return call

    return switchable


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function as users compile it for CUDA graphs."""
    return torch.compile(function, mode="reduce-overhead", **options)


class Counting:
    """What happened to compiled functions since this object was made."""

    def __init__(self) -> None:
        self._earlier = pygraph_inductor.report().functions

    @property
    def functions(self) -> list[Any]:
        """Facts of the functions that were compiled since."""
        return pygraph_inductor.report().functions[len(self._earlier) :]

    @property
    def replays(self) -> int:
        """Calls that were replayed from a graph since, of all functions."""
        total = sum(function.replays for function in pygraph_inductor.report().functions)
        return total - sum(function.replays for function in self._earlier)

    @property
    def recordings(self) -> int:
        """Graphs recorded since and still there."""
        total = sum(len(function.recordings) for function in pygraph_inductor.report().functions)
        return total - sum(len(function.recordings) for function in self._earlier)

    @property
    def reasons(self) -> list[str]:
        """Why functions compiled since ran plainly."""
        return [reason for function in self.functions for reason in function.reasons]

    def __str__(self) -> str:
        lines = [
            f"  {one.name} ({one.kind}): {one.verdict}; {one.calls} calls, {one.plain_calls} plain, {one.replays} "
            f"replays, {len(one.recordings)} recordings, retired {one.retired}, reasons {one.reasons}"
            for one in self.functions
        ]
        return "\n".join(["functions compiled in this test:", *(lines or ["  none was handed to us"])])

    def expect(self, replays: int, every: bool = True) -> None:
        """At least so many replays; with `every`, no function that was called often ran plainly throughout."""
        assert self.replays >= replays, f"{self.replays} replays, expected {replays} or more; {self}"
        if every:
            idle = [one.name for one in self.functions if one.calls >= 3 and not one.replays]
            assert not idle, f"never replayed: {idle}; {self}"


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bytes."""
    pair = [t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1) for t in (one, other)]
    return torch.equal(*(t.view(torch.uint8) for t in pair))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """0 for the same bytes, the largest difference of two elements otherwise; infinite where that says nothing."""
    if same_bits(one, other):
        return 0.0
    if not (one.is_floating_point() or one.is_complex()):
        return float("inf")
    wide = torch.complex128 if one.is_complex() else torch.float64
    gap = (one.detach().to(wide) - other.detach().to(wide)).abs()
    gap = gap[~(one.detach().to(wide).isnan() & other.detach().to(wide).isnan())]
    largest = gap.max().item() if gap.numel() else 0.0
    return float("inf") if largest != largest else largest


def looks(value: Any) -> Any:
    """Everything about a result except its values and where they are."""
    if not isinstance(value, torch.Tensor):
        return value
    return (
        tuple(value.shape),
        value.stride(),
        value.storage_offset(),
        value.dtype,
        value.device,
        value.requires_grad,
        value.untyped_storage().nbytes(),
    )


def relations(results: Sequence[Any], owned: Sequence[Any]) -> list[tuple]:
    """Which results are the very object, and which share the storage, of something owned or of an earlier result."""
    known: list[tuple[str, Any]] = [(f"argument or state {n}", one) for n, one in enumerate(owned)]
    found = []
    for number, result in enumerate(results):
        if isinstance(result, torch.Tensor) and result.numel():
            tensors = [(name, one) for name, one in known if isinstance(one, torch.Tensor) and one.numel()]
            same = [name for name, one in tensors if one is result]
            storage = result.untyped_storage().data_ptr()
            shared = [name for name, one in tensors if one.untyped_storage().data_ptr() == storage]
            found.append((same, shared))
        known.append((f"result {number}", result))
    return found


@dataclass
class Run:
    """One run of a step, frozen right after it."""

    results: list[Any]
    looks: list[Any]
    relations: list[tuple]
    touched: list[bool]
    values: dict[str, torch.Tensor]

    @staticmethod
    def of(result: Any, args: Sequence[Any], versions: Sequence[int], state: Sequence[torch.Tensor]) -> Run:
        results = pytree.tree_leaves(result)
        named = [(f"result {n}", one) for n, one in enumerate(results)]
        named += [(f"argument {n} afterwards", one) for n, one in enumerate(args)]
        named += [(f"state {n} afterwards", one) for n, one in enumerate(state)]
        values = {name: one.detach().clone() for name, one in named if isinstance(one, torch.Tensor)}
        if DEVICE == "cuda":
            values["random state afterwards"] = torch.cuda.get_rng_state()
        return Run(
            results,
            [looks(one) for one in results],
            relations(results, [*args, *state]),
            _touched(args, versions),
            values,
        )


@dataclass
class Agreement:
    """What `agree` leaves to look at: facts of the functions, and the results of the calls that used graphs."""

    counting: Counting
    results: list[list[Any]] = field(default_factory=list)


def agree(
    step: Step,
    make: Callable[[int], Sequence[Any]],
    *,
    state: Sequence[torch.Tensor] = (),
    calls: int = CALLS,
    replays: int = 3,
    every: bool = True,
) -> Agreement:
    """Call `step(*make(n))` and hold it against its own plain call; results must also survive all later calls.

    Arguments and results stay alive, so that every call meets new addresses. Equal means bitwise where the plain call
    repeats itself bitwise, else within four times the largest difference seen between two plain calls, or four units in
    the last place of the largest element if that is more.

    Where three of thousands of rows meet in one, plain calls may all add them in the same order and a replay in another
    one: off by the last places only, it is asked again, and one of a few has to be equal.
    """
    agreement = Agreement(Counting())
    noise: dict[str, float] = {}
    survivors: list[tuple[int, Sequence[Any], Run]] = []
    for number in range(calls):
        args = make(number)
        before = [one.detach().clone() for one in state]

        def run(plain: bool, number: int = number, args: Sequence[Any] = args, before: Sequence[Any] = before) -> Run:
            own = copy.deepcopy(args) if plain else args
            with torch.no_grad():
                for one, content in zip(state, before, strict=True):
                    one.copy_(content)
            torch.manual_seed(1000 + number)
            leaves = pytree.tree_leaves(own)
            versions = _versions(leaves)
            with plainly() if plain else contextlib.nullcontext():
                result = step(*own)
            return Run.of(result, leaves, versions, state)

        plain = run(plain=True)
        _listen(noise, plain, run(plain=True))
        replayed = run(plain=False)
        for _ in range(EXTRA_PLAIN_RUNS):
            if not _wrong(noise, plain, replayed):
                break
            state_after = [one.detach().clone() for one in state]
            _listen(noise, plain, run(plain=True))
            with torch.no_grad():
                for one, content in zip(state, state_after, strict=True):
                    one.copy_(content)
        for _ in range(EXTRA_REPLAYS):
            if any(replayed.touched) or not _in_the_last_places(_wrong(noise, plain, replayed), plain, replayed):
                break
            replayed = run(plain=False)
        where = f"call {number}"
        wrong = [f"{name} {what}" for name, what in _wrong(noise, plain, replayed).items()]
        assert not wrong, f"{where}: {'; '.join(wrong)}; {agreement.counting}"
        assert replayed.looks == plain.looks, f"{where}: shape, strides, dtype or storage; {agreement.counting}"
        assert replayed.relations == plain.relations, f"{where}: identity or sharing; {agreement.counting}"
        assert replayed.touched == plain.touched, f"{where}: version counters; {agreement.counting}"
        survivors.append((number, args, replayed))
        agreement.results.append(replayed.results)
    _expect_survival(survivors, state)
    agreement.counting.expect(replays, every)
    return agreement


def _versions(args: Sequence[Any]) -> list[int]:
    return [one._version if isinstance(one, torch.Tensor) and not one.is_inference() else 0 for one in args]


def _touched(args: Sequence[Any], versions: Sequence[int]) -> list[bool]:
    """Whose version counter advanced. Views of one storage are left out: their copies no longer share a counter."""
    storages = [one.untyped_storage().data_ptr() if isinstance(one, torch.Tensor) else None for one in args]
    return [
        now != before
        for now, before, storage in zip(_versions(args), versions, storages, strict=True)
        if storages.count(storage) == 1
    ]


def _listen(noise: dict[str, float], one: Run, other: Run) -> None:
    """Widen what counts as the plain call's own difference."""
    for name, value in one.values.items():
        noise[name] = max(noise.get(name, 0.0), distance(value, other.values[name]))


def _in_the_last_places(wrong: dict[str, str], plain: Run, replayed: Run) -> bool:
    """Whether something is wrong, and no element by more than a sum in another order is."""
    return bool(wrong) and all(_nearly(plain.values[name], replayed.values.get(name)) for name in wrong)


def _nearly(value: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or other.shape != value.shape or other.dtype != value.dtype or not value.is_floating_point():
        return False
    one, two = value.detach().double(), other.detach().double()
    return bool(((one - two).abs() <= 16 * torch.finfo(value.dtype).eps * one.abs()).all())


def _wrong(noise: dict[str, float], plain: Run, replayed: Run) -> dict[str, str]:
    """Which values of the replay are further from the plain call's than that allows, and what is wrong with each."""
    found = {}
    for name, value in plain.values.items():
        other = replayed.values.get(name)
        if other is None or other.shape != value.shape or other.dtype != value.dtype:
            found[name] = "is another kind of tensor"
        elif (gap := distance(value, other)) > _allowed(noise[name], value):
            found[name] = f"differs by {gap:.3g}, plain calls by {noise[name]:.3g}"
    return found


def _allowed(noise: float, value: torch.Tensor) -> float:
    """How far a replay may be off where plain calls differ by `noise`: nothing where they do not.

    Sums in another order are off by the last places of their operands. Which sums that befalls is chance: a few plain
    calls may have met small ones only.
    """
    if not noise or not (value.is_floating_point() or value.is_complex()):
        return 4 * noise
    wide = value.detach().to(torch.complex128 if value.is_complex() else torch.float64).abs()
    finite = wide[torch.isfinite(wide)]
    largest = finite.max().item() if finite.numel() else 0.0
    return 4 * max(noise, torch.finfo(value.dtype).eps * largest)


def _expect_survival(survivors: Sequence[tuple[int, Sequence[Any], Run]], state: Sequence[torch.Tensor]) -> None:
    """Results still hold their values, except those that are views of memory somebody else writes."""
    for number, args, run in survivors:
        owned = [*pytree.tree_leaves(args), *state]
        borrowed = {t.untyped_storage().data_ptr() for t in owned if isinstance(t, torch.Tensor)}
        for n, result in enumerate(run.results):
            if not isinstance(result, torch.Tensor) or result.untyped_storage().data_ptr() in borrowed:
                continue
            assert same_bits(result, run.values[f"result {n}"]), f"result {n} of call {number} changed in a later call"
