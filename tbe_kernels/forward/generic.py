"""The pooled lookup for any mix of tables: SUM or MEAN, with or without per-sample weights.

One program pools `bags_per_program` neighbouring bags of one feature; `GATHER` rows are loaded at a time. Features are
launched by bucket (`next_power_of_two(D)`), so narrow tables do not pay for wide ones. Rows wider than a tile are
walked in column tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.config import KernelConfig
from tbe_kernels.observe import took
from tbe_kernels.spec import DeviceLayout, PoolingMode, TableLayout


@triton.jit(do_not_specialize=["B", "groups", "bags_per_program"])
def pooled_forward_kernel(
    output,  # [B, total_D]
    bag_counts,  # int32 [T * B], or None: lookups of each bag that count, for MEAN
    weights,
    indices,
    offsets,
    per_sample_weights,  # fp32 [N] or None
    features,  # int32: the features of this bucket
    weights_offsets,
    D_offsets,
    B,
    total_D,
    groups,  # groups of bags a feature
    bags_per_program,
    ALIGN: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    program = tl.program_id(0)
    feature = tl.load(features + program // groups)
    first_sample = (program % groups) * bags_per_program
    column = tl.load(D_offsets + feature)
    D = tl.multiple_of(tl.load(D_offsets + feature + 1) - column, ALIGN)
    column = tl.multiple_of(column, ALIGN)
    table = weights + tl.multiple_of(tl.load(weights_offsets + feature), ALIGN)
    lanes = tl.arange(0, GATHER)
    for sample in range(first_sample, tl.minimum(first_sample + bags_per_program, B)):
        bag = feature.to(tl.int64) * B + sample
        first = tl.load(offsets + bag).to(tl.int64)
        last = tl.load(offsets + bag + 1).to(tl.int64)
        out_row = output + (bag - feature.to(tl.int64) * B) * total_D + column
        for tile in range(0, D, BLOCK_D):
            columns = tile + tl.arange(0, BLOCK_D)
            inside = columns < D
            total = tl.zeros([BLOCK_D], dtype=ACCUMULATOR)
            count = tl.zeros([], dtype=tl.int32)
            for place in range(first, last, GATHER):
                at = place + lanes
                index = tl.load(indices + at, mask=at < last, other=-1).to(tl.int64)
                live = index >= 0  # -1 is pruned
                rows = tl.load(
                    table + index[:, None] * D + columns[None, :], mask=live[:, None] & inside[None, :], other=0.0
                ).to(ACCUMULATOR)  # [GATHER, BLOCK_D]
                if per_sample_weights is not None:
                    rows *= tl.load(per_sample_weights + at, mask=live, other=0.0).to(ACCUMULATOR)[:, None]
                total += tl.sum(rows, axis=0)
                if bag_counts is not None:
                    count += tl.sum(live.to(tl.int32), axis=0)
            if bag_counts is not None:
                tl.store(bag_counts + bag, count)
                divisor = tl.maximum(count, 1)
                if tl.float32 == ACCUMULATOR:
                    total = tl.div_rn(total, divisor.to(tl.float32))
                else:
                    total = total / divisor.to(ACCUMULATOR)
            tl.store(out_row + columns, total.to(output.dtype.element_ty), mask=inside)


def pooled_forward(
    weights: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None,
    batch_size: int,
    pooling_mode: PoolingMode,
    output_dtype: torch.dtype,
    layout: TableLayout,
    on_device: DeviceLayout,
    config: KernelConfig,
) -> tuple[Tensor, Tensor | None]:
    """Pool every bag: the output `[B, total_D]`, and for MEAN the count of each bag (int32 `[T * B]`)."""
    bags = layout.num_features * batch_size
    output = torch.empty((batch_size, layout.total_D), dtype=output_dtype, device=weights.device)
    counts = None
    if pooling_mode is PoolingMode.MEAN:
        counts = torch.empty(bags, dtype=torch.int32, device=weights.device)
    if bags == 0:
        return output, counts
    wide = weights.dtype == torch.float32 and config.accumulate_fp64
    groups = -(-batch_size // config.bags_per_program)
    for bucket, features in zip(layout.buckets, on_device.bucket_features, strict=True):
        if not bucket.features:
            continue
        pooled_forward_kernel[(len(bucket.features) * groups,)](
            output,
            counts,
            weights,
            indices,
            offsets,
            per_sample_weights,
            features,
            on_device.weights_offsets,
            on_device.D_offsets,
            batch_size,
            layout.total_D,
            groups,
            config.bags_per_program,
            ALIGN=bucket.alignment,
            GATHER=config.gather(bucket.block_d),
            BLOCK_D=config.forward_block(bucket.block_d),
            ACCUMULATOR=tl.float64 if wide else tl.float32,
            num_warps=config.warps(config.forward_block(bucket.block_d)),
        )
    took("forward.pooled", lambda: bags)
    return output, counts
