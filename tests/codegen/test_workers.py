"""Twins of kernels that were compiled in other processes, as Inductor does with `compile_threads` above one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.fresh_interpreter import ROOT, succeeds

from .kernel_shapes import SHAPES, kernels_of
from .twins_of_workers import SITE

pytestmark = pytest.mark.usefixtures("cuda", "registered")


def test_twins_are_the_same_whichever_process_compiled_their_kernels(tmp_path: Path) -> None:
    sources = {}
    for shape in ("looped reduction", "atomics", "matmul template"):
        kernels_of(SHAPES[shape], tmp_path)
        sources[shape] = (tmp_path / "generated_0.py").read_text()
    file = tmp_path / "sources.json"
    file.write_text(json.dumps(sources))
    (tmp_path / "sitecustomize.py").write_text(SITE)
    printed = succeeds(
        "-m",
        "tests.codegen.twins_of_workers",
        str(file),
        PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        TORCHINDUCTOR_COMPILE_THREADS="4",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
    )
    with_workers, without = json.loads(printed)
    assert sum(len(kernels) for kernels in with_workers.values()) == 4
    for shape, kernels in with_workers.items():
        for name, kernel in kernels.items():
            alone = without[shape][name]
            assert (kernel.pop("by a worker"), alone.pop("by a worker")) == (True, False)
            assert kernel["configuration"] == kernel["the twin's"]
            assert kernel == alone
