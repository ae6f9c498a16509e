"""The driver of each device: one for all functions that run there."""

from __future__ import annotations

import threading

import torch

from pygraph_inductor.driver.protocol import Driver

_drivers: dict[torch.device, Driver] = {}
_lock = threading.RLock()  # finalizers and signal handlers come here, too


def driver_for(device: torch.device) -> Driver:
    """The driver of a device, made on first use. CPU tensors have the simulated one."""
    with _lock:
        if device not in _drivers:
            if device.type == "cuda":
                from pygraph_inductor.driver.cuda import CudaDriver

                _drivers[device] = CudaDriver(device)
            else:
                from pygraph_inductor.driver.simulated import SimulatedDriver

                _drivers[device] = SimulatedDriver()
        return _drivers[device]
