"""The pointers that backward kernels share, as named tuples: what a step updates, and what a run sums.

A kernel takes them whole (`rows.weights`, `lookups.bags`), so a route's signature shows only what is its own.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tbe_kernels.backward.plan import BackwardPlan
from tbe_kernels.batch import BagPlaces, Batch
from tbe_kernels.spec import PoolingMode
from tbe_kernels.tables import EmbeddingTables


class Rows(NamedTuple):
    """The rows that an optimizer step reads and writes, and where each feature's begin."""

    weights: Tensor  # flat, fp32, fp16 or bf16
    momentum1: Tensor | None  # fp32, by linear row or by element
    momentum2: Tensor | None
    hyper: Tensor  # fp32: learning rate, then the optimizer's hyper-parameters
    iteration: Tensor  # int64 [1]: backward calls, this one included
    rounding_seed: Tensor | None  # int64 [1]: round stochastically (None: to nearest)
    weights_offsets: Tensor  # int64 [T]
    hash_size_cumsum: Tensor  # int64 [T + 1]
    key_base: Tensor  # int64 [T]


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


def rows_of(tables: EmbeddingTables) -> Rows:
    """What a step updates in a set of tables."""
    optimizer, on_device = tables.optimizer, tables.on_device
    return Rows(
        weights=tables.weights.detach(),
        momentum1=optimizer.momentum1,
        momentum2=optimizer.momentum2,
        hyper=optimizer.hyper,
        iteration=optimizer.iter,
        rounding_seed=tables.rounding_seed if tables.rounds_stochastically else None,
        weights_offsets=on_device.weights_offsets,
        hash_size_cumsum=on_device.hash_size_cumsum,
        key_base=on_device.key_base,
    )


def lookups_in(
    tables: EmbeddingTables, batch: Batch, plan: BackwardPlan, grad_output: Tensor, bag_counts: Tensor | None
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
    )
