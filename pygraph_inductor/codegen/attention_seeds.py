"""Which inputs are the random seed and offset of memory-efficient attention, whose backward is generated here.

That attention returns them on the host, but on the device under capture, and its backward reads them where it believes
it is being called: from the host, or under capture from the device. A backward that is called plainly after a replayed
forward must therefore be given them on the host (`recording/plain.py`). Flash and cuDNN attention have theirs on the
device always.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pygraph_inductor.codegen.generated_code import FunctionText

_OPERATORS = "efficient_attention"  # its name, scaled and not
_SEED, _OFFSET = "philox_seed", "philox_offset"  # in the schemas of aten's attention backwards, torch 2.11 to 2.15


def attention_seeds(text: FunctionText) -> tuple[tuple[int, int], ...]:
    """The positions of seed and offset among the inputs, one pair per attention."""
    pairs = []
    for callee, given in text.given:
        names = _argument_names(callee) if _OPERATORS in callee else ()
        if _SEED in names and _OFFSET in names:
            seed, offset = (given.get(names.index(name), given.get(name)) for name in (_SEED, _OFFSET))
            if seed is not None and offset is not None:
                pairs.append((seed, offset))
    return tuple(pairs)


def _argument_names(callee: str) -> Sequence[str]:
    """The argument names of `torch.ops.namespace.operator.overload`, none for anything else."""
    prefix, _, path = callee.partition("torch.ops.")
    if prefix or path.count(".") != 2:
        return ()
    found: Any = torch.ops
    for part in path.split("."):
        found = getattr(found, part, None)
    schema = getattr(found, "_schema", None)
    return [argument.name for argument in schema.arguments] if schema is not None else ()
