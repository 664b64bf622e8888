"""Implementations for the fuzzer to find fault with, by name: `--impl tests.programs.fuzzed:NAME`.

Planting copies the package, so each is made when it is asked for.
"""

from __future__ import annotations

import os
import signal

import torch

import corpus.store
from corpus.case import Case
from oracles.adapters.kernels import TbeKernels
from oracles.adapters.torch_reference import TorchReference
from oracles.implementation import Implementation, Routing, Trace
from tests.mutants.plant import Edit, plant

EMPTY_BAGS = Edit(
    "forward/pooled.py",
    "tl.store(out_row + columns, total.to(output.dtype.element_ty), mask=inside)",
    "if first < last:\n                    tl.store(out_row + columns, total.to(output.dtype.element_ty), mask=inside)",
)
LAST_COLUMN = Edit(
    "backward/psw_gradient.py",
    "for tile in range(0, D, BLOCK_D):",
    "for tile in range(0, D - 1, BLOCK_D):",
)


class Wild(TorchReference):
    """Right, except that its first run kills its process, and its second interrupts whoever runs the fuzzer. What it
    has done lies beside the inbox."""

    name = "wild"

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        """Do the next thing."""
        done = corpus.store.INBOX.parent / "done"
        deeds = done.stat().st_size if done.exists() else 0
        done.write_text("x" * (deeds + 1))
        if deeds == 0:
            os.kill(os.getpid(), signal.SIGKILL)  # what a store far outside does, without the core dump
        if deeds == 1:
            os.kill(os.getppid(), signal.SIGINT)
        return super().run(case, routing, device)


def __getattr__(name: str) -> Implementation:
    if name == "ONE_FAULT":
        return TbeKernels(plant(EMPTY_BAGS))
    if name == "TWO_FAULTS":
        return TbeKernels(plant(EMPTY_BAGS, LAST_COLUMN))
    if name == "WILD":
        return Wild()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
