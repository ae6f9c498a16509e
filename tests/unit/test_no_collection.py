"""The collector's one switch is shared by captures of several threads, in whatever order they end."""

from __future__ import annotations

import gc

from pygraph_inductor.driver.protocol import no_collection


def test_the_collector_stays_off_until_the_last_capture_ends() -> None:
    one, other = no_collection(), no_collection()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert not gc.isenabled()
    other.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with no_collection(), no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
