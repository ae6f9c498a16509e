"""`pygraph calibrate`: measure once on this machine what engines cost, for the plan to choose by."""

from __future__ import annotations

import torch

from pygraph_inductor.seams import identity


def main() -> int:
    """Measure on the current CUDA device, keep the result, and say what it is; the exit status."""
    if not torch.cuda.is_available():
        print("pygraph: no CUDA device is visible; the plan uses coefficients measured elsewhere")
        return 1
    from pygraph_inductor.driver.devices import driver_for
    from pygraph_inductor.selection import calibrating, calibration

    driver = driver_for(torch.device("cuda", torch.cuda.current_device()))
    measured = calibrating.measure(driver)
    for name, number in measured.to_dict().items():
        print(f"{name:>16}  {number:12.3f}")
    folder = identity.decisions_folder()
    if folder is None:
        print("pygraph: Inductor's caches are switched off, so this is kept nowhere")
        return 1
    print(f"kept in {calibration.write(driver, folder, measured)}")
    return 0
