"""The pooled lookup of one small table: bags become counts, and counts times the table is the output.

With few rows and long bags most lookups repeat a row, so a program counts how often each of its `BAGS` bags names each
row (`tl.histogram`) and multiplies counts by the table on the tensor cores (`tl.dot`, fp16 x fp16 -> fp32). Bags are
counted a window of ids at a time: counts up to 256 are exact in fp16, products of one with an fp16 number in fp32, and
a bag of any length is right. The complete counts, kept, are all that `backward.from_counts` needs of the batch.

A row that no bag names may hold NaN, and 0 * NaN is NaN. So infinities and NaNs are taken out of the table before the
product; what they do to the bags that do name them comes back as IEEE addition has it, from which of them each bag
names (`special_sums`): a second product, in a branch that tables of finite numbers never enter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.aot.variants import Variants
from tbe_kernels.batch import LookupBatch
from tbe_kernels.forward.bounds_check import BoundsCheck, report_bad
from tbe_kernels.observe import took
from tbe_kernels.spec import PoolingMode, next_power_of_two
from tbe_kernels.tables import EmbeddingTables

#: Least extent of a `tl.dot` operand.
LEAST_DOT = 16


@triton.jit
def special_sums(named, rows, LARGEST: tl.constexpr):
    """What the infinities and NaNs of `rows` fp16 `[K, N]` add up to, for the M bags that name some of them: `named`
    `[M, K]`. NaN, an infinity or 0: added to the sum of the finite values it makes the sum of all."""
    tl.static_assert(named.shape[1] < 128)
    # One product counts NaNs in units, +inf in 128s, -inf in 128 * 128s.
    is_plus, is_minus, is_nan = rows > LARGEST, rows < -LARGEST, rows != rows
    code = tl.where(is_nan, 1.0, tl.where(is_plus, 128.0, tl.where(is_minus, 16384.0, 0.0)))
    met = tl.dot(named.to(tl.float16), code.to(tl.float16)).to(tl.int32)
    pluses, minuses = (met // 128) % 128 > 0, met >= 16384
    infinity = tl.where(pluses, float("inf"), tl.where(minuses, -float("inf"), 0.0))
    return tl.where((met % 128 > 0) | (pluses & minuses), float("nan"), infinity)  # [M, N]


@triton.jit(do_not_specialize=["B"])
def small_table_kernel(
    output,  # fp32 [B, D]
    bag_counts,  # int32 [B], or None: lookups of each bag that count, for MEAN
    row_counts,  # int32 [B, BLOCK_E], or None: how often each bag names each row, for the backward
    weights,  # fp16
    indices,
    offsets,
    rows_per_table,
    weights_offsets,
    D_offsets,
    check,  # BoundsCheck, or None if the ids have been judged
    B,
    ALIGN: tl.constexpr,
    BAGS: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Count each bag's ids, and multiply the counts by the table.

    Grid: 1-D, any number of programs; each takes groups of `BAGS` bags in turn. `weights` is flat, the table's
    `[E, D]` from `weights_offsets[0]` on; `indices` `[N]`; `offsets` `[B + 1]`; `rows_per_table` `[1]`; `D_offsets`
    `[2]`. A program owns the rows of its bags in `output`, `bag_counts` and `row_counts`: plain stores. With
    `check`, bad ids are reported atomically.
    """
    LARGEST: tl.constexpr = 65504.0
    lanes = tl.arange(0, BAGS)
    ids = tl.arange(0, BLOCK_E)
    columns = tl.arange(0, BLOCK_D)
    E = tl.load(rows_per_table)
    D = tl.multiple_of(tl.load(D_offsets + 1) - tl.load(D_offsets), ALIGN)
    inside = columns < D
    table = weights + tl.multiple_of(tl.load(weights_offsets), ALIGN)
    rows = tl.load(
        table + ids[:, None].to(tl.int64) * D + columns[None, :], mask=(ids < E)[:, None] & inside[None, :], other=0.0
    )  # [BLOCK_E, BLOCK_D]
    is_finite = tl.abs(rows) <= LARGEST
    finite = tl.where(is_finite, rows, 0.0).to(tl.float16)
    any_special = tl.min(tl.min(is_finite.to(tl.int32), axis=1), axis=0) == 0
    for group in range(tl.program_id(0).to(tl.int64) * BAGS, B, tl.num_programs(0).to(tl.int64) * BAGS):
        bags = group + lanes
        in_batch = bags < B
        begins = tl.load(offsets + bags, mask=in_batch, other=0).to(tl.int64)
        ends = tl.load(offsets + bags + 1, mask=in_batch, other=0).to(tl.int64)
        longest = tl.max(ends - begins, axis=0)
        total = tl.zeros([BAGS, BLOCK_D], dtype=tl.float32)
        counts = tl.zeros([BAGS, BLOCK_E], dtype=tl.int32)
        for window in range(0, longest, WINDOW):
            seen = tl.zeros([BAGS, BLOCK_E], dtype=tl.int32)  # in this window
            for lane in range(tl.minimum(BAGS, B - group)):
                first = tl.load(offsets + group + lane).to(tl.int64) + window
                last = tl.load(offsets + group + lane + 1).to(tl.int64)
                if first < last:
                    at = first + tl.arange(0, WINDOW)
                    index = tl.load(indices + at, mask=at < last, other=-1).to(tl.int64)
                    if check is not None:
                        bad = (index < -1) | (index >= E)
                        report_bad(check, bad, at, last)
                        index = tl.where(bad, 0, index)
                    of_bag = tl.histogram(index.to(tl.int32), BLOCK_E, mask=index >= 0)  # -1 is pruned
                    seen = tl.where((lanes == lane)[:, None], of_bag[None, :], seen)
            counts += seen
            total = tl.dot(seen.to(tl.float16), finite, total)
        if any_special:
            total += special_sums(counts > 0, rows, LARGEST)
        if row_counts is not None:
            tl.store(row_counts + bags[:, None].to(tl.int64) * BLOCK_E + ids[None, :], counts, mask=in_batch[:, None])
        if bag_counts is not None:
            count = tl.sum(counts, axis=1)
            tl.store(bag_counts + bags, count, mask=in_batch)
            divisor = tl.maximum(count, 1).to(tl.float32)
            total = tl.div_rn(total, tl.broadcast_to(divisor[:, None], [BAGS, BLOCK_D]))
        out_rows = output + bags[:, None].to(tl.int64) * D + columns[None, :]
        tl.store(out_rows, total, mask=in_batch[:, None] & inside[None, :])


#: The settings that lead to a small table, for the kernels of this route.
SMALL_TABLE_ONLY = {
    "weights": ("float16",),
    "output": ("float32",),
    "rows": ("few", "tiny"),
    "small_table": ("always",),
    "D": (128, 7),
}
VARIANTS = {
    "small_table_kernel": Variants(
        axes=(
            *SMALL_TABLE_ONLY,
            *("indices", "offsets", "lookups", "bags", "bounds_check", "fused_bounds_check"),
            *("small_table_bags", "small_table_window", "small_table_warps", "backward_from_counts"),
        ),
        only={
            **SMALL_TABLE_ONLY,
            "lookups": ("SUM", "MEAN"),
            "bags": ("plain", "many"),
            "bounds_check": ("WARNING", "IGNORE"),
        },
        atomics=lambda given: given["check"] is not None,
        gathers="weights",
        height="BLOCK_E",
    )
}


def takes_small_table(tables: EmbeddingTables, batch: LookupBatch) -> bool:
    """Whether a batch goes this way. Known on the host: the expected bag length is N / B."""
    layout, config = tables.layout, tables.config
    fits = (
        config.small_table != "never"
        and layout.num_features == 1
        and tables.pooling_mode is not PoolingMode.NONE
        and tables.weights.dtype is torch.float16
        and tables.output_dtype is torch.float32
        and batch.per_sample_weights is None
        and not batch.bags.is_variable
        and layout.rows[layout.feature_table_map[0]] <= config.small_table_rows
        and layout.total_D <= config.small_table_columns
    )
    pays = (
        layout.total_D >= config.small_table_least_columns
        and batch.indices.numel() >= config.small_table_bag_length * batch.bags.num_bags
    )
    return fits and (pays or config.small_table == "always")


def small_table_forward(
    tables: EmbeddingTables, batch: LookupBatch, check: BoundsCheck | None, keep_counts: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Pool every bag: the output fp32 `[B, D]`, for MEAN the count of each bag (int32 `[B]`), and with `keep_counts`
    how often each bag names each row (int32 `[B, next power of two of E]`). `check` as in `pooled_forward`."""
    layout, on_device, config, device = tables.layout, tables.on_device, tables.config, tables.weights.device
    B, (bucket,) = batch.bags.batch_size, (b for b in layout.buckets if b.features)
    block_e = max(LEAST_DOT, next_power_of_two(layout.rows[layout.feature_table_map[0]]))
    output = torch.empty((B, layout.total_D), dtype=torch.float32, device=device)
    bag_counts = row_counts = None
    if tables.pooling_mode is PoolingMode.MEAN:
        bag_counts = torch.empty(B, dtype=torch.int32, device=device)
    if keep_counts:
        row_counts = torch.empty((B, block_e), dtype=torch.int32, device=device)
    groups = -(-B // config.small_table_bags)
    if groups > 0:
        small_table_kernel[(min(groups, config.small_table_programs),)](
            output,
            bag_counts,
            row_counts,
            tables.weights.detach(),
            batch.indices,
            batch.offsets,
            on_device.rows_per_table,
            on_device.weights_offsets,
            on_device.D_offsets,
            check,
            B,
            ALIGN=bucket.alignment,
            BAGS=config.small_table_bags,
            WINDOW=config.small_table_window,
            BLOCK_E=block_e,
            BLOCK_D=max(LEAST_DOT, next_power_of_two(layout.total_D)),
            num_warps=config.small_table_warps,
        )
    took("forward.small_table", lambda: B)
    return output, bag_counts, row_counts
