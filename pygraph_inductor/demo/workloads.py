"""What the demo runs: inference and training steps, each call on new tensors, each answer checked against eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pygraph_inductor.demo.model import Shape, Transformer

TOLERANCE = 5e-5  # of a tensor's largest value: fused float32 arithmetic rounds differently, a stale tensor is far off
LEARNING_RATE = 0.05


@dataclass(frozen=True)
class Workload:
    """One way to use the model."""

    name: str
    training: bool
    dropout: float = 0.0

    def model(self, shape: Shape, device: torch.device) -> Transformer:
        """The model in the mode that this workload needs; the same weights every time."""
        torch.manual_seed(0)
        return Transformer(shape, self.dropout).train(self.training).to(device)


WORKLOADS = (
    Workload("inference", training=False),
    Workload("training", training=True),
    Workload("training, dropout", training=True, dropout=0.1),
)


@dataclass
class Difference:
    """The largest error seen, and the first place that was too far from eager or changed afterwards."""

    largest: float = 0.0
    failures: list[str] = field(default_factory=list)

    def compare(self, what: str, ours: Tensor, reference: Tensor) -> None:
        """Note how far `ours` is from `reference`, as a share of the largest value."""
        if ours.shape != reference.shape or ours.dtype != reference.dtype:
            self.failures.append(f"{what}: {ours.shape} {ours.dtype}, eager {reference.shape} {reference.dtype}")
            return
        scale = max(reference.abs().max().item(), 1e-12)
        error = (ours - reference).abs().max().item() / scale
        self.largest = max(self.largest, error) if error == error else float("nan")
        if not error <= TOLERANCE:  # a NaN is too far as well
            self.failures.append(f"{what}: off by {error:.1e}")

    def compare_later(self, what: str, now: Tensor, then: Tensor) -> None:
        """Note a tensor that a later call changed."""
        if not torch.equal(now, then):
            self.failures.append(f"{what}: overwritten by a later call")

    @property
    def verdict(self) -> str:
        """Equal within the tolerance, or the first failure."""
        if not self.failures:
            return f"equal to eager within {self.largest:.0e}"
        more = len(self.failures) - 1
        return f"DIFFERS: {self.failures[0]}" + (f" and {more} more" if more else "")


def new_tokens(shape: Shape, device: torch.device) -> Tensor:
    """A new batch, in memory of its own while older batches are kept."""
    return torch.randint(0, shape.vocabulary, (shape.batch, shape.tokens), device=device)


def step(workload: Workload, call: Callable[[Tensor], Tensor], model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """One call as a user writes it; every output, and every gradient in training, by name."""
    if not workload.training:
        with torch.no_grad():
            return {"scores": call(tokens)}
    model.zero_grad(set_to_none=True)
    scores = call(tokens)
    loss = F.cross_entropy(scores.flatten(0, 1), tokens.roll(-1, 1).flatten())
    loss.backward()
    gradients = {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"scores": scores.detach(), "loss": loss.detach(), **gradients}


def check(
    workload: Workload,
    call: Callable[[Tensor], Tensor],
    model: nn.Module,
    shape: Shape,
    device: torch.device,
    calls: int,
) -> Difference:
    """Run `call` several times on new tensors, weights changing in between, and compare everything with eager.

    All batches, outputs and gradients are kept to the end: addresses never repeat, and a tensor that a later call
    overwrites is seen.
    """
    difference = Difference()
    kept: list[tuple[str, Tensor, Tensor]] = []
    batches: list[Tensor] = []
    for number in range(calls):
        tokens = new_tokens(shape, device)
        batches.append(tokens)
        torch.manual_seed(number + 1)  # the dropout masks of both runs
        ours = step(workload, call, model, tokens)
        torch.manual_seed(number + 1)
        reference = step(workload, model, model, tokens)
        if ours.keys() != reference.keys():
            difference.failures.append(f"call {number + 1}: {sorted(ours.keys() ^ reference.keys())} missing")
        for name in ours.keys() & reference.keys():
            difference.compare(f"call {number + 1}, {name}", ours[name], reference[name])
            kept.append((f"call {number + 1}, {name}", ours[name], ours[name].clone()))
        move_weights(model)
    for what, now, then in kept:
        difference.compare_later(what, now, then)
    return difference


def move_weights(model: nn.Module) -> None:
    """A plain SGD step, so that a replay that still computes with old weights is caught."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=LEARNING_RATE)
