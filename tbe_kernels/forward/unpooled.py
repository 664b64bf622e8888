"""The lookup without pooling (NONE): one output row a lookup, a copy of the table's row; zeros where the id is pruned.

A feature's lookups lie side by side; `unpooled_programs` programs a feature walk them, `GATHER` rows at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.aot.variants import Variants
from tbe_kernels.batch import LookupBatch, lookups_of
from tbe_kernels.forward.bounds_check import BoundsCheck, report_bad
from tbe_kernels.observe import took
from tbe_kernels.tables import EmbeddingTables


@triton.jit(do_not_specialize=["B", "D", "programs"])
def unpooled_forward_kernel(
    output,  # [N, D]
    weights,
    indices,
    offsets,
    places,
    weights_offsets,
    check,  # BoundsCheck, or None if the ids have been judged
    B,
    D,
    programs,  # a feature
    ALIGN: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Copy the row of every lookup.

    Grid: 1-D, `T * programs`; the programs of a feature take its lookups `GATHER` at a time, in turn. `weights` is
    flat, a table's `[E, D]` from `weights_offsets[feature]` on; `indices` `[N]`; `offsets` `[bags + 1]`. A program
    owns the output rows of the lookups that it takes: plain stores. With `check`, bad ids are reported atomically.
    """
    feature = tl.program_id(0) // programs
    part = tl.program_id(0) % programs
    first, last = lookups_of(places, offsets, feature, B)
    D = D // ALIGN * ALIGN  # the same number; on an argument, tl.multiple_of would be lost
    table = weights + tl.multiple_of(tl.load(weights_offsets + feature), ALIGN)
    for place in range(first + part * GATHER, last, programs * GATHER):
        at = place + tl.arange(0, GATHER)
        index = tl.load(indices + at, mask=at < last, other=-1).to(tl.int64)
        if check is not None:
            bad = (index < -1) | (index >= tl.load(check.rows_per_table + feature))
            report_bad(check, bad, at, last)
            index = tl.where(bad, 0, index)
        live = index >= 0
        for tile in range(0, D, BLOCK_D):
            columns = tile + tl.arange(0, BLOCK_D)
            inside = columns < D
            row = tl.load(
                table + index[:, None] * D + columns[None, :], mask=live[:, None] & inside[None, :], other=0.0
            )  # [GATHER, BLOCK_D]
            tl.store(
                output + at[:, None] * D + columns[None, :],
                row.to(tl.float32).to(output.dtype.element_ty),
                mask=(at < last)[:, None] & inside[None, :],
            )


VARIANTS = {
    "unpooled_forward_kernel": Variants(
        axes=(
            *("weights", "output", "indices", "offsets", "lookups", "bags", "bounds_check", "fused_bounds_check"),
            *("D", "gather_width", "num_warps"),
        ),
        only={"lookups": ("NONE",), "bounds_check": ("WARNING", "IGNORE")},
        atomics=lambda given: given["check"] is not None,
        gathers="weights",
    )
}


def unpooled_forward(tables: EmbeddingTables, batch: LookupBatch, check: BoundsCheck | None) -> Tensor:
    """Copy the row of every lookup: `[N, D]`. With `check`, ids are judged on the way and reported there."""
    layout, config, N = tables.layout, tables.config, batch.indices.numel()
    D = layout.dims[layout.feature_table_map[0]]
    output = torch.empty((N, D), dtype=tables.output_dtype, device=tables.weights.device)
    if N > 0:
        bucket = next(b for b in tables.layout.buckets if b.features)
        unpooled_forward_kernel[(tables.layout.num_features * config.unpooled_programs,)](
            output,
            tables.weights.detach(),
            batch.indices,
            batch.offsets,
            batch.bags.places,
            tables.on_device.weights_offsets,
            check,
            batch.bags.batch_size,
            D,
            config.unpooled_programs,
            ALIGN=bucket.alignment,
            GATHER=config.gather(bucket.block_d),
            BLOCK_D=config.forward_block(bucket.block_d),
            num_warps=config.warps(config.forward_block(bucket.block_d)),
        )
    took("forward.unpooled", lambda: N)
    return output
