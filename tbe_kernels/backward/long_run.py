"""Long runs: chunks of a run are summed by different programs, and their sums meet in a workspace.

`long_run_merge="atomic"`: chunks add into one fp32 workspace row a run; a second launch applies the step.
`"ordered"`: each chunk stores a row of its own and the second launch adds them in order, so results are reproducible
bit for bit. The launch boundary orders chunks before steps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tbe_kernels.backward.batch import Lookups, Tables
from tbe_kernels.backward.plan import BackwardPlan
from tbe_kernels.backward.rows import feature_and_width, step_row, sum_gradients
from tbe_kernels.config import KernelConfig
from tbe_kernels.observe import took
from tbe_kernels.optimizers import OptimizerState
from tbe_kernels.spec import TableLayout


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
    first_chunk = tl.load(long_runs.chunk_bounds + bucket)
    end_chunk = tl.load(long_runs.chunk_bounds + bucket + 1)
    columns = tl.arange(0, BLOCK_D)
    stride = max_D.to(tl.int64)
    for chunk in range(first_chunk + tl.program_id(0), end_chunk, tl.num_programs(0)):
        owner = tl.load(long_runs.chunk_owner + chunk)
        run = tl.load(long_runs.runs + owner)
        start = tl.load(run_starts + run)
        end = tl.load(run_starts + run + 1)
        # The run's last chunk is chunk_ends[owner] - 1; its first one lies ceil(length / chunk_size) before that end.
        run_chunk = tl.load(long_runs.chunk_ends + owner) - (end - start + chunk_size - 1) // chunk_size
        first = start + (chunk - run_chunk) * chunk_size
        last = tl.minimum(first + chunk_size, end)
        _feature, D = feature_and_width(lookups, first, B, ALIGN)
        total = sum_gradients(lookups, first, last, D, B, total_D, ALIGN, GATHER, BLOCK_D)
        if MERGE == "atomic":
            # Relaxed is enough: only the next launch reads the sums.
            tl.atomic_add(workspace + owner * stride + columns, total, mask=columns < D, sem="relaxed")
        else:
            tl.store(workspace + chunk * stride + columns, total, mask=columns < D)


@triton.jit(do_not_specialize=["B", "bucket", "max_D"])
def step_long_runs_kernel(
    workspace,
    tables,
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
    columns = tl.arange(0, BLOCK_D)
    stride = max_D.to(tl.int64)
    first_owner = tl.load(long_runs.bounds + bucket)
    end_owner = tl.load(long_runs.bounds + bucket + 1)
    for owner in range(first_owner + tl.program_id(0), end_owner, tl.num_programs(0)):
        first = tl.load(run_starts + tl.load(long_runs.runs + owner))
        feature, D = feature_and_width(lookups, first, B, ALIGN)
        inside = columns < D
        if MERGE == "ordered":
            first_chunk = tl.load(long_runs.chunk_ends + owner - 1, mask=owner > 0, other=0)
            end_chunk = tl.load(long_runs.chunk_ends + owner)
            grad = tl.zeros([BLOCK_D], dtype=tl.float32)
            for place in range(first_chunk, end_chunk, GATHER):
                chunks = place + tl.arange(0, GATHER)
                live = (chunks < end_chunk)[:, None] & inside[None, :]
                partial = tl.load(workspace + chunks[:, None] * stride + columns[None, :], mask=live, other=0.0)
                grad += tl.sum(partial, axis=0)
        else:
            grad = tl.load(workspace + owner * stride + columns, mask=inside, other=0.0)
        step_row(tables, feature, tl.load(lookups.keys + first), D, grad, RULE, WEIGHT_DECAY, ALIGN, BLOCK_D)


def step_long_runs(
    tables: Tables,
    lookups: Lookups,
    plan: BackwardPlan,
    optimizer: OptimizerState,
    layout: TableLayout,
    batch_size: int,
    config: KernelConfig,
) -> None:
    """Sum and step every row that at least `long_run_threshold` lookups touch."""
    if plan.long is None:
        return
    merge, long, device = config.merge, plan.long, tables.weights.device
    if merge == "ordered":
        workspace = torch.empty((long.chunk_owner.numel(), layout.max_D), dtype=torch.float32, device=device)
    else:
        workspace = torch.zeros((long.runs.numel(), layout.max_D), dtype=torch.float32, device=device)
    for number, bucket in enumerate(layout.buckets):
        if not bucket.features:
            continue
        tile = {
            "ALIGN": bucket.alignment,
            "GATHER": config.backward_gather(bucket.block_d),
            "BLOCK_D": bucket.block_d,
            "num_warps": config.warps(bucket.block_d),
        }
        sum_chunks_kernel[(min(long.chunk_owner.numel(), config.long_run_programs),)](
            workspace,
            lookups,
            plan.run_starts,
            long,
            batch_size,
            layout.total_D,
            number,
            config.chunk_size,
            layout.max_D,
            MERGE=merge,
            **tile,
        )
        step_long_runs_kernel[(min(long.runs.numel(), config.long_run_programs),)](
            workspace,
            tables,
            lookups,
            plan.run_starts,
            long,
            batch_size,
            number,
            layout.max_D,
            MERGE=merge,
            RULE=optimizer.row.rule,
            WEIGHT_DECAY=optimizer.weight_decay_mode.value,
            **tile,
        )
    took(f"backward.long_run.{merge}", plan.num_long_runs)
