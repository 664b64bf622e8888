"""Long runs: chunks of a run are summed by different programs, and their sums meet in a workspace.

`long_run_merge="atomic"`: chunks add into one fp32 workspace row a run; a second launch applies the step.
`"ordered"`: each chunk stores a row of its own and the second launch adds them in order, so results are reproducible
bit for bit. The launch boundary orders chunks before steps. (`"fused"` needs no second launch: `long_run_fused`.)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tbe_kernels.aot.variants import Variants
from tbe_kernels.backward.chunks import sum_chunk
from tbe_kernels.backward.operands import Lookups, Rows
from tbe_kernels.backward.plan import BackwardPlan
from tbe_kernels.backward.rows import (
    GRADIENT_AXES,
    STEP_AXES,
    feature_and_width,
    gradient_tile,
    step_constants,
    step_row,
)
from tbe_kernels.batch import LookupBatch
from tbe_kernels.observe import took
from tbe_kernels.tables import EmbeddingTables


@triton.jit(do_not_specialize=["B", "total_D", "bucket", "chunk_size", "max_D"])
def sum_chunks_kernel(
    workspace,  # fp32: [long runs, max_D] zeros for "atomic", [chunks, max_D] for "ordered"
    lookups,
    run_starts,
    long_runs,
    B,
    total_D,
    bucket,
    chunk_size,
    max_D,
    MERGE: tl.constexpr,
    ALIGN: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Sum the chunks of one bucket's long runs.

    Grid: 1-D, any number of programs; each takes chunks of the bucket in turn. `run_starts` is int64 `[N + 2]`;
    `lookups` and `long_runs` as in `operands` and `plan`. With MERGE "ordered" a program owns the workspace row of
    each of its chunks: plain stores. With "atomic" the chunks of a run share a row and add into it.
    """
    first_chunk = tl.load(long_runs.chunk_bounds + bucket)
    end_chunk = tl.load(long_runs.chunk_bounds + bucket + 1)
    columns = tl.arange(0, BLOCK_D)
    stride = max_D.to(tl.int64)
    for chunk in range(first_chunk + tl.program_id(0), end_chunk, tl.num_programs(0)):
        owner, _chunks, _start, D, total = sum_chunk(
            chunk, lookups, run_starts, long_runs, B, total_D, chunk_size, ALIGN, GATHER, BLOCK_D
        )
        if MERGE == "atomic":
            # Relaxed is enough: only the next launch reads the sums.
            tl.atomic_add(workspace + owner * stride + columns, total, mask=columns < D, sem="relaxed")
        else:
            tl.store(workspace + chunk * stride + columns, total, mask=columns < D)


@triton.jit(do_not_specialize=["B", "bucket", "max_D"])
def step_long_runs_kernel(
    workspace,
    rows,
    lookups,
    run_starts,
    long_runs,
    B,
    bucket,
    max_D,
    MERGE: tl.constexpr,
    RULE: tl.constexpr,
    WEIGHT_DECAY: tl.constexpr,
    ALIGN: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Step the rows of one bucket's long runs, from the sums that the launch before left in `workspace`.

    Grid: 1-D, any number of programs; each takes long runs of the bucket in turn and owns the run's row and its
    state: plain stores. `workspace` is fp32 `[long runs, max_D]` for "atomic", `[chunks, max_D]` for "ordered".
    """
    columns = tl.arange(0, BLOCK_D)
    stride = max_D.to(tl.int64)
    first_owner = tl.load(long_runs.bounds + bucket)
    end_owner = tl.load(long_runs.bounds + bucket + 1)
    for owner in range(first_owner + tl.program_id(0), end_owner, tl.num_programs(0)):
        run = tl.load(long_runs.runs + owner)
        first = tl.load(run_starts + run)
        feature, D = feature_and_width(lookups, first, B, ALIGN)
        inside = columns < D
        if MERGE == "ordered":
            first_chunk = tl.load(long_runs.chunk_ends + owner - 1, mask=owner > 0, other=0)
            end_chunk = tl.load(long_runs.chunk_ends + owner)
            grad = tl.zeros([BLOCK_D], dtype=tl.float32)
            for place in range(first_chunk, end_chunk, GATHER):
                chunks = place + tl.arange(0, GATHER)
                live = (chunks < end_chunk)[:, None] & inside[None, :]  # [GATHER, BLOCK_D]
                partial = tl.load(workspace + chunks[:, None] * stride + columns[None, :], mask=live, other=0.0)
                grad += tl.sum(partial, axis=0)
        else:
            grad = tl.load(workspace + owner * stride + columns, mask=inside, other=0.0)
        step_row(rows, feature, tl.load(lookups.keys + first), run, D, grad, RULE, WEIGHT_DECAY, ALIGN, BLOCK_D)


VARIANTS = {
    "sum_chunks_kernel": Variants(
        axes=(*GRADIENT_AXES, "long_run_merge"),
        only={"long_run_merge": ("atomic", "ordered")},
        atomics=lambda given: given["MERGE"] == "atomic",
        gathers="lookups.grad_output",
    ),
    "step_long_runs_kernel": Variants(
        axes=(*GRADIENT_AXES, *STEP_AXES, "long_run_merge"),
        only={"long_run_merge": ("atomic", "ordered")},
    ),
}


def step_long_runs(
    tables: EmbeddingTables, batch: LookupBatch, plan: BackwardPlan, rows: Rows, lookups: Lookups, merge: str
) -> None:
    """Sum and step every row that at least `long_run_threshold` lookups touch. `merge`: "atomic" or "ordered"."""
    layout, config, long = tables.layout, tables.config, plan.long
    if long is None:
        return
    device = tables.weights.device
    if merge == "ordered":
        workspace = torch.empty((long.chunk_owner.numel(), layout.max_D), dtype=torch.float32, device=device)
    else:
        workspace = torch.zeros((long.runs.numel(), layout.max_D), dtype=torch.float32, device=device)
    for number, bucket in enumerate(layout.buckets):
        if not bucket.features:
            continue
        tile = gradient_tile(tables, bucket, batch)
        sum_chunks_kernel[(min(long.chunk_owner.numel(), config.long_run_programs),)](
            workspace,
            lookups,
            plan.run_starts,
            long,
            batch.bags.batch_size,
            layout.total_D,
            number,
            config.chunk_size,
            layout.max_D,
            MERGE=merge,
            **tile,
        )
        step_long_runs_kernel[(min(long.runs.numel(), config.long_run_programs),)](
            workspace,
            rows,
            lookups,
            plan.run_starts,
            long,
            batch.bags.batch_size,
            number,
            layout.max_D,
            MERGE=merge,
            **step_constants(tables),
            **tile,
        )
    took(f"backward.long_run.{merge}", plan.num_long_runs)
