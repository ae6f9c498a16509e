"""Verification where memory is short: what the trial returned and what a replay gives do not fit side by side.

Then the outputs of the trial are let go and known by digests, which a replay has to have as well; how much plain calls
differ cannot be seen. In the end, whatever came of it, the call is answered once more, from what it had found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from pygraph_inductor.driver.protocol import Driver
from pygraph_inductor.recording.allocations import storage_key
from pygraph_inductor.recording.contents import digests
from pygraph_inductor.recording.outputs import tensors_of
from pygraph_inductor.recording.trial import Known, Trial
from pygraph_inductor.replay.plan import Layout


def let_go(trial: Trial, driver: Driver, known: Collection[int]) -> None:
    """Forget the outputs, except those on the host and those whose storages are `known`: somebody else has these."""
    gone = {
        position: tensor
        for position, tensor in tensors_of(trial.returned)
        if driver.owns(tensor) and storage_key(tensor) not in known
    }
    known_by = dict(zip(gone, _known_by(list(gone.values())), strict=True))
    left = [
        torch.empty(0, dtype=value.dtype, device=value.device) if position in gone else value
        for position, value in enumerate(trial.returned)
    ]
    trial.result, trial.returned, trial.digests = None, left, known_by  # all of it, or nothing where that failed


def differing(expected: dict[int, Known], got: Sequence[Any], skip: Collection[int]) -> list[int]:
    """The positions at which these outputs have another digest, or another layout, of which a digest knows nothing."""
    compared = [position for position in expected if position not in skip]
    found = _known_by([got[position] for position in compared])
    return [position for position, known in zip(compared, found, strict=True) if known != expected[position]]


def _known_by(tensors: Sequence[torch.Tensor]) -> list[Known]:
    return list(zip(map(Layout.of, tensors), digests(tensors), strict=True))


def answer_again(
    trial: Trial, call: Callable[[], Any], driver: Driver, inputs: Sequence[Any], give_up: Callable[[Exception], None]
) -> Any:
    """The result of another plain call, from what the trial found.

    The trial came to an end. Should this call not, `give_up` lets go what takes memory since, and it is made once more;
    then exceptions pass through.
    """
    trial.after = trial.before  # the trial had no such copies beside it, and nobody asks for them any more
    counted = tuple(value for value in inputs if isinstance(value, torch.Tensor) and not value.is_inference())
    with torch.autograd._unsafe_preserve_version_counter(counted):  # the trial has counted its mutations
        try:
            return _once_more(trial, call, driver)
        except Exception as error:
            give_up(error)
        # Not while the exception is there: it holds all that the call had allocated until then.
        driver.release_cached()
        return _once_more(trial, call, driver)


def _once_more(trial: Trial, call: Callable[[], Any], driver: Driver) -> Any:
    trial.before.put_back()
    driver.set_random_state(trial.random_before)
    return call()
