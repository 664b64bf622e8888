"""What every backward route shares: summing the gradients of sorted lookups, and one optimizer step on one row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def feature_and_width(lookups, first, B, ALIGN: tl.constexpr):
    """The feature of a sorted lookup, and the D of its table. Any lookup of a run will do: they share the table."""
    feature = tl.load(lookups.bags + first) // B
    D = tl.load(lookups.D_offsets + feature + 1) - tl.load(lookups.D_offsets + feature)
    return feature, tl.multiple_of(D, ALIGN)


@triton.jit
def sum_gradients(
    lookups, first, last, D, B, total_D, ALIGN: tl.constexpr, GATHER: tl.constexpr, BLOCK_D: tl.constexpr
):
    """fp32 sum of the gradient rows of the sorted lookups [first, last): `[BLOCK_D]`, zeros beyond D."""
    lanes = tl.arange(0, GATHER)
    columns = tl.arange(0, BLOCK_D)
    inside = columns < D
    total = tl.zeros([BLOCK_D], dtype=tl.float32)
    for place in range(first, last, GATHER):
        at = place + lanes
        live = at < last
        bag = tl.load(lookups.bags + at, mask=live, other=0)
        # The features of a run share its table, not its columns.
        feature = bag // B
        sample = (bag - feature * B).to(tl.int64)
        column = tl.load(lookups.D_offsets + feature, mask=live, other=0)
        start = tl.multiple_of(sample * total_D + column, ALIGN)
        grads = tl.load(
            lookups.grad_output + start[:, None] + columns[None, :], mask=live[:, None] & inside[None, :], other=0.0
        ).to(tl.float32)  # [GATHER, BLOCK_D]
        if lookups.per_sample_weights is not None:
            grads *= tl.load(lookups.per_sample_weights + at, mask=live, other=0.0)[:, None]
        if lookups.bag_counts is not None:
            count = tl.load(lookups.bag_counts + bag, mask=live, other=1).to(tl.float32)
            grads = tl.div_rn(grads, tl.broadcast_to(count[:, None], [GATHER, BLOCK_D]))
        total += tl.sum(grads, axis=0)
    return total


@triton.jit
def step_row(
    tables,
    feature,
    key,  # of the row
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
    row = key.to(tl.int64) - tl.load(tables.key_base + feature)
    elements = tl.multiple_of(tl.load(tables.weights_offsets + feature) + row * D, ALIGN) + columns
    weight = tl.load(tables.weights + elements, mask=inside, other=0.0).to(tl.float32)
    state_row = tl.load(tables.hash_size_cumsum + feature) + row
    weight = RULE(weight, grad, state_row, elements, inside, D, tables, WEIGHT_DECAY)
    tl.store(tables.weights + elements, weight.to(tables.weights.dtype.element_ty), mask=inside)
