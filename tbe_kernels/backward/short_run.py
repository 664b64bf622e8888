"""Short runs: one program owns the row. It sums in registers, steps once and stores plainly; no atomics."""

from __future__ import annotations

import triton
import triton.language as tl

from tbe_kernels.aot.variants import Variants
from tbe_kernels.backward.operands import Lookups, Rows
from tbe_kernels.backward.plan import BackwardPlan
from tbe_kernels.backward.rows import (
    GRADIENT_AXES,
    STEP_AXES,
    feature_and_width,
    gradient_tile,
    step_constants,
    step_row,
    sum_gradients,
)
from tbe_kernels.batch import LookupBatch
from tbe_kernels.observe import took
from tbe_kernels.tables import EmbeddingTables


@triton.jit(do_not_specialize=["B", "total_D", "bucket", "threshold"])
def short_run_kernel(
    rows,
    lookups,
    run_starts,
    run_bounds,
    B,
    total_D,
    bucket,
    threshold,
    RULE: tl.constexpr,
    WEIGHT_DECAY: tl.constexpr,
    ALIGN: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Sum and step the rows of one bucket whose runs are shorter than `threshold`.

    Grid: 1-D, any number of programs; each takes runs of the bucket in turn. `run_starts` is int64 `[N + 2]`,
    `run_bounds` `[buckets + 1]`; `rows` and `lookups` as in `operands`. A run has every lookup of its row, so its
    program owns the row and its state: plain loads and stores.
    """
    first_run = tl.load(run_bounds + bucket)
    end_run = tl.load(run_bounds + bucket + 1)
    for run in range(first_run + tl.program_id(0), end_run, tl.num_programs(0)):
        first = tl.load(run_starts + run)
        last = tl.load(run_starts + run + 1)
        if last - first < threshold:
            feature, D = feature_and_width(lookups, first, B, ALIGN)
            grad = sum_gradients(lookups, first, last, D, B, total_D, ALIGN, GATHER, BLOCK_D)
            step_row(rows, feature, tl.load(lookups.keys + first), run, D, grad, RULE, WEIGHT_DECAY, ALIGN, BLOCK_D)


VARIANTS = {
    "short_run_kernel": Variants(axes=(*GRADIENT_AXES, *STEP_AXES), gathers="lookups.grad_output"),
}


def step_short_runs(
    tables: EmbeddingTables, batch: LookupBatch, plan: BackwardPlan, rows: Rows, lookups: Lookups
) -> None:
    """Sum and step every row that fewer than `long_run_threshold` lookups touch."""
    layout, config = tables.layout, tables.config
    for number, bucket in enumerate(layout.buckets):
        if not bucket.features:
            continue
        most_runs = min(lookups.keys.numel(), bucket.end_key - bucket.first_key)
        short_run_kernel[(min(most_runs, config.short_run_programs),)](
            rows,
            lookups,
            plan.run_starts,
            plan.run_bounds,
            batch.bags.batch_size,
            layout.total_D,
            number,
            config.long_run_threshold,
            **step_constants(tables),
            **gradient_tile(tables, bucket, batch),
        )
    took("backward.short_run", plan.num_short_runs)
