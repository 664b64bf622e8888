"""The pooled lookup for any mix of tables: SUM or MEAN, with or without per-sample weights, plain or variable batches.

One program pools `bags_per_program` bags of a bucket, one after the other; `GATHER` rows are loaded at a time. Features
are launched by bucket (`next_power_of_two(D)`), so narrow tables do not pay for wide ones. Rows wider than a tile are
walked in column tiles. With `fused_bounds_check` the ids are judged on the way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.aot.variants import Variants
from tbe_kernels.batch import LookupBatch, locate_bag
from tbe_kernels.forward.bounds_check import BoundsCheck, report_bad
from tbe_kernels.observe import took
from tbe_kernels.spec import PoolingMode
from tbe_kernels.tables import EmbeddingTables


@triton.jit(do_not_specialize=["B", "total_D", "slots", "bags_per_program"])
def pooled_forward_kernel(
    output,
    bag_counts,  # int32 [bags], or None: lookups of each bag that count, for MEAN
    weights,
    indices,
    offsets,
    per_sample_weights,  # fp32 [N] or None
    places,
    bucket_list,  # the bucket's bags, for a variable batch, or None
    features,  # int32: the bucket's features
    weights_offsets,
    D_offsets,
    check,  # BoundsCheck, or None if the ids have been judged
    B,
    total_D,
    slots,  # bags of the bucket
    bags_per_program,
    ALIGN: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    """Pool the bags of one bucket.

    Grid: 1-D, any number of programs; each takes groups of `bags_per_program` bags in turn. `output` is
    `[B, total_D]`, or flat for a variable batch; `weights` flat, a table's `[E, D]` from `weights_offsets[feature]`
    on; `indices` `[N]`; `offsets` `[bags + 1]`; `D_offsets` `[T + 1]`. A program owns the output row and the count
    of each of its bags: plain stores. With `check`, bad ids are reported atomically, once a lookup.
    """
    lanes = tl.arange(0, GATHER)
    for start in range(tl.program_id(0) * bags_per_program, slots, tl.num_programs(0) * bags_per_program):
        for slot in range(start, tl.minimum(start + bags_per_program, slots)):
            bag, feature, D, table, element, first, last = locate_bag(
                places, bucket_list, features, weights, weights_offsets, D_offsets, offsets, slot, B, total_D, ALIGN
            )
            out_row = output + element
            for tile in range(0, D, BLOCK_D):
                columns = tile + tl.arange(0, BLOCK_D)
                inside = columns < D
                total = tl.zeros([BLOCK_D], dtype=ACCUMULATOR)
                count = tl.zeros([], dtype=tl.int32)
                for place in range(first, last, GATHER):
                    at = place + lanes
                    index = tl.load(indices + at, mask=at < last, other=-1).to(tl.int64)
                    if check is not None:
                        bad = (index < -1) | (index >= tl.load(check.rows_per_table + feature))
                        if tile == 0:
                            report_bad(check, bad, at, last)
                        index = tl.where(bad, 0, index)
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


VARIANTS = {
    "pooled_forward_kernel": Variants(
        axes=(
            *("weights", "output", "indices", "offsets", "lookups", "bags", "bounds_check", "fused_bounds_check"),
            *("D", "gather_width", "num_warps", "accumulate_fp64"),
        ),
        only={"lookups": ("SUM", "WEIGHTED", "MEAN"), "bounds_check": ("WARNING", "IGNORE")},
        atomics=lambda given: given["check"] is not None,
        gathers="weights",
    )
}


def pooled_forward(
    tables: EmbeddingTables, batch: LookupBatch, check: BoundsCheck | None
) -> tuple[Tensor, Tensor | None]:
    """Pool every bag: the output in its shape, and for MEAN the count of each bag (int32 `[bags]`).

    With `check`, ids are judged on the way and reported there.
    """
    layout, on_device, config, device = tables.layout, tables.on_device, tables.config, tables.weights.device
    bags = batch.bags
    output = torch.empty(bags.output_shape, dtype=tables.output_dtype, device=device)
    counts = None
    if tables.pooling_mode is PoolingMode.MEAN:
        counts = torch.empty(bags.num_bags, dtype=torch.int32, device=device)
    for number, bucket in enumerate(layout.buckets):
        slots = bags.bucket_bags[number]
        if slots == 0:
            continue
        groups = -(-slots // config.bags_per_program)
        pooled_forward_kernel[(min(groups, config.forward_programs),)](
            output,
            counts,
            tables.weights.detach(),
            batch.indices,
            batch.offsets,
            batch.per_sample_weights,
            bags.places,
            bags.bucket_lists[number],
            on_device.bucket_features[number],
            on_device.weights_offsets,
            on_device.D_offsets,
            check,
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
    took("forward.pooled.variable" if bags.is_variable else "forward.pooled", lambda: bags.num_bags)
    return output, counts
