"""Which way the batches of a case go on the case's own routing: the numbers that `oracles.show.show` prints and draws.

A face of the project like `oracles.replay`: it asks the contract, the kernels' adapter and the kernels' own dispatch,
so that no threshold and no width is repeated here. Nothing runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields

import numpy as np
import torch

from corpus.case import Case, Sampled, samples_of
from corpus.tensors import ids_and_lengths, torch_dtype
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.contract import EffectiveBatch, effective_batch, runs
from tbe_kernels import OptimType, PoolingMode, TableBatchedEmbeddingBags
from tbe_kernels.batch import LookupBatch, plain_bags
from tbe_kernels.config import KernelConfig
from tbe_kernels.forward.small_table import takes_small_table

#: A batch with sampled features is looked at lookup by lookup up to about this many.
MOST_LOOKUPS = 2**22


@dataclass(frozen=True)
class Look:
    """What a batch comes to, once the bounds check has read it.

    `right`: the offsets `[bags + 1]` before any was edited. `rows_by_length`: how many rows are looked up so often.
    `run_of_each`: for each lookup `[N]`, how often its row is looked up in the batch; 0 for a pruned id. `counted`: the
    backward is made from the counts of a small table, and sorts no runs.
    """

    right: np.ndarray
    effective: EffectiveBatch
    rows_by_length: Counter[int]
    run_of_each: np.ndarray
    counted: bool


def config_of(case: Case) -> KernelConfig:
    """The case's routing on top of the defaults. Raises ValueError for knobs that belong to another implementation."""
    return KernelConfig.for_target("cuda", case.routing)


def changed_knobs(case: Case) -> list[str]:
    """The knobs that differ from their default, in words."""
    mine, usual = config_of(case), KernelConfig.for_target("cuda")
    return [
        f"{f.name} {getattr(mine, f.name)} (default {getattr(usual, f.name)})"
        for f in fields(KernelConfig)
        if getattr(mine, f.name) != getattr(usual, f.name)
    ]


def way(case: Case, shortest: int, longest: int) -> str:
    """Which way runs of `shortest` to `longest` lookups go, all of them short or all of them long."""
    ends = [IMPLEMENTATION.describe_run(case, case.routing, length) for length in (shortest, longest)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def look_at(case: Case, batch: int) -> Look | None:
    """What a batch comes to; None for one that is too large to look at each lookup."""
    features = case.batches[batch].features
    if sum(samples_of(f) * f.mean_length for f in features if isinstance(f, Sampled)) > MOST_LOOKUPS:
        return None
    _, lengths = ids_and_lengths(case, batch)
    made = runs(case, batch)
    return Look(
        right=np.concatenate(([0], np.cumsum(lengths))),
        effective=effective_batch(case, batch),
        rows_by_length=Counter(made.lengths.tolist()),
        run_of_each=made.of_each,
        counted=_is_counted(case, batch),
    )


def _is_counted(case: Case, batch: int) -> bool:
    """As the kernels' dispatch decides it, on tensors that hold nothing."""
    given = case.batches[batch]
    if case.num_features > 1 or given.is_variable or given.psw != "none" or case.optimizer.name == "NONE":
        return False
    try:
        config = config_of(case)
    except ValueError:
        return False
    module = TableBatchedEmbeddingBags(
        [(t.rows, t.dim) for t in case.tables],
        feature_table_map=case.feature_table_map,
        pooling_mode=PoolingMode[case.pooling_mode],
        weights_precision=torch_dtype(case.weights_dtype),
        output_dtype=torch_dtype(case.output_dtype),
        optimizer=OptimType[case.optimizer.name],
        config=config,
        device="meta",
    )
    ids, lengths = ids_and_lengths(case, batch)
    indices, offsets = (torch.empty(n, dtype=torch.int64, device="meta") for n in (len(ids), len(lengths) + 1))
    asked = LookupBatch(indices, offsets, None, plain_bags(module.tables.layout, len(lengths)))
    return config.backward_from_counts and takes_small_table(module.tables, asked)
