"""Two hundred random programs, recorded and replayed, against the plain call bit for bit; a handful are compiled.

Aliasing and overlapping inputs, views, mutation, kept and dropped outputs, moved and shifted addresses.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st

import pygraph_inductor
from pygraph_inductor.driver.capturing import Faults
from pygraph_inductor.driver.protocol import NodeKind
from pygraph_inductor.settings import Settings
from tests.simulated import two_ways
from tests.simulated.hand_written import HandWritten, contents, same_bits
from tests.simulated.programs import STORAGE, Call, Program, body_of, calls, programs, traceable

COMPILED = int(os.environ.get("RANDOM_COMPILED", "10"))
PROGRAMS = int(os.environ.get("RANDOM_PROGRAMS", "200"))
SEED = int(os.environ.get("RANDOM_SEED", "20240607"))
SETTINGS: dict[str, Any] = dict(
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
)


class Memory:
    """The storages behind a program's inputs, as they are in one call."""

    def __init__(self, bases: list[torch.Tensor]) -> None:
        self.bases = bases

    @staticmethod
    def random(program: Program, generator: torch.Generator) -> Memory:
        return Memory([_random(dtype, generator) for dtype in program.storages])

    def moved(self, call: Call, program: Program, generator: torch.Generator) -> Memory:
        return Memory(
            [
                _random(program.storages[number], generator, call.moves[number]) if number in call.moves else base
                for number, base in enumerate(self.bases)
            ]
        )

    def copy(self) -> Memory:
        # As misaligned as the original.
        return Memory([torch.empty_like(base._base).copy_(base._base)[base.storage_offset() :] for base in self.bases])

    def inputs(self, program: Program, call: Call) -> list[torch.Tensor]:
        result = []
        for position, window in enumerate(program.windows):
            base = self.bases[window.storage]
            offset = base.storage_offset() + window.offset + call.shifted.get(position, 0)
            if window.tracked:
                result.append(base.as_strided(window.shape.size, window.shape.stride, offset))
            else:
                tensor = torch.empty(0, dtype=base.dtype)
                result.append(tensor.set_(base.untyped_storage(), offset, window.shape.size, window.shape.stride))
        return result


def _random(dtype: torch.dtype, generator: torch.Generator, start: int = 0) -> torch.Tensor:
    """A storage's elements, `start` elements behind an aligned address."""
    values = torch.randint(-40, 40, (start + STORAGE,), generator=generator)
    return (values.gt(0) if dtype is torch.bool else values.to(dtype))[start:]


def relations(values: list[Any], inputs: list[torch.Tensor]) -> list[Any]:
    """Who is who, and who shares whose storage where."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    everything = tensors + inputs
    result: list[Any] = [(t.storage_offset(), t.untyped_storage().nbytes()) for t in tensors]
    for number, tensor in enumerate(tensors):
        for other in everything[number + 1 :]:
            result.append(tensor is other)
            result.append(tensor.untyped_storage()._cdata == other.untyped_storage()._cdata)
    return result


def versions(tensors: list[torch.Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]


def compare(program: Program, function: HandWritten, memory: Memory, call: Call) -> list[Any]:
    """One call, recorded or replayed, against the plain call on a copy of the memory. Returns the outputs."""
    copy = memory.copy()
    inputs, copied_inputs = memory.inputs(program, call), copy.inputs(program, call)
    before, copied_before = versions(inputs), versions(copied_inputs)
    torch.manual_seed(call.seed)
    want = list(function.run(list(copied_inputs)))
    random_after = torch.get_rng_state()
    torch.manual_seed(call.seed)
    got = list(function(*inputs))
    assert torch.equal(torch.get_rng_state(), random_after)
    assert len(got) == len(want)
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        assert same_bits(a, b), f"output {position}: {a} instead of {b}"
    for number, (base, copied) in enumerate(zip(memory.bases, copy.bases, strict=True)):
        assert same_bits(base, copied), f"storage {number}: {base} instead of {copied}"
    assert relations(got, inputs) == relations(want, copied_inputs)
    bumps = [now - then for now, then in zip(versions(inputs), before, strict=True)]
    assert bumps == [now - then for now, then in zip(versions(copied_inputs), copied_before, strict=True)]
    return got


def is_new(value: Any, memory: Memory) -> bool:
    """Whether a returned value is a tensor in memory that is not the caller's."""
    if not isinstance(value, torch.Tensor):
        return False
    return all(value.untyped_storage()._cdata != base.untyped_storage()._cdata for base in memory.bases)


FAULTS = {
    "": Faults(),
    "unknown nodes": Faults(unknown=lambda name: name in ("cpp_fused_0", "aten.sort.default")),
    "refused copies": Faults(refuses=lambda node: node.kind is NodeKind.MEMCPY),
}
# How a program is run: whether through the launcher in C, with which engine, and what goes wrong. Some are forwards of
# which the backward alone sees a part.
WAYS = [(True, "auto", "")] * 3 + [(False, "auto", "")] * 3 + [(True, "copy", "")]
WAYS += [(True, "auto", "unknown nodes"), (False, "auto", "refused copies")]


def try_program(
    program: Program, sequence: list[Call], way: Any, visible: frozenset[int] | None, seen: collections.Counter[str]
) -> None:
    """One program, called several times; kept outputs must outlive every later call."""
    native, engine, fault = way
    settings = Settings(max_recordings=4, engine=engine)
    forward = {} if visible is None else {"kind": "forward", "visible_outputs": visible}
    function = HandWritten(
        body_of(program), native=native, mutated_inputs=program.declared, settings=settings, **forward
    )
    function.driver.faults = FAULTS[fault]
    generator = torch.Generator().manual_seed(len(program.statements))
    memory = Memory.random(program, generator)
    alive, kept = [memory], []
    for call in sequence:
        memory = memory.moved(call, program, generator)
        alive.append(memory)
        got = compare(program, function, memory, call)
        if call.keep:
            kept += [(value, contents(value)) for value in got if is_new(value, memory)]
        del got
    for now, then in kept:
        assert torch.equal(contents(now), then), "an output was overwritten by a later call"
    seen["programs"] += 1
    seen["replayed"] += function.log.replays > 0
    seen["calls"] += function.log.calls
    seen["replays"] += function.log.replays
    seen["staged"] += sum(recording.player.staged for recording in function.recordings)
    seen["kept"] += sum(recording.log.bytes_kept > 0 for recording in function.recordings)
    seen.update(function.log.reasons)


def test_random_programs_agree_with_the_plain_call():
    seen: collections.Counter[str] = collections.Counter()

    @hypothesis.seed(SEED)
    @hypothesis.settings(max_examples=PROGRAMS, **SETTINGS)
    @hypothesis.given(st.data())
    def run(data: Any) -> None:
        program = data.draw(programs())
        visible = data.draw(st.none() | st.frozensets(st.integers(0, 4)))
        try_program(program, data.draw(calls(program)), data.draw(st.sampled_from(WAYS)), visible, seen)

    run()
    print(dict(seen))
    assert seen["programs"] >= PROGRAMS
    # Plain calls would agree, too: that does not count.
    assert seen["replayed"] > 0.8 * seen["programs"] and seen["replays"] > 0.4 * seen["calls"]
    assert seen["staged"] and seen["kept"]


def steps(program: Program, sequence: list[Call]) -> Any:
    """The program as `two_ways` takes it: what every call of the compiled function shows, memory included."""

    def prepare() -> Any:
        function = two_ways.compiled(traceable(program), dynamic=False)
        generator = torch.Generator().manual_seed(len(program.statements))
        memory = [Memory.random(program, generator)]

        def step(number: int) -> list[Any]:
            memory.append(memory[-1].moved(sequence[number], program, generator))
            inputs = memory[-1].inputs(program, sequence[number])
            torch.manual_seed(sequence[number].seed)
            with torch.no_grad():
                outputs = function(*inputs)
            new = [value for value in outputs if is_new(value, memory[-1])]
            return [*new, *relations(list(outputs), inputs), [base.clone() for base in memory[-1].bases]]

        return step

    return prepare


def test_random_programs_through_the_compiler():
    replays = [0]

    @hypothesis.seed(SEED)
    @hypothesis.settings(max_examples=COMPILED, **(SETTINGS | {"phases": [hypothesis.Phase.generate]}))
    @hypothesis.given(st.data())
    def run(data: Any) -> None:
        program = data.draw(programs())
        # The compiler refuses a mixture, views of one tensor next to tensors of its storage, where one is written.
        windows = tuple(dataclasses.replace(window, tracked=True) for window in program.windows)
        program = dataclasses.replace(program, windows=windows)
        sequence = data.draw(calls(program))
        earlier = len(pygraph_inductor.report().functions)
        two_ways.check(steps(program, sequence), calls=len(sequence), functions=None)
        replays[0] += sum(one.replays for one in pygraph_inductor.report().functions[earlier:])

    run()
    assert replays[0] > COMPILED
