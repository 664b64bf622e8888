"""Checks a case on a table of more than 2**31 elements, if asked with row * D in int32, which can kill the process.

`python -m tests.programs.killed INBOX true|planted`; exit code 0 if the case passes, 1 if it fails.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch

import corpus.store
from corpus.case import Batch, Case, Table, Values
from oracles.adapters.kernels import IMPLEMENTATION, TbeKernels
from oracles.check import Status, Sweep, check
from tests.mutants.plant import Edit, plant

NARROW = Edit(
    "forward/pooled.py",
    "table + index[:, None] * D + columns[None, :]",
    "table + (index.to(tl.int32)[:, None] * D).to(tl.int64) + columns[None, :]",
)
DIM = 64
ROWS = 2**31 // DIM + 100
CASE = Case(
    tables=(Table(ROWS, DIM),),
    feature_table_map=(0,),
    batches=(Batch((((0, ROWS - 1), (2**31 // DIM, 2**31 // DIM - 1)),)),),
    order=(0, 0),
    weights_dtype="float16",
    indices_dtype="int32",
    values=Values(grad_bits=2),
)

if __name__ == "__main__":
    corpus.store.INBOX = Path(sys.argv[1])
    implementation = TbeKernels(plant(NARROW)) if sys.argv[2] == "planted" else IMPLEMENTATION
    verdict = check(CASE, implementation, torch.device("cpu"), Sweep.OWN, journal=True)
    sys.exit(verdict.status is not Status.PASSED)
