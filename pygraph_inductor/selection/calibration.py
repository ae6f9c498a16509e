"""What the cost model's coefficients are on this machine."""

from __future__ import annotations

from pygraph_inductor.driver.protocol import Driver
from pygraph_inductor.selection.cost_model import Coefficients


def coefficients(driver: Driver) -> Coefficients:
    """The coefficients for a device."""
    return Coefficients()
