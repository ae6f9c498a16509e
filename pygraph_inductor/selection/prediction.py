"""What need not be measured, because the answer is certain: graphs that cannot win, by the cost model's coefficients.

A graph runs the kernels of the plain call, and copies of its staged tensors besides. If these keep the device busy
for longer than launching everything plainly can take the host, then the graph's time is above both of the plain call's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pygraph_inductor.replay.plan import Engine, Plan
from pygraph_inductor.selection.cost_model import Coefficients

# The most that one launch from generated code costs, in µs (25 to 50 were measured on an H200's host).
MOST_A_LAUNCH = 60.0


@dataclass(frozen=True)
class Prediction:
    """Bounds in µs a call: on what a graph adds to the device's work, and on what launching plainly costs the host."""

    added: float
    launching: float

    @property
    def hopeless(self) -> str | None:
        """Why the graph cannot win; None if it may."""
        if not self.launching:
            return "it launches nothing"
        if self.added > self.launching:
            return (
                f"copying staged tensors takes {self.added:.0f} µs a call, plain launches {self.launching:.0f} at most"
            )
        return None


def predict(plan: Plan, kinds: Iterable[str], coefficients: Coefficients) -> Prediction:
    """Bounds for a recorded graph; `kinds` are those of its nodes."""
    copied = 0
    for slot in plan.slots:
        if slot.engine is Engine.COPY:
            both_ways = slot.written and not slot.is_output
            copied += slot.layout.span * (2 if both_ways else 1)
    launches = sum(kind != "empty" for kind in kinds)
    return Prediction(copied / coefficients.bytes_per_us, MOST_A_LAUNCH * launches)
