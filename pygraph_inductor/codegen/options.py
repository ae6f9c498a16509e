"""What changes generated code. Registered with Inductor as our backend's configuration, so it is in its cache keys."""

import sys
import typing

from torch.utils._config_module import install_config_module

# Counts changes of what we generate that the hash of our files would not show (none so far).
generation: int = 1

# Inside a partition, memory of an input is never reused as an intermediate's buffer. An intermediate would otherwise
# take over an address that moves, and a saved activation could come back as a gradient.
keep_inputs: bool = True

if typing.TYPE_CHECKING:
    from torch.utils._config_typing import *  # noqa: F403

install_config_module(sys.modules[__name__])
