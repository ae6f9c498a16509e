"""A recording is trusted after one replay with its slots moved gave what the plain call gave.

Bit for bit where plain calls repeat bit for bit, else within four times their difference; unless another replay shows
that the last places were chance. An address that the graph was not told anew is a stand-in's: memory that is mapped,
holds valid values, the same ones before each replay, and is nobody's input.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pygraph_inductor.driver.protocol import SMALL, Driver, RandomState
from pygraph_inductor.recording.allocations import storage_key
from pygraph_inductor.recording.contents import same_bits
from pygraph_inductor.recording.digested import differing
from pygraph_inductor.recording.doubts import SOILS, Doubt
from pygraph_inductor.recording.operators import before_operators_allocate
from pygraph_inductor.recording.outputs import tensors_of
from pygraph_inductor.recording.trial import Trial, listed

_REPEATS = 3  # more plain calls, where the first and the replay differ
_MOST = 16  # of them, where plain calls vary, too: how much, a few do not tell
_PATIENCE = 5.0  # seconds of plain calls after which no more than those few are asked
_REPLAYS = 4  # more replays, where the first is off by no more than sums in another order are


class Mismatch(RuntimeError):
    """The replay did not give what the plain call gives."""


def verify(
    trial: Trial,
    replay: Callable[[int], Any],
    repeat: Callable[[], Any],
    driver: Driver,
    borrowed: Sequence[int],
    versioned: Sequence[torch.Tensor],
    room: int,
) -> None:
    """Replay once, compare with the trial. Raises `Mismatch`.

    `replay` fills the outputs with a byte before it writes them; where it seems to have left some so, it is called once
    more. `repeat` is another plain call; together with the outputs of the replay that are in doubt, it must fit into
    `room` bytes. `borrowed` are the positions of outputs that are inputs: they are compared as part of the write set.
    `versioned` are the inputs, whose version counters stay. Afterwards inputs and random state are as one plain call
    leaves them.
    """
    with _versions_kept(versioned):
        try:
            _replay_and_compare(trial, replay, repeat, driver, set(borrowed), room)
        finally:
            trial.after.put_back()
            driver.set_random_state(trial.random_after)


def _versions_kept(tensors: Sequence[torch.Tensor]) -> Any:
    """The extra calls must not look like mutations to autograd."""
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    return torch.autograd._unsafe_preserve_version_counter(counted)


def _replay_and_compare(
    trial: Trial, replay: Callable[[int], Any], repeat: Callable[[], Any], driver: Driver, borrowed: set[int], room: int
) -> None:
    _rewind(trial, driver)
    replayed = listed(replay(SOILS[0]))
    if not _same_random_state(trial.random_after, driver):
        raise Mismatch("the replay leaves another random state than the plain call")
    gone = trial.digests or {}
    doubtful = _differing(trial.returned, replayed, borrowed | gone.keys()) + differing(gone, replayed, borrowed)
    written_alike = trial.after.unchanged()
    if written_alike and not doubtful:
        return
    if trial.digests is not None:
        what = f"output {doubtful[0]}" if doubtful else "a written input"
        raise Mismatch(f"{what} of the replay differs, and to see whether plain calls differ alike there is no memory")
    held = storages_of([replayed[position] for position in doubtful])
    made = storages_of([value for position, value in enumerate(trial.returned) if position not in borrowed])
    needed = sum(held.values()) + sum(made.values())
    if needed > room:
        what = f"output {doubtful[0]}" if doubtful else "a written input"
        raise Mismatch(
            f"{what} of the replay differs, and to see whether plain calls differ alike needs {needed} bytes, "
            f"{room} are allowed"
        )
    doubts = {position: Doubt(trial.returned[position], replayed[position]) for position in doubtful}
    del replayed
    written = [Doubt(kept, now) for kept, now in ([] if written_alike else trial.after.pairs())]
    for doubt in written:
        doubt.compare()  # what other calls write into the same memory comes later
    _find_unwritten(trial, doubts, repeat, driver)
    _find_missing(trial, doubts, replay, driver)
    for doubt in doubts.values():
        doubt.compare()
    _ask_plain_calls(trial, doubts, written, repeat, driver)
    _ask_replays(trial, doubts, written, replay, driver)
    _settle(doubts, written)


def storages_of(values: Sequence[Any]) -> dict[int, int]:
    """The bytes of each storage behind the tensors among `values`."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return {storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}


def _same_random_state(expected: RandomState, driver: Driver) -> bool:
    now = driver.random_state([generator for generator, _ in expected[1:]])
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(expected, now, strict=True))


def _rewind(trial: Trial, driver: Driver) -> None:
    trial.before.put_back()
    driver.set_random_state(trial.random_before)


def _differing(expected: Sequence[Any], got: Sequence[Any], skip: set[int]) -> list[int]:
    return [
        position
        for position, tensor in tensors_of(expected)
        # One that is on the host only in a plain call is a seed, which outputs computed from it vouch for.
        if position not in skip and tensor.device == got[position].device and not same_bits(tensor, got[position])
    ]


@contextlib.contextmanager
def _soiling(driver: Driver, byte: int, small_only: bool) -> Iterator[None]:
    driver.soil_free_memory(byte, small_only)  # what generated code allocates comes by no operator
    # Until just before an operator allocates it, an intermediate may have been there, the same one in every call. What
    # operators leave unwritten is small; filling all that is free for each of hundreds would take seconds.
    with before_operators_allocate(lambda: driver.soil_free_memory(byte, small_only=True)):
        yield


def _undecided(doubts: Sequence[Doubt]) -> bool:
    """Whether something is wrong as it looks, and all of it may be chance."""
    wrong = [doubt for doubt in doubts if doubt.complaint()]
    return bool(wrong) and all(doubt.may_be_chance for doubt in wrong)


def _ask_plain_calls(
    trial: Trial, doubts: dict[int, Doubt], written: Sequence[Doubt], repeat: Callable[[], Any], driver: Driver
) -> None:
    """More plain calls, one at a time, until it is known how much they differ, or it takes too long."""
    started = time.monotonic()
    for number in range(_MOST):
        late = time.monotonic() - started > _PATIENCE
        if number >= _REPEATS and (late or not _undecided([*doubts.values(), *written])):
            break
        _rewind(trial, driver)
        _take_in(Doubt.plain_call_gave, repeat(), trial, doubts, written)


def _ask_replays(
    trial: Trial, doubts: dict[int, Doubt], written: Sequence[Doubt], replay: Callable[[int], Any], driver: Driver
) -> None:
    """More replays, as long as all that is wrong may be the order of a sum."""
    for _ in range(_REPLAYS):
        wrong = [doubt for doubt in (*doubts.values(), *written) if doubt.complaint()]
        if not wrong or not all(doubt.may_be_order for doubt in wrong):
            return
        _rewind(trial, driver)
        # Filled with the other byte, so that a sum that began with what was there is not the same in both.
        _take_in(Doubt.another_replay_gave, replay(SOILS[1]), trial, doubts, written)


def _take_in(
    what: Callable[[Doubt, torch.Tensor], None],
    result: Any,
    trial: Trial,
    doubts: dict[int, Doubt],
    written: Sequence[Doubt],
) -> None:
    """Tell each doubt what a call gave, or wrote."""
    returned = listed(result)
    for position, doubt in doubts.items():
        what(doubt, returned[position])
    for doubt, (_, now) in zip(written, trial.after.pairs() if written else (), strict=True):
        what(doubt, now)


def _settle(doubts: dict[int, Doubt], written: Sequence[Doubt]) -> None:
    """Raises `Mismatch`."""
    named = [(f"output {position} of the replay", doubt) for position, doubt in doubts.items()]
    named += [(f"written input {number} of the replay", doubt) for number, doubt in enumerate(written)]
    for name, doubt in named:
        if complaint := doubt.complaint():
            raise Mismatch(f"{name} {complaint}")


def _find_unwritten(trial: Trial, doubts: dict[int, Doubt], repeat: Callable[[], Any], driver: Driver) -> None:
    """What plain calls leave as the memory was: known before anything is measured, which it would widen.

    Left alike is only what is left so twice, with other bytes: a byte may well be right as it is. Mostly this is about
    a random state of a few bytes: then large memory is left alone, however much of it is free.
    """
    sizes = storages_of([trial.returned[position] for position in doubts]).values()
    small_only = all(nbytes <= SMALL for nbytes in sizes)
    for byte in SOILS if doubts else ():
        _rewind(trial, driver)
        with _soiling(driver, byte, small_only):
            repeated = listed(repeat())
        left = [doubt.soiled_call_gave(repeated[position], byte) for position, doubt in doubts.items()]
        del repeated
        if not any(left):
            break


def _find_missing(trial: Trial, doubts: dict[int, Doubt], replay: Callable[[int], Any], driver: Driver) -> None:
    """What replays leave as it was filled, where plain calls write."""
    first, second = SOILS
    left = [doubt.replay_left(first) for doubt in doubts.values()]
    if any(left):
        _rewind(trial, driver)
        again = listed(replay(second))
        for position, doubt in doubts.items():
            doubt.replay_left(second, again[position])
