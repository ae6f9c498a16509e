"""Thirty small programs that once went wrong in the field, each against eager and each replayed from a graph.

A report is a module `case_NN_what.py` with `check(field)`. It runs on the GPU; those that say `SIMULATED` also run on
the simulated driver where there is no GPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import pygraph_inductor
from tests.cases.field import Field

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("case_*.py"))
CASES = [importlib.import_module(f"tests.cases.{name}") for name in NAMES]


def grounds() -> Iterator[Any]:
    for name, case in zip(NAMES, CASES, strict=True):
        yield pytest.param(case, "cuda", id=f"{name[5:]}-cuda", marks=pytest.mark.gpu)
        if getattr(case, "SIMULATED", False):
            yield pytest.param(case, "cpu", id=f"{name[5:]}-simulated", marks=pytest.mark.simulated)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("case", "device"), list(grounds()))
def test_field_report(case: ModuleType, device: str) -> None:
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("simulated only where there is no GPU")
    torch.manual_seed(0)
    with pygraph_inductor.config.patch(simulate=device == "cpu"):
        case.check(Field(device))
    if device == "cuda":
        torch.cuda.synchronize()


def test_all_thirty_reports_are_here() -> None:
    assert len(NAMES) == 30
