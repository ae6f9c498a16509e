"""The FX pass that Inductor runs for our backend; its identity keeps our generated code and stock's apart in caches.

It changes nothing yet: rewrites of the graph belong here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphModulePass, get_hash_for_files

from pygraph_inductor.codegen.visible import forward_returns

_FILES = tuple(str(path) for path in sorted(Path(__file__).parent.glob("*.py")))


class GraphPass(CustomGraphModulePass):
    """Runs after Inductor's own rewrites, on graphs that touch our device."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        """Leave the graph as it is."""

    def uuid(self) -> Any:
        """Everything besides the graph and our options that what we generate depends on."""
        return ("pygraph_inductor", get_hash_for_files(_FILES), forward_returns())
