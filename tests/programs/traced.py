"""Runs stored cases under coverage.py's own tracer and again with our notes, and prints where the two differ.

`python -m tests.programs.traced NAME...`: first the number of `@triton.jit` functions that ran, then a line a
difference.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import coverage
import torch
from triton.runtime.interpreter import InterpretedFunction

from corpus.store import stored_cases
from oracles import interpreter
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.interpreter import arcs
from tbe_kernels.aot.reach import PACKAGE, jit_files
from tests.kernel_coverage import functions


def run(names: list[str]) -> None:
    """Stored cases, on their own routings."""
    for stored in stored_cases():
        if stored.id in names:
            IMPLEMENTATION.run(stored.case, stored.case.routing, torch.device("cpu"))


def traced(names: list[str], files: Mapping[Path, list[ast.FunctionDef]]) -> dict[str, set[tuple[int, int]]]:
    """The arcs of a run in the eyes of coverage.py, by file."""
    only = [str(file) for file in files]
    # Programs that take turns are greenlets, and each has a stack of its own.
    tracer = coverage.Coverage(data_file=None, config_file=False, branch=True, include=only, concurrency="greenlet")
    tracer.start()
    run(names)
    tracer.stop()
    found, data = {}, tracer.get_data()
    for file, nodes in files.items():
        # The interpreter compiles without decorators, so a call begins and ends at `def`.
        first = {-node.lineno: -node.decorator_list[0].lineno for node in nodes}
        pairs = data.arcs(str(file.resolve())) or []
        found[str(file)] = {(first.get(a, a), first.get(b, b)) for a, b in pairs}
    return found


if __name__ == "__main__":
    interpreter.install()
    files, names = jit_files(), sys.argv[1:]
    theirs = functions(traced(names, files), list(files))
    InterpretedFunction.rewritten_fn.clear()  # notes are put in when a kernel is rewritten
    arcs.install(PACKAGE)
    run(names)
    ours = functions(arcs.noted(PACKAGE), list(files))
    every = [(file, node.name) for file, nodes in files.items() for node in nodes]
    print(sum(bool(theirs[file][name]["executed_lines"]) for file, name in every))
    for file, name in every:
        for key in ("executed_lines", "executed_branches"):
            a, b = sorted(ours[file][name][key]), sorted(theirs[file][name][key])
            if a != b:
                print(f"{file.name} {name} {key}: noted {a}, traced {b}")
