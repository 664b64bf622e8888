"""Which kernel path each launch took, told to whoever listens.

The suite counts paths from this, never from what a case should have done. Without a listener a report costs one
comparison: the work is counted (which may synchronise) only when somebody asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, int], None]

# A module global and not a ContextVar: autograd runs the backward of CUDA tensors in a thread of its own.
_listener: Listener | None = None


def took(path: str, work: Callable[[], int]) -> None:
    """Report that `path` was launched; `work()` says how many bags, runs or rows it really worked on."""
    if _listener is not None:
        _listener(path, work())


@contextmanager
def observing(listener: Listener) -> Iterator[None]:
    """Call `listener(path, work)` for every launch inside the block."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
