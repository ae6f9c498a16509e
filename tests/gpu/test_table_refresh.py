"""The ways to refresh a table are measured, and each of them tells the kernels what it should."""

from __future__ import annotations

import shutil

import pytest

from scripts.bench import table_refresh


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_every_way_tells_the_kernels_their_addresses() -> None:
    """Else `measure` raises. 700 addresses take two nodes that write the table."""
    rows = table_refresh.measure(calls=8, lengths=(1, 3, 700))
    assert [row["length"] for row in rows] == [1, 3, 700]
    for row in rows:
        assert set(row["host"]) == set(row["latency"]) == set(table_refresh.WAYS)
        assert all(0 < row["host"][way] < row["latency"][way] for way in table_refresh.WAYS)
    # 700 updates against two: far more than anything that disturbs a measurement.
    assert rows[-1]["host"]["patch"] > 5 * rows[-1]["host"]["node"]
