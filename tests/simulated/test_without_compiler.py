"""Where the launcher in C cannot be had: one warning, and Python serves."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from pygraph_inductor.replay import native
from tests.simulated.hand_written import F32, HandWritten, check


def body(namespace: dict[str, Any], x: torch.Tensor) -> Any:
    out = namespace["empty_strided_cpu"]((64,), (1,), F32)
    namespace["cpp_fused_0"](out, x)
    return [out]


@pytest.fixture
def nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_modules", [])


def test_without_a_compiler_python_replays_after_one_warning(
    nothing_built: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    monkeypatch.setattr("triton.runtime.build.compile_module_from_src", fails)
    with caplog.at_level(logging.WARNING, logger="pygraph_inductor"):
        functions = [HandWritten(body), HandWritten(body)]
        for function in functions:
            check(function, lambda: (torch.randn(64),))
            assert function.recordings[0].launcher is None and function.recordings[0].python_replays > 0
    [said] = [record.getMessage() for record in caplog.records]
    assert "could not be built" in said and "Failed to find C compiler" in said and "CC" in said


def test_where_torch_lacks_what_it_calls_python_replays(
    nothing_built: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "_WRAP", ("no_such_function",))
    function = HandWritten(body)
    check(function, lambda: (torch.randn(64),))
    assert function.recordings[0].launcher is None and function.recordings[0].python_replays > 0
    assert "this torch has no C function for wrap" in caplog.text
