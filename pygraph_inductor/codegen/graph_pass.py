"""The FX pass that Inductor runs for our backend; its identity keeps our generated code and stock's apart in caches.

The rewrites themselves are in `transform`, one file each.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphModulePass, get_hash_for_files

from pygraph_inductor.codegen.gradients import lay_out
from pygraph_inductor.codegen.visible import forward_returns
from pygraph_inductor.transform import switches
from pygraph_inductor.transform.apply import put_outputs_back
from pygraph_inductor.transform.reads_of_written import keep_apart

_PACKAGE = Path(__file__).parent.parent
_FOLDERS = ("codegen", "partition", "transform")
_FILES = tuple(str(path) for folder in _FOLDERS for path in sorted((_PACKAGE / folder).glob("*.py")))


class GraphPass(CustomGraphModulePass):
    """Runs after Inductor's own rewrites, on graphs that touch our device."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        """Every rewrite, in order."""
        put_outputs_back(gm.graph)
        keep_apart(gm.graph)
        lay_out(gm.graph)

    def uuid(self) -> Any:
        """Everything besides the graph and our options that what we generate depends on."""
        rewrites = (*sorted(switches.on()), *astuple(switches.limits()), switches.layouts())
        return ("pygraph_inductor", get_hash_for_files(_FILES), forward_returns(), rewrites)
