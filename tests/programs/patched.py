"""`python -m tests.programs.patched`: what is left of the interpreter's patches once they are taken out, in a process
of its own. Prints how many names they had changed, how many stay changed, and whether a fault is seen by turns."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton

from oracles import interpreter
from oracles.interpreter import scope
from oracles.interpreter.controls import move

#: Triton keeps the grid of its last launch.
GRID = {"grid_dim", "grid_idx"}


def is_seen() -> bool:
    """Whether a load one behind the end of its argument raises."""
    try:
        move[(1,)](torch.zeros(8), torch.arange(32.0)[:6], 6, 1, 0, False, 8)
    except Exception:
        return True
    return False


def main() -> None:
    """Put the patches in and take them out, twice."""
    seen = is_seen()
    before = scope.remember()

    def still_changed() -> list[str]:
        return sorted({name for holder, names in before for name in scope.changed(holder, names)} - GRID)

    print(f"Triton {triton.__version__}, seen: {seen}, changed: {still_changed()}")
    for _ in range(2):
        interpreter.install()
        print(f"installed, seen: {is_seen()}, changed: {len(still_changed()) > 20}")
        interpreter.uninstall()
        print(f"taken out, seen: {is_seen()}, changed: {still_changed()}")


if __name__ == "__main__":
    main()
