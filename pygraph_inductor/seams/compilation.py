"""The knobs and the place in the user's code of one compilation, from the entry of Inductor down to every seam.

Set by the seam at `compile_fx`. Backwards are compiled later and in other threads, where an assignment to a knob may
be invisible, so what was read at the entry travels with the compilation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from pygraph_inductor import config, settings
from pygraph_inductor.settings import Settings
from pygraph_inductor.transform import switches
from pygraph_inductor.transform.gradients import Layout


@dataclass(frozen=True)
class Compilation:
    """One call of `torch.compile`'s backend, its backward included."""

    settings: Settings = field(default_factory=Settings)
    always: bool = False
    simulate: bool = False
    borrowed: bool = True
    # Rewrites of the graph that are on, by name.
    rewrites: frozenset[str] = frozenset()
    # What they may take on the device.
    limits: switches.Limits = field(default_factory=switches.Limits)
    # What the gradients of the inputs should look like, and what the outputs should of the graph at hand, a backward.
    layouts: tuple[Layout | None, ...] = ()
    wanted: tuple[Layout | None, ...] = ()
    # Graphs are wanted: by an option, by an annotation, or by `always`.
    asked: bool = False
    # "model.py:12 in forward": the first line of the user's code in the graph.
    source: str = ""
    # Why this compilation keeps stock behaviour (a wrapper that is not Python), or None.
    declined: str | None = None
    # torch._dynamo.override_cudagraphs turned graphs off for the forward (and so for both), or the backward.
    forward_off: bool = False
    backward_off: bool = False
    # When Inductor began with the graph at hand, by `time.perf_counter_ns`; 0: it did not, as where a cache answered.
    began_ns: int = 0


_current: ContextVar[Compilation | None] = ContextVar("pygraph_inductor.compilation", default=None)


def from_knobs() -> Compilation:
    """A compilation by the knobs as they are now, in this thread."""
    return Compilation(
        settings=settings.current(),
        always=config.always,
        simulate=config.simulate,
        borrowed=settings.graph_manager() == "borrowed",
        rewrites=settings.rewrites(),
        limits=switches.Limits(config.max_constant_bytes, config.max_mirror_bytes, config.max_upload_bytes),
    )


def entered() -> bool:
    """Whether a compilation is going on in this thread."""
    return _current.get() is not None


def current() -> Compilation:
    """The compilation going on; by the knobs where Inductor was entered at none of its official doors."""
    return _current.get() or from_knobs()


@contextlib.contextmanager
def going_on(compilation: Compilation) -> Iterator[None]:
    """Make `compilation` the current one."""
    token = _current.set(compilation)
    try:
        with switches.turned_on(compilation.rewrites, compilation.limits, compilation.wanted or compilation.layouts):
            yield
    finally:
        _current.reset(token)
