"""A recording is trusted after one replay with its slots moved gave what the plain call gave.

Bit for bit where plain calls repeat bit for bit, else within four times their difference. When this runs, every
address in the graph is a stand-in's: memory that is mapped, holds valid values, and is nobody's input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph_inductor.driver.protocol import Driver, RandomState
from pygraph_inductor.recording.contents import largest_difference, same_bits
from pygraph_inductor.recording.outputs import tensors_of
from pygraph_inductor.recording.trial import Trial, listed

_TOLERANCE = 4  # times the difference between plain calls
_REPEATS = 3  # more plain calls, where the first and the replay differ


class Mismatch(RuntimeError):
    """The replay did not give what the plain call gives."""


def verify(
    trial: Trial,
    replay: Callable[[], Any],
    repeat: Callable[[], Any],
    driver: Driver,
    borrowed: Sequence[int],
    versioned: Sequence[torch.Tensor],
) -> None:
    """Replay once, compare with the trial. Raises `Mismatch`.

    `repeat` is another plain call. `borrowed` are the positions of outputs that are inputs: they are compared as part
    of the write set. `versioned` are the inputs, whose version counters stay. Afterwards inputs and
    random state are as one plain call leaves them.
    """
    with _versions_kept(versioned):
        try:
            _replay_and_compare(trial, replay, repeat, driver, set(borrowed))
        finally:
            trial.after.put_back()
            driver.set_random_state(trial.random_after)


def _versions_kept(tensors: Sequence[torch.Tensor]) -> Any:
    """The extra calls must not look like mutations to autograd."""
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    return torch.autograd._unsafe_preserve_version_counter(counted)


def _replay_and_compare(
    trial: Trial, replay: Callable[[], Any], repeat: Callable[[], Any], driver: Driver, borrowed: set[int]
) -> None:
    _rewind(trial, driver)
    replayed = listed(replay())
    if not _same_random_state(trial.random_after, driver):
        raise Mismatch("the replay leaves another random state than the plain call")
    suspects = _differing(trial.returned, replayed, borrowed)
    written_alike = trial.after.unchanged()
    if suspects or not written_alike:
        _compare_with_repeats(trial, replayed, suspects, written_alike, repeat, driver)


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


def _compare_with_repeats(
    trial: Trial,
    replayed: Sequence[Any],
    suspects: Sequence[int],
    written_alike: bool,
    repeat: Callable[[], Any],
    driver: Driver,
) -> None:
    replay_distances = {} if written_alike else dict(enumerate(trial.after.distances()))
    plain: dict[int, list[torch.Tensor]] = {position: [trial.returned[position]] for position in suspects}
    spreads = dict.fromkeys(replay_distances, 0.0)
    for _ in range(_REPEATS):
        _rewind(trial, driver)
        repeated = listed(repeat())
        for position in suspects:
            plain[position].append(repeated[position])
        if not written_alike:
            for number, distance in enumerate(trial.after.distances()):
                spreads[number] = max(spreads[number], distance)
    for position in suspects:
        spread = largest_difference(plain[position])
        distance = largest_difference([plain[position][0], replayed[position]])
        if not distance <= _TOLERANCE * spread:
            raise Mismatch(f"output {position} of the replay is off by {distance:.3g}, plain calls by {spread:.3g}")
    for number, distance in replay_distances.items():
        if not distance <= _TOLERANCE * spreads[number]:
            raise Mismatch(
                f"written input {number} of the replay is off by {distance:.3g}, plain calls by {spreads[number]:.3g}"
            )
