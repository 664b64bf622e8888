"""The gradient of per-sample weights: `grad[i] = dot(W[idx_i], grad_output of its bag)`, 0 where the id is pruned.

A feature may ask for none. Runs before the rows are updated. Shaped like the forward: one program takes
`bags_per_program` bags of a bucket.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.aot.variants import Variants
from tbe_kernels.backward.rows import clipped
from tbe_kernels.batch import LookupBatch, locate_bag
from tbe_kernels.observe import took
from tbe_kernels.scaling import scaled_again, to_be_clamped
from tbe_kernels.tables import EmbeddingTables


@triton.jit(do_not_specialize=["B", "total_D", "slots", "bags_per_program"])
def psw_gradient_kernel(
    psw_gradient,  # fp32 [N]
    grad_output,  # contiguous
    weights,
    indices,
    offsets,
    places,
    bucket_list,
    features,
    weights_offsets,
    D_offsets,
    check_rows,  # int64 [T]: read a bad id as row 0, or None
    feature_requires_grad,  # int32 [T]: 0 where the gradient is 0, or None
    max_gradient,  # fp32: clamp gradients to it, or None
    B,
    total_D,
    slots,
    bags_per_program,
    ALIGN: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    """The gradient of every per-sample weight of one bucket's bags.

    Grid: 1-D, any number of programs; each takes groups of `bags_per_program` bags in turn. `grad_output` has the
    shape of the output; `weights` is flat, a table's `[E, D]` from `weights_offsets[feature]` on; `indices` `[N]`;
    `offsets` `[bags + 1]`. A program owns the gradients of its bags' lookups: plain stores.
    """
    lanes = tl.arange(0, GATHER)
    for start in range(tl.program_id(0) * bags_per_program, slots, tl.num_programs(0) * bags_per_program):
        for slot in range(start, tl.minimum(start + bags_per_program, slots)):
            _, feature, D, table, element, first, last = locate_bag(
                places, bucket_list, features, weights, weights_offsets, D_offsets, offsets, slot, B, total_D, ALIGN
            )
            grad_row = grad_output + element
            for place in range(first, last, GATHER):
                at = place + lanes  # [GATHER]
                index = tl.load(indices + at, mask=at < last, other=-1).to(tl.int64)
                if check_rows is not None:
                    index = tl.where((index < -1) | (index >= tl.load(check_rows + feature)), 0, index)
                live = index >= 0
                if feature_requires_grad is not None:
                    live &= tl.load(feature_requires_grad + feature) != 0
                dot = tl.zeros([GATHER], dtype=ACCUMULATOR)
                for tile in range(0, D, BLOCK_D):
                    columns = tile + tl.arange(0, BLOCK_D)
                    inside = columns < D
                    mask = live[:, None] & inside[None, :]  # [GATHER, BLOCK_D]
                    rows = tl.load(table + index[:, None] * D + columns[None, :], mask=mask, other=0.0).to(ACCUMULATOR)
                    grads = tl.load(grad_row + columns, mask=inside, other=0.0).to(tl.float32)
                    grads = clipped(grads, max_gradient).to(ACCUMULATOR)
                    # A pruned lookup gets 0 also where its bag's gradient is NaN.
                    dot += tl.sum(tl.where(mask, rows * grads[None, :], 0.0), axis=1)
                tl.store(psw_gradient + at, dot.to(tl.float32), mask=at < last)


VARIANTS = {
    "psw_gradient_kernel": Variants(
        axes=(
            *("weights", "output", "indices", "offsets", "lookups", "bags", "fused_bounds_check"),
            *("gradient_clipping", "feature_requires_grad"),
            *("D", "gather_width", "num_warps", "accumulate_fp64"),
        ),
        only={"lookups": ("WEIGHTED",)},
        gathers="weights",
    )
}


def gradient_of_per_sample_weights(tables: EmbeddingTables, batch: LookupBatch, grad_output: Tensor) -> Tensor:
    """fp32 `[N]`, from the rows as they are now. With a `gradient_scale` it stays scaled, as who set the scale expects,
    but gradients are clamped as the step sees them, unscaled."""
    grad_output, factor = to_be_clamped(tables, grad_output)
    layout, on_device, config, bags = tables.layout, tables.on_device, tables.config, batch.bags
    gradient = torch.empty(batch.indices.numel(), dtype=torch.float32, device=tables.weights.device)
    for number, bucket in enumerate(layout.buckets):
        slots = bags.bucket_bags[number]
        if slots == 0:
            continue
        groups = -(-slots // config.bags_per_program)
        psw_gradient_kernel[(min(groups, config.forward_programs),)](
            gradient,
            grad_output,
            tables.weights.detach(),
            batch.indices,
            batch.offsets,
            bags.places,
            bags.bucket_lists[number],
            on_device.bucket_features[number],
            on_device.weights_offsets,
            on_device.D_offsets,
            batch.check_rows,
            batch.feature_requires_grad,
            tables.max_gradient,
            bags.batch_size,
            layout.total_D,
            slots,
            config.bags_per_program,
            ALIGN=bucket.variable_alignment if bags.is_variable else bucket.alignment,
            GATHER=config.gather(bucket.block_d),
            BLOCK_D=config.forward_block(bucket.block_d),
            ACCUMULATOR=tl.float64 if tables.accumulates_fp64 else tl.float32,
            num_warps=config.warps(config.forward_block(bucket.block_d)),
        )
    took("backward.psw_gradient", batch.indices.numel)
    return scaled_again(gradient, factor)
