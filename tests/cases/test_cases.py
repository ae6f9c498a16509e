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
from tests.cases.field import Field, WithoutGraphs

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("case_*.py"))
CASES = [importlib.import_module(f"tests.cases.{name}") for name in NAMES]


def grounds() -> Iterator[Any]:
    for name, case in zip(NAMES, CASES, strict=True):
        yield pytest.param(case, "cuda", id=f"{name[5:]}-cuda", marks=pytest.mark.gpu)
        if getattr(case, "SIMULATED", False):
            yield pytest.param(case, "cpu", id=f"{name[5:]}-simulated", marks=pytest.mark.simulated)


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"


def fails_without_graphs(case: ModuleType, device: str, error: Exception) -> bool:
    """Whether stock PyTorch fails in the same way with no graph anywhere: then it is not ours to mend."""
    torch._dynamo.reset()
    pygraph_inductor.disable()
    try:
        case.check(WithoutGraphs(device))
    except Exception as other:
        return first_line(other) == first_line(error)
    finally:
        pygraph_inductor.enable()
        torch._dynamo.reset()
    return False


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("case", "device"), list(grounds()))
def test_field_report(case: ModuleType, device: str) -> None:
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("simulated only where there is no GPU")
    torch.manual_seed(0)
    with pygraph_inductor.config.patch(simulate=device == "cpu"):
        try:
            case.check(Field(device))
        except Exception as error:
            if fails_without_graphs(case, device, error):
                pytest.xfail(f"torch {torch.__version__} fails alike in its default mode: {first_line(error)}")
            raise
    if device == "cuda":
        torch.cuda.synchronize()


def test_all_thirty_reports_are_here() -> None:
    assert len(NAMES) == 30
