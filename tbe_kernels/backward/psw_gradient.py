"""The gradient of per-sample weights: `grad[i] = dot(W[idx_i], grad_output of its bag)`, 0 where the id is pruned.

Runs before the rows are updated. Shaped like the forward: one program for `bags_per_program` bags of a feature.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.config import KernelConfig
from tbe_kernels.observe import took
from tbe_kernels.spec import DeviceLayout, TableLayout


@triton.jit(do_not_specialize=["B", "total_D", "groups", "bags_per_program"])
def psw_gradient_kernel(
    psw_gradient,  # fp32 [N]
    grad_output,  # [B, total_D], contiguous
    weights,
    indices,
    offsets,
    features,
    weights_offsets,
    D_offsets,
    B,
    total_D,
    groups,
    bags_per_program,
    ALIGN: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    program = tl.program_id(0)
    feature = tl.load(features + program // groups).to(tl.int64)
    first_sample = (program % groups) * bags_per_program
    column = tl.load(D_offsets + feature)
    D = tl.multiple_of(tl.load(D_offsets + feature + 1) - column, ALIGN)
    table = weights + tl.multiple_of(tl.load(weights_offsets + feature), ALIGN)
    lanes = tl.arange(0, GATHER)
    for sample in range(first_sample, tl.minimum(first_sample + bags_per_program, B)):
        bag = feature * B + sample
        first = tl.load(offsets + bag).to(tl.int64)
        last = tl.load(offsets + bag + 1).to(tl.int64)
        grad_row = grad_output + tl.multiple_of((bag - feature * B) * total_D + column, ALIGN)
        for place in range(first, last, GATHER):
            at = place + lanes
            index = tl.load(indices + at, mask=at < last, other=-1).to(tl.int64)
            live = index >= 0
            dot = tl.zeros([GATHER], dtype=ACCUMULATOR)
            for tile in range(0, D, BLOCK_D):
                columns = tile + tl.arange(0, BLOCK_D)
                inside = columns < D
                mask = live[:, None] & inside[None, :]
                rows = tl.load(table + index[:, None] * D + columns[None, :], mask=mask, other=0.0).to(ACCUMULATOR)
                grads = tl.load(grad_row + columns, mask=inside, other=0.0).to(ACCUMULATOR)
                # A pruned lookup gets 0 also where its bag's gradient is NaN.
                dot += tl.sum(tl.where(mask, rows * grads[None, :], 0.0), axis=1)
            tl.store(psw_gradient + at, dot.to(tl.float32), mask=at < last)


def gradient_of_per_sample_weights(
    grad_output: Tensor,
    weights: Tensor,
    indices: Tensor,
    offsets: Tensor,
    layout: TableLayout,
    on_device: DeviceLayout,
    config: KernelConfig,
) -> Tensor:
    """fp32 `[N]`, from the rows as they are now."""
    batch_size = grad_output.shape[0]
    gradient = torch.empty(indices.numel(), dtype=torch.float32, device=weights.device)
    wide = weights.dtype == torch.float32 and config.accumulate_fp64
    groups = -(-batch_size // config.bags_per_program)
    for bucket, features in zip(layout.buckets, on_device.bucket_features, strict=True):
        if not bucket.features:
            continue
        psw_gradient_kernel[(len(bucket.features) * groups,)](
            gradient,
            grad_output,
            weights,
            indices,
            offsets,
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
    took("backward.psw_gradient", indices.numel)
    return gradient
