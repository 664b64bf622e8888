"""Long runs in one launch: chunks add into a workspace row, and whichever comes last applies the step.

The chunks of a run are summed by different programs that never wait for each other. Why the last one sees every sum, by
the memory model of the GPU:

* each program adds with relaxed atomics, one lane a column. `tl.debug_barrier()` behind them makes the adds of ALL its
  lanes happen before what any of its lanes does next; without it only the counting lane's own adds are ordered;
* the count is an `acq_rel` atomic at device scope. It releases those adds, and each count acquires what the counts
  before it have released, so the one that completes the run has all of its sums behind it;
* one lane counts. The second barrier passes what it acquired on to the lanes that read the workspace.

The last program leaves the workspace row and the counter at zero for the next launch, behind a third barrier, since the
same element may be read by one lane and cleared by another.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

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
def fused_long_runs_kernel(
    workspace,  # fp32 [long runs, max_D], zeros before and after
    counters,  # int32 [long runs], zeros before and after
    rows,
    lookups,
    run_starts,
    long_runs,
    B,
    total_D,
    bucket,
    chunk_size,
    max_D,
    RULE: tl.constexpr,
    WEIGHT_DECAY: tl.constexpr,
    ALIGN: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Sum the chunks of one bucket's long runs, and step each row with the last of its chunks.

    Grid: 1-D, any number of programs; each takes chunks of the bucket in turn. The chunks of a run share its row of
    `workspace` and its counter: atomics. Whichever program counts last owns both from then on, and the row of the
    table with its state: plain stores.
    """
    first_chunk = tl.load(long_runs.chunk_bounds + bucket)
    end_chunk = tl.load(long_runs.chunk_bounds + bucket + 1)
    columns = tl.arange(0, BLOCK_D)
    for chunk in range(first_chunk + tl.program_id(0), end_chunk, tl.num_programs(0)):
        owner, chunks, start, D, total = sum_chunk(
            chunk, lookups, run_starts, long_runs, B, total_D, chunk_size, ALIGN, GATHER, BLOCK_D
        )
        inside = columns < D
        sums = workspace + owner * max_D.to(tl.int64) + columns
        tl.atomic_add(sums, total, mask=inside, sem="relaxed")
        tl.debug_barrier()
        before = tl.atomic_add(counters + owner, 1, sem="acq_rel")
        if before == chunks - 1:
            tl.debug_barrier()
            grad = tl.load(sums, mask=inside, other=0.0)
            feature, _D = feature_and_width(lookups, start, B, ALIGN)
            run, key = tl.load(long_runs.runs + owner), tl.load(lookups.keys + start)
            step_row(rows, feature, key, run, D, grad, RULE, WEIGHT_DECAY, ALIGN, BLOCK_D)
            tl.debug_barrier()
            tl.store(sums, tl.zeros([BLOCK_D], dtype=tl.float32), mask=inside)
            tl.store(counters + owner, 0)


VARIANTS = {
    "fused_long_runs_kernel": Variants(
        axes=(*GRADIENT_AXES, *STEP_AXES, "long_run_merge"),
        only={"long_run_merge": ("fused",)},
        atomics=lambda _: True,
        countdown=True,
        gathers="lookups.grad_output",
    )
}


def step_long_runs_fused(
    tables: EmbeddingTables, batch: LookupBatch, plan: BackwardPlan, rows: Rows, lookups: Lookups
) -> None:
    """Sum and step every row that at least `long_run_threshold` lookups touch, in one launch a bucket."""
    layout, long = tables.layout, plan.long
    if long is None:
        return
    workspace, counters = _clean_workspace(tables, long.runs.numel())
    for number, bucket in enumerate(layout.buckets):
        if not bucket.features:
            continue
        fused_long_runs_kernel[(min(long.chunk_owner.numel(), tables.config.long_run_programs),)](
            workspace,
            counters,
            rows,
            lookups,
            plan.run_starts,
            long,
            batch.bags.batch_size,
            layout.total_D,
            number,
            tables.config.chunk_size,
            layout.max_D,
            **step_constants(tables),
            **gradient_tile(tables, bucket, batch),
        )
    took("backward.long_run.fused", plan.num_long_runs)


def _clean_workspace(tables: EmbeddingTables, runs: int) -> tuple[Tensor, Tensor]:
    """Zeros for so many runs: what the last launch on this stream left clean, or new ones if that is too small.

    A stream has its own, since its launches follow each other; so has every graph that is captured.
    """
    device, max_D = tables.weights.device, tables.layout.max_D
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    kept = None if capturing else tables.fused_workspaces.get(stream)
    if kept is None or kept[1].numel() < runs:
        kept = (
            torch.zeros((runs, max_D), dtype=torch.float32, device=device),
            torch.zeros(runs, dtype=torch.int32, device=device),
        )
        if not capturing:
            tables.fused_workspaces[stream] = kept
    return kept
