"""The kernel that writes a table of addresses, assembled for devices that are not there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pygraph_inductor.driver import table
from pygraph_inductor.driver.protocol import TABLE_WRITER

triton = pytest.importorskip("triton")
ASSEMBLERS = {"sm_75": "ptxas", "sm_80": "ptxas", "sm_90": "ptxas", "sm_100": "ptxas-blackwell"}


@pytest.mark.parametrize("architecture", ASSEMBLERS)
@pytest.mark.parametrize("size", table._SIZES)
def test_kernel_is_assembled_for_every_device(size: int, architecture: str, tmp_path: Path) -> None:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / ASSEMBLERS[architecture]
    (tmp_path / "table.ptx").write_text(table.ptx(size))
    command = [tool, "-v", f"--gpu-name={architecture}", tmp_path / "table.ptx", "-o", tmp_path / "table.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert TABLE_WRITER in done.stderr
    assert "0 bytes spill stores" in done.stderr


def test_tables_of_any_length_are_made_of_parts_that_have_a_kernel() -> None:
    for length in (1, 16, 17, 499, 500, 501, 1000, 1001):
        parts = table._parts(length)
        assert [number for part in parts for number in part] == list(range(length))
        assert all(len(part) <= table._size_for(len(part)) for part in parts)
