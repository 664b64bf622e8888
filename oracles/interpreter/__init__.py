"""The one room that knows Triton's interpreter from inside (Triton 3.8 and 3.9).

`install()` makes it faithful where it differs from a GPU (`casts`, `histograms`), makes it show what it hides
(`poison`, the bounds in `memory`, `overflow`, `hints`) and quick enough to fuzz in (`pace`). `races` and `schedules`
watch, or steer, what the programs of a launch do to each other. `controls` then proves that each guard sees its fault.
`install()` has to be called in an interpreting process (`TRITON_INTERPRET=1` before the first `import triton`);
`uninstall()` takes all of it out again (`scope`). For coverage, `arcs` notes which lines of kernels run.
"""

from __future__ import annotations

import functools
import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class PaceWarning(UserWarning):
    """Nothing is wrong, but it takes longer."""


def interpreting() -> bool:
    """Whether this process runs kernels in the interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def quick() -> bool:
    """Whether this process has what is speed alone (`pace`): not with TBE_PACE=0 in the environment, and not on a
    Triton that it was not written for, of which it warns once."""
    if os.environ.get("TBE_PACE") == "0":
        return False
    from oracles.interpreter.pace import written_for

    others = written_for.other_files()
    if others:
        warnings.warn(
            f"the interpreter runs at its own pace, some six times slower: {', '.join(others)} of this Triton is not "
            "what oracles/interpreter/pace was written for",
            PaceWarning,
            stacklevel=2,
        )
    return not others


@functools.cache
def install() -> None:
    """Put the hooks in, once for the process, unless `uninstall` takes them out. Raises RuntimeError in a process that
    compiles, or if a guard is dead; nothing is patched then."""
    if not interpreting():
        raise RuntimeError("the interpreter's hooks need TRITON_INTERPRET=1, set before triton is imported")
    from oracles.interpreter import scope

    held = scope.remember()
    try:
        _patch()
    except BaseException:
        scope.put_back(held)
        raise
    _held.append(held)


def uninstall() -> None:
    """Triton's interpreter as it was before `install`, which may be called again. Nothing happens without it."""
    from oracles.interpreter import launch, scope

    while _held:
        scope.put_back(_held.pop())
    launch.at_end.clear()
    install.cache_clear()


#: What Triton's namespaces held before they were patched; empty where they are not.
_held: list[Any] = []


def _patch() -> None:
    from oracles.interpreter import controls, hints, launch, memory, overflow
    from oracles.interpreter.faithful import casts, histograms, poison

    if quick():
        from oracles.interpreter.pace import language

        language.install()  # first, for what it shortens lies below the hooks of the others
    casts.install()
    histograms.install()
    launch.install()
    hints.install()
    overflow.install()
    memory.install()
    poison.install()  # decides what masked lanes hold before the access goes on to `memory`
    controls.verify()


def remembering() -> AbstractContextManager[None]:
    """Launches of the block that come again bit for bit are not run again, in a quick interpreter."""
    if not (interpreting() and quick()):
        return nullcontext()
    from oracles.interpreter.pace import memo

    return memo.remembering()
