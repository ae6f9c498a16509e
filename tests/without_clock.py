"""What tests of recordings need of a device: that graphs are used because they are there, not because they pay."""

from __future__ import annotations

import pytest


def take_clocks_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured in this process or in those it starts, so that the third call of a key is a replay."""
    from pygraph_inductor.driver.cuda import CudaDriver

    monkeypatch.setattr(CudaDriver, "stopwatch", lambda self: None)
    monkeypatch.setenv("PYGRAPH_SELECTION", "0")
