"""What every backward route shares: summing the gradients of sorted lookups, and one optimizer step on one row."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tbe_kernels.batch import LookupBatch, feature_of
from tbe_kernels.rounding import to_storage
from tbe_kernels.spec import Bucket
from tbe_kernels.tables import EmbeddingTables


@triton.jit
def feature_and_width(lookups, first, B, ALIGN: tl.constexpr):
    """The feature of a sorted lookup, and the D of its table. Any lookup of a run will do: they share the table."""
    feature = feature_of(lookups.places, tl.load(lookups.bags + first), B)
    D = tl.load(lookups.D_offsets + feature + 1) - tl.load(lookups.D_offsets + feature)
    return feature, tl.multiple_of(D, ALIGN)


@triton.jit
def gradient_starts(lookups, at, live, D, B, total_D, ALIGN: tl.constexpr):
    """Where in `grad_output` the gradient rows of a block of sorted lookups begin."""
    if lookups.gradient_rows is not None:
        start = tl.load(lookups.gradient_rows + at, mask=live, other=0) * D
    else:
        bag = tl.load(lookups.bags + at, mask=live, other=0)
        if lookups.places.output is not None:
            start = tl.load(lookups.places.output + bag, mask=live, other=0)
            start = start // ALIGN * ALIGN  # the same; before Triton 3.9, tl.multiple_of of a loaded block is lost
        else:
            # The features of a run share its table, not its columns.
            feature = bag // B
            sample = (bag - feature * B).to(tl.int64)
            column = tl.multiple_of(tl.load(lookups.D_offsets + feature, mask=live, other=0), ALIGN)
            start = sample * total_D + column
    return start


@triton.jit
def clipped(grads, max_gradient):
    """fp32 gradients clamped to a bound, if there is one; NaN stays NaN."""
    if max_gradient is not None:
        grads = tl.where(grads > max_gradient, max_gradient, tl.where(grads < -max_gradient, -max_gradient, grads))
    return grads


@triton.jit
def sum_gradients(
    lookups, first, last, D, B, total_D, ALIGN: tl.constexpr, GATHER: tl.constexpr, BLOCK_D: tl.constexpr
):
    """fp32 sum of the gradient rows of the sorted lookups [first, last): `[BLOCK_D]`, zeros beyond D."""
    lanes = tl.arange(0, GATHER)
    columns = tl.arange(0, BLOCK_D)
    inside = columns < D
    # The same number. AMD's buffer loads are vectors only if each term of an address is known to be divisible, and on
    # an argument tl.multiple_of would be lost.
    total_D = total_D // ALIGN * ALIGN
    total = tl.zeros([BLOCK_D], dtype=tl.float32)
    for place in range(first, last, GATHER):
        at = place + lanes
        live = at < last
        start = tl.multiple_of(gradient_starts(lookups, at, live, D, B, total_D, ALIGN), ALIGN)
        grads = tl.load(
            lookups.grad_output + start[:, None] + columns[None, :], mask=live[:, None] & inside[None, :], other=0.0
        ).to(tl.float32)  # [GATHER, BLOCK_D]
        grads = clipped(grads, lookups.max_gradient)
        if lookups.per_sample_weights is not None:
            grads *= tl.load(lookups.per_sample_weights + at, mask=live, other=0.0)[:, None]
        if lookups.bag_counts is not None:
            bag = tl.load(lookups.bags + at, mask=live, other=0)
            count = tl.load(lookups.bag_counts + bag, mask=live, other=1).to(tl.float32)
            grads = tl.div_rn(grads, tl.broadcast_to(count[:, None], [GATHER, BLOCK_D]))
        total += tl.sum(grads, axis=0)
    if lookups.per_sample_weights is not None:
        total = tl.where(inside, total, 0.0)  # beyond D it is 0 times a weight, which may be an infinity
    return total


@triton.jit
def step_row(
    rows,
    feature,
    key,  # of the row
    run,  # its place among the touched rows
    D,
    grad,  # [BLOCK_D]
    RULE: tl.constexpr,
    WEIGHT_DECAY: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One optimizer step on one row. The caller owns the row: plain loads and stores."""
    columns = tl.arange(0, BLOCK_D)
    inside = columns < D
    row = key.to(tl.int64) - tl.load(rows.key_base + feature)
    elements = tl.multiple_of(tl.load(rows.weights_offsets + feature) + row * D, ALIGN) + columns
    weight = tl.load(rows.weights + elements, mask=inside, other=0.0).to(tl.float32)
    state_row = tl.load(rows.hash_size_cumsum + feature) + row
    weight = RULE(weight, grad, state_row, elements, inside, run, D, rows, WEIGHT_DECAY)
    if rows.row_gradients is None:
        tl.store(rows.weights + elements, to_storage(weight, elements, rows), mask=inside)


#: What the compiled form of a kernel depends on that sums gradients, and of one that steps.
GRADIENT_AXES = ("output", "lookups", "bags", "rows", "D", "backward_gather_width", "num_warps", "gradient_clipping")
STEP_AXES = ("weights", "optimizer", "max_norm", "stochastic_rounding")


def step_constants(tables: EmbeddingTables) -> dict[str, Any]:
    """The compile-time arguments of `step_row`."""
    return {"RULE": tables.optimizer.row.rule, "WEIGHT_DECAY": tables.optimizer.weight_decay_mode.value}


def gradient_tile(tables: EmbeddingTables, bucket: Bucket, batch: LookupBatch) -> dict[str, Any]:
    """The compile-time arguments of `sum_gradients`, and the warps of a program."""
    config = tables.config
    return {
        "ALIGN": bucket.variable_alignment if batch.bags.is_variable else bucket.alignment,
        "GATHER": config.backward_gather(bucket.block_d),
        "BLOCK_D": bucket.block_d,
        "num_warps": config.warps(bucket.block_d),
    }
