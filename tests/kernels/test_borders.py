"""At the border of int32: tables of 2**31 rows, features and rows behind them, and totals right there.

The tables are memory that is mapped and hardly touched. What would be too large even for that is tried on the meta
device: the compile gate runs every wrapper there, with tables and batches beyond 2**31 (`tbe_kernels.aot.launches`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from corpus.case import Batch, Case, Optimizer, Table
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.check import Status, Sweep, check

BORDER = 2**31
LAST = BORDER - 1


def case(optimizer: str = "EXACT_SGD", **changes: Any) -> Case:
    """A table of 2**31 rows of one fp16 number between two small ones, and two features behind it."""
    ids = ((LAST, 0, LAST - 1), (LAST, -1, 2**30, LAST))
    given: dict[str, Any] = {
        "tables": (Table(3, 2), Table(BORDER, 1), Table(5, 3)),
        "feature_table_map": (0, 1, 2, 1),
        "batches": (
            Batch((((2,), (0, 2)), ids, ((4, 0), (4, 4)), ((LAST,), ())), psw="trained", grad_layout="transposed"),
        ),
        "order": (0, 0),
        "optimizer": Optimizer(optimizer, 0.5),
        "weights_dtype": "float16",
        "indices_dtype": "int32",
    }
    return Case(**{**given, **changes})


VARIABLE = Batch(
    (((2,),), ((LAST, 0), (LAST,)), (), ((LAST - 1, 5), (LAST,))),
    psw="trained",
    batch_size_per_feature_per_rank=((1,), (2,), (0,), (2,)),
)
WIDE: dict[str, Any] = {
    "tables": (Table(2**21 + 1, 1024), Table(3, 1024)),
    "feature_table_map": (0, 1),
    "batches": (Batch((((2**21, 0), (2**21, -1)), ((2, 2), (0,)))),),
}
CASES = {
    "sgd": case(),
    "none": case("NONE"),
    "int64-ids": case(indices_dtype="int64"),
    "stochastic": case(stochastic_rounding=True, rounding_seed=7),
    "variable": case(batches=(VARIABLE,)),
    "one-beyond-bad": case(batches=(Batch((((3,), ()), ((LAST,), ()), ((5,), ()), ((-2,), (0,)))),)),
    "unpooled": case(pooling_mode="NONE", **WIDE),
    "wide": case("EXACT_ROWWISE_ADAGRAD", **WIDE),
}


#: A state of one number a row is zeros, which are touched: 8 GB of them.
STATE = {
    "rowwise-adagrad": case("EXACT_ROWWISE_ADAGRAD"),
    "rowwise-adagrad-variable": case("EXACT_ROWWISE_ADAGRAD", batches=(VARIABLE,), indices_dtype="int64"),
}


@pytest.mark.parametrize(
    "name", [*CASES, *(pytest.param(name, marks=pytest.mark.needs_device("cuda")) for name in STATE)]
)
@pytest.mark.parametrize("long_runs", [False, True], ids=["short", "long"])
def test_tables_at_the_border(name: str, long_runs: bool, device: torch.device) -> None:
    routing = {"long_run_threshold": 2, "chunk_size": 2} if long_runs else {}
    verdict = check(replace({**CASES, **STATE}[name], routing=routing), IMPLEMENTATION, device, Sweep.OWN)
    assert verdict.status is Status.PASSED, verdict.findings
