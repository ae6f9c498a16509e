"""Whether the launcher in C is there: for tests whose subject it is, and for what others say of it by the way.

It is not where nothing compiles it, and with TESTS_WITHOUT_LAUNCHER=1, which runs every test as if that were so.
"""

from __future__ import annotations

import pytest

from pygraph_inductor.replay import native

IN_C = native.module() is not None


def needs_launcher(why: str) -> pytest.MarkDecorator:
    """For a test of which nothing is left without it."""
    return pytest.mark.skipif(not IN_C, reason=f"there is no launcher in C, and {why}")
