"""Whether a variant computes what eager does, and whether its outputs stay what they were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scripts.bench.measure import Runner
from scripts.bench.registry import SEED, Draw, Setting, Workload, preserved
from scripts.bench.results import Accuracy
from scripts.bench.variants import active

ITERATIONS = 3
TOLERANCES = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 5e-2, "amp": 5e-2}
# How much further from eager than Inductor without graphs, whose rounding legitimately differs.
SLACK = 3.0
LARGEST = 1 << 26  # elements of a tensor that are compared


@dataclass
class Outcome:
    """What a user sees of a few iterations on the same inputs and state, copied when it was new."""

    seen: list[list[Tensor]]
    survives: bool | None


def outcome(runner: Runner, setting: Setting) -> Outcome:
    """Run from the same state, inputs and random seed as every other variant; the state is put back afterwards."""
    program = runner.program
    in_place = {tensor.data_ptr() for tensor in program.state()}
    torch.manual_seed(SEED)
    seen: list[list[Tensor]] = []
    first: list[Tensor] = []
    with preserved(program), active(runner.variant, runner.simulate):
        for number in range(ITERATIONS):
            inputs = program.fresh(Draw(setting, SEED + 1 + number))
            values = [value.detach() for value in program.observe(runner.iterate(inputs))]
            if number == 0 and not runner.variant.stock:
                first = values
            seen.append([thinned(value).clone() for value in values])
            del values
        kept = [(now, then) for now, then in zip(first, seen[0], strict=False) if now.data_ptr() not in in_place]
        survives = all(same(thinned(now), then) for now, then in kept) if kept else None
    return Outcome(seen, survives)


def thinned(value: Tensor) -> Tensor:
    """All of a tensor, or of a huge one an even sample: outputs of gigabytes are kept for several variants at once."""
    return value if value.numel() <= LARGEST else value.flatten()[:: -(-value.numel() // LARGEST)]


def same(a: Tensor, b: Tensor) -> bool:
    """Bitwise, with NaN equal to NaN."""
    return torch.equal(a, b) or (a.is_floating_point() and torch.equal(a.nan_to_num(), b.nan_to_num()))


def error(found: Outcome, reference: Outcome) -> float:
    """The worst relative error of a tensor over the iterations; infinite where shapes or finiteness differ."""
    return max(_error(a, b) for a, b in zip(found.seen, reference.seen, strict=True))


def _error(found: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    if [t.shape for t in found] != [t.shape for t in reference]:
        return math.inf
    floats = [t for t in reference if t.is_floating_point() and t.numel()]
    # A tensor that is only rounding noise (the gradient of a key's bias) has no error of its own to speak of.
    total = sum(float(t.float().square().sum()) for t in floats)
    noise = 0.01 * math.sqrt(total / max(sum(t.numel() for t in floats), 1))
    return max((_relative(a, b, noise) for a, b in zip(found, reference, strict=True)), default=0.0)


def _relative(found: Tensor, reference: Tensor, noise: float) -> float:
    if not reference.is_floating_point():
        return float((found != reference).double().mean()) if reference.numel() else 0.0
    if reference.numel() == 0 or same(found, reference):
        return 0.0
    a, b = found.float(), reference.float()
    finite = torch.isfinite(b)
    if not torch.equal(finite, torch.isfinite(a)):
        return math.inf
    a, b = torch.where(finite, a, 0), torch.where(finite, b, 0)
    scale = math.sqrt(float(b.square().mean())) + noise
    return math.sqrt(float((a - b).square().mean())) / scale if scale else math.inf


def accuracy(
    workload: Workload, setting: Setting, found: Outcome, eager: Outcome, plain: Outcome | None, is_plain: bool
) -> Accuracy:
    """Errors of a variant and the tolerance they are held to."""
    precision = "fp32" if setting.tiny else workload.precision
    base = workload.tolerance or TOLERANCES[precision]
    allowed = base if plain is None or is_plain else max(base, SLACK * error(plain, eager))
    return Accuracy(
        against_eager=error(found, eager),
        against_plain=None if plain is None or is_plain else error(found, plain),
        tolerance=allowed,
        survives=found.survives,
    )


def complaint(accuracy: Accuracy, ours: bool) -> str | None:
    """What is wrong with a variant's results; None if nothing."""
    if not accuracy.against_eager <= accuracy.tolerance:
        return f"error {accuracy.against_eager:.2g} against eager, allowed {accuracy.tolerance:.2g}"
    if ours and accuracy.survives is False:
        return "an output was overwritten by a later iteration"
    return None
