"""Puts our wrapper and pass in place of the stock ones, through Inductor's registration for backends, and back.

Called before every compilation, so that what is registered is what the knobs of that compilation ask for.
"""

from __future__ import annotations

import os
import threading
from typing import Any

_lock = threading.Lock()
_stock: dict[str, Any] = {}  # device type -> the registration that ours stands for


def match(devices: frozenset[str]) -> list[str]:
    """Register ours for exactly `devices` ("cuda", "cpu"). Returns the devices that somebody else has taken."""
    with _lock:
        for device in set(_stock) - devices:
            _put_back(device)
        return [device for device in sorted(devices - set(_ours())) if not _take(device)]


def registered() -> list[str]:
    """The device types that our code generation serves now."""
    return sorted(_ours()) if _stock else []


def _ours() -> list[str]:
    """Devices where ours is still what Inductor will use; another package may have registered itself since."""
    from torch._inductor.codegen import common

    return [device for device in _stock if common.device_codegens[device].wrapper_codegen is _wrapper()]


def _wrapper() -> type:
    from pygraph_inductor.codegen.wrapper import Wrapper

    return Wrapper


def _take(device: str) -> bool:
    from torch._inductor.codegen import common
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    from pygraph_inductor.codegen import options
    from pygraph_inductor.codegen.graph_pass import GraphPass

    # Stock registers only what nobody has registered, in an order that its cache keys depend on: so it goes first.
    common.init_backend_registration()
    stock = common.device_codegens.get(device)
    if (
        stock is None
        or stock.wrapper_codegen is not PythonWrapperCodegen
        or common.custom_backend_passes.get(device) is not None
        or common.custom_backend_codegen_configs.get(device) is not None
    ):
        _stock.pop(device, None)
        return False
    common.register_backend_for_device(
        device,
        stock.scheduling,
        _wrapper(),
        stock.cpp_wrapper_codegen,
        stock.fx_wrapper_codegen,
        device_custom_pass=GraphPass(),
        device_custom_config=options,  # type: ignore[arg-type]  # a module until it is installed
    )
    _stock[device] = stock
    return True


def _put_back(device: str) -> None:
    from torch._inductor.codegen import common

    still_ours = device in _ours()
    stock = _stock.pop(device)
    if still_ours:
        common.register_backend_for_device(
            device, stock.scheduling, stock.wrapper_codegen, stock.cpp_wrapper_codegen, stock.fx_wrapper_codegen
        )


def _fresh_lock() -> None:
    global _lock
    _lock = threading.Lock()


# Another thread may hold the lock at the moment of a fork; in the child nobody would ever release it.
os.register_at_fork(after_in_child=_fresh_lock)
