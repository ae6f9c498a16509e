"""What one call was to cost the host at most: the goals of the page about it, set before anything was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_ABOUT = (
    "Goals are of the host's time where they do not say latency. Those in microseconds were set on another host, whose"
    " eager call of one small kernel took 25. Goals for memory and start-up are on"
    " [the benchmark's page](README.md#goals)."
)


@dataclass(frozen=True)
class Limit:
    """Ours is to take no more than `most`: microseconds, or times what the variant `over` takes."""

    text: str
    most: float
    over: str | None = None
    figure: str = "host"

    def met(self, variants: Mapping[str, Any]) -> bool | None:
        """None where there is nothing to compare with."""
        if self.over is None:
            return bool(variants["ours"][self.figure] <= self.most)
        if self.over not in variants:
            return None
        return bool(variants["ours"][self.figure] <= self.most * variants[self.over][self.figure])


# By row.
GOALS: dict[str, tuple[Limit, ...]] = {
    "one small kernel": (Limit("22", 22.0), Limit("eager's", 1.0, "eager")),
    "8-layer MLP": (Limit("28", 28.0),),
    "48 moving inputs of 1 MB": (Limit("45", 45.0),),
    "32 inputs, 32 outputs": (Limit("60", 60.0),),
    "one input of 256 MB": (Limit("latency of no graphs", 1.0, "inductor", "latency"),),
    "a cache of 200 MB in place": (Limit("1.15x the floor", 1.15, "floor"),),
    "BERT-base training step, 4 x 128, bf16": (Limit("2900", 2900.0),),
    "ResNet-50 training step, batch 8, bf16": (Limit("3400", 3400.0),),
}


def about(rows: Mapping[str, Any]) -> str:
    """What goals are of, and those that nothing was measured for."""
    missing = [f"{name} ({text_of(limits)})" for name, limits in GOALS.items() if name not in rows]
    return f"{_ABOUT} Not measured: {'; '.join(missing)}." if missing else _ABOUT


def text_of(limits: Iterable[Limit]) -> str:
    return ", ".join(limit.text for limit in limits)


def cells(name: str, variants: Mapping[str, Any]) -> list[str]:
    """A row's goal, and whether it is met."""
    limits = GOALS.get(name, ())
    if not limits:
        return ["-", "-"]
    found = [limit.met(variants) for limit in limits]
    verdict = "no" if False in found else "-" if None in found else "yes"
    return [text_of(limits), verdict]
