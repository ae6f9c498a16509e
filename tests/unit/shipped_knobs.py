"""The knobs as they are shipped: those of this process have the values of its environment, and the suite is run with
several.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any
from unittest import mock

from pygraph_inductor import config, environment


def defaults() -> dict[str, Any]:
    """The default of every knob: `config` loaded anew, with nothing set."""
    spec = importlib.util.spec_from_file_location("knobs_as_shipped", config.__file__)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    unset = {name: value for name, value in os.environ.items() if not name.startswith(environment.PREFIX)}
    with mock.patch.dict(os.environ, unset, clear=True), mock.patch.dict(sys.modules, {spec.name: module}):
        spec.loader.exec_module(module)
    return dict(module.get_config_copy())
