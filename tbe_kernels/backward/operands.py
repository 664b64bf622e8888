"""The pointers that backward kernels share, as named tuples: what a step updates, and what a run sums.

A kernel takes them whole (`rows.weights`, `lookups.bags`), so a route's signature shows only what is its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tbe_kernels.backward.plan import BackwardPlan
from tbe_kernels.batch import BagPlaces, LookupBatch
from tbe_kernels.spec import PoolingMode
from tbe_kernels.tables import EmbeddingTables, RowGradients


class Rows(NamedTuple):
    """The rows that an optimizer step reads and writes, and where each feature's begin."""

    weights: Tensor  # flat, fp32, fp16 or bf16
    momentum1: Tensor | None  # fp32, by linear row or by element
    momentum2: Tensor | None
    hyper: Tensor  # fp32: learning rate, then the optimizer's hyper-parameters
    iteration: Tensor  # int64 [1]: backward calls, this one included
    rounding_seed: Tensor | None  # int64 [1]: round stochastically (None: to nearest)
    bias_corrections: Tensor | None  # fp32 [2]: 1 - beta1^iteration, 1 - beta2^iteration
    max_norm: Tensor | None  # fp32 [1]: rows are scaled down to it
    weights_offsets: Tensor  # int64 [T]
    hash_size_cumsum: Tensor  # int64 [T + 1]
    key_base: Tensor  # int64 [T]
    # Where a rule that steps nothing puts its rows, or None: see `tbe_kernels.tables.RowGradients`.
    touched_rows: Tensor | None
    row_gradients: Tensor | None
    row_gradients_width: Tensor | None  # int64 [1]


class Lookups(NamedTuple):
    """The lookups of a batch, sorted by row, and the gradients that they bring."""

    grad_output: Tensor  # contiguous, in the shape of the output
    keys: Tensor  # [N], sorted
    bags: Tensor  # [N]
    gradient_rows: Tensor | None  # int64 [N]: without pooling, each lookup's own row of `grad_output`
    per_sample_weights: Tensor | None  # fp32 [N]
    bag_counts: Tensor | None  # int32 [bags]: divide by it (MEAN)
    places: BagPlaces
    D_offsets: Tensor  # int32 [T + 1]
    max_gradient: float | None  # clamp each element of `grad_output` to it


def rows_of(tables: EmbeddingTables) -> Rows:
    """What a step updates in a set of tables."""
    optimizer, on_device, left = tables.optimizer, tables.on_device, tables.row_gradients
    return Rows(
        weights=tables.weights.detach(),
        momentum1=optimizer.momentum1,
        momentum2=optimizer.momentum2,
        hyper=optimizer.hyper,
        iteration=optimizer.iter,
        rounding_seed=tables.rounding_seed if tables.rounds_stochastically else None,
        bias_corrections=optimizer.bias_corrections,
        max_norm=optimizer.max_norm,
        weights_offsets=on_device.weights_offsets,
        hash_size_cumsum=on_device.hash_size_cumsum,
        key_base=on_device.key_base,
        touched_rows=None if left is None else left.rows,
        row_gradients=None if left is None else left.gradients,
        row_gradients_width=None if left is None else on_device.widest,
    )


def lookups_in(
    tables: EmbeddingTables, batch: LookupBatch, plan: BackwardPlan, grad_output: Tensor, bag_counts: Tensor | None
) -> Lookups:
    """A batch in the order of its plan, with its gradients. `bag_counts`: what the forward counted, for MEAN."""
    psw = batch.per_sample_weights
    return Lookups(
        grad_output=grad_output,
        keys=plan.keys,
        bags=plan.bags,
        gradient_rows=plan.order if tables.pooling_mode is PoolingMode.NONE else None,
        per_sample_weights=None if psw is None else psw[plan.order],
        bag_counts=bag_counts,
        places=batch.bags.places,
        D_offsets=tables.on_device.D_offsets,
        max_gradient=tables.max_gradient,
    )


def no_row_gradients(tables: EmbeddingTables, N: int, count: Tensor | None = None) -> RowGradients:
    """Room for the rows that N lookups may touch; `count` (int64 `[1]`): how many do, none by default."""
    most, device = min(N, tables.layout.total_rows), tables.weights.device
    return RowGradients(
        rows=torch.full((most,), -1, dtype=torch.int64, device=device),
        gradients=torch.zeros((most, tables.layout.max_D), dtype=torch.float32, device=device),
        count=torch.zeros(1, dtype=torch.int64, device=device) if count is None else count,
    )
