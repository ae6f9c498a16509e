"""Code generation for CUDA needs a CUDA build of torch; a GPU it does not need."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch

import pygraph_inductor
from pygraph_inductor.codegen import registration
from pygraph_inductor.seams import declines

from .fake_cuda import fake_cuda


@pytest.fixture
def cuda() -> Iterator[None]:
    """Inductor believes in a GPU."""
    if torch.version.cuda is None:
        pytest.skip("torch is built without CUDA")
    pytest.importorskip("triton")
    with fake_cuda(), mock.patch.object(declines, "_graphs_can_be_rewritten", lambda: None):
        yield


@pytest.fixture
def registered() -> Iterator[None]:
    """Our code generation serves CUDA, as within a compilation."""
    registration.match(frozenset({"cuda"}))
    yield
    registration.match(frozenset())


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    """The package is installed, whatever a test did before."""
    pygraph_inductor.enable()
    yield
    registration.match(frozenset())
