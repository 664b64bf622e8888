"""The backward of a batch whose forward kept its counts: counts^T times gradient, then one step on each named row.

No sort, no plan: a row's gradient is the sum over bags of (how often the bag names the row) * (the bag's gradient row),
a product of two matrices. Programs multiply blocks of bags and store partial sums; a second launch adds those in order,
so the result is the same bit for bit every time, and steps the rows that any bag names.

Tensor cores multiply fp16, gradients are fp32. Each tile of gradients is scaled by a power of two that puts its largest
number into [2**14, 2**15), and split into `high`, the nearest fp16, and `low`, the nearest fp16 to 2**12 times what is
left. Both products are exact in fp32 and the two sums make one of about 23 bits (`oracles/values/tolerance.py` has the
bound). This needs every number of the tile to be finite and, other than 0, at least 2**-13 once scaled, where fp16 has
its full precision in `high` and enough in `low`; and counts up to 2048, which fp16 holds exactly. A tile that is not
like that (a spread of 2**27 and more, an infinity or a NaN, a bag that names a row thousands of times) is worked
through bag by bag in fp32, each bag adding to the rows that it names and to no others: slower, and right.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.aot.variants import AXES, Variants
from tbe_kernels.backward.operands import rows_of
from tbe_kernels.backward.rows import clipped, step_constants, step_row
from tbe_kernels.forward.small_table import LEAST_DOT, SMALL_TABLE_ONLY
from tbe_kernels.observe import took
from tbe_kernels.spec import PoolingMode, next_power_of_two
from tbe_kernels.tables import EmbeddingTables


@triton.jit
def load_bags(
    row_counts,
    grad_output,
    bags,  # int64 [K]
    max_gradient,
    B,
    D,
    MEAN: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr,
    K: tl.constexpr,
):
    """Counts int32 `[K, BLOCK_E]` and gradients fp32 `[K, BLOCK_D]` of some bags, zeros for those that are none."""
    counts = tl.load(
        row_counts + bags[:, None] * BLOCK_E + tl.arange(0, BLOCK_E)[None, :], mask=(bags < B)[:, None], other=0
    )
    columns = tl.arange(0, BLOCK_D)
    lookups = tl.sum(counts, axis=1)
    # The gradient of a bag without lookups is not even read: it may be NaN, or spoil the scale.
    grads = tl.load(
        grad_output + bags[:, None] * D + columns[None, :],
        mask=(lookups > 0)[:, None] & (columns < D)[None, :],
        other=0.0,
    )
    grads = clipped(grads, max_gradient)
    if MEAN:
        divisor = tl.maximum(lookups, 1).to(tl.float32)
        grads = tl.div_rn(grads, tl.broadcast_to(divisor[:, None], [K, BLOCK_D]))
    return counts, grads


@triton.jit
def power_of_two_around(most):
    """2 ** (14 - e) and its inverse for `most` in [2 ** e, 2 ** (e + 1)), from the bits of its exponent. Less than
    2 ** -100 counts as that, so that both are normal numbers."""
    exponent = tl.maximum(most.to(tl.int32, bitcast=True) >> 23, 27)
    scale = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale, ((exponent - 14) << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["B"])
def multiply_counts_kernel(
    partial_sums,  # fp32 [programs, BLOCK_E, BLOCK_D]
    named,  # int32 [programs, BLOCK_E]: whether any bag of the program names the row
    row_counts,  # int32 [B, BLOCK_E]
    grad_output,  # fp32 [B, D]
    D_offsets,
    max_gradient,  # clamp each element of `grad_output` to it, or None
    B,
    MEAN: tl.constexpr,
    ALIGN: tl.constexpr,
    BAGS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Partial sums of counts^T times gradient.

    Grid: 1-D, as many programs as there are partial sums; each takes groups of `BAGS` bags in turn and owns its own
    `[BLOCK_E, BLOCK_D]` of `partial_sums` and its row of `named`: plain stores, once, at the end.
    """
    LARGEST: tl.constexpr = 3.4028234663852886e38
    MOST_COUNTED: tl.constexpr = 2048
    LEAST_SCALED: tl.constexpr = 2.0**-13
    LOW: tl.constexpr = 2.0**12
    D = tl.multiple_of(tl.load(D_offsets + 1) - tl.load(D_offsets), ALIGN)
    total = tl.zeros([BLOCK_E, BLOCK_D], dtype=tl.float32)
    is_named = tl.zeros([BLOCK_E], dtype=tl.int32)
    for group in range(tl.program_id(0).to(tl.int64) * BAGS, B, tl.num_programs(0).to(tl.int64) * BAGS):
        bags = (group + tl.arange(0, BAGS)).to(tl.int64)
        counts, grads = load_bags(row_counts, grad_output, bags, max_gradient, B, D, MEAN, BLOCK_E, BLOCK_D, BAGS)
        size = tl.abs(grads)
        is_finite = tl.min(tl.min((size <= LARGEST).to(tl.int32), axis=1), axis=0) == 1
        least = tl.min(tl.min(tl.where(size > 0.0, size, float("inf")), axis=1), axis=0)
        scale, back = power_of_two_around(tl.max(tl.max(size, axis=1), axis=0))
        most_counted = tl.max(tl.max(counts, axis=1), axis=0)
        if is_finite & (least * scale >= LEAST_SCALED) & (most_counted <= MOST_COUNTED):
            scaled = grads * scale  # [BAGS, BLOCK_D]
            high = scaled.to(tl.float16)
            low = ((scaled - high.to(tl.float32)) * LOW).to(tl.float16)
            times = tl.trans(counts.to(tl.float16))  # [BLOCK_E, BAGS]
            total += (tl.dot(times, high) + tl.dot(times, low) * (1.0 / LOW)) * back
        else:
            for lane in range(BAGS):
                bag = (group + lane + tl.arange(0, 1)).to(tl.int64)
                some, grad = load_bags(row_counts, grad_output, bag, max_gradient, B, D, MEAN, BLOCK_E, BLOCK_D, 1)
                times_one = tl.trans(some.to(tl.float32))  # [BLOCK_E, 1]
                total += tl.where(times_one > 0.0, times_one * grad, 0.0)  # 0 * NaN is not added
        is_named = tl.maximum(is_named, tl.max((counts > 0).to(tl.int32), axis=0))
    places = tl.program_id(0).to(tl.int64) * BLOCK_E + tl.arange(0, BLOCK_E)
    tl.store(named + places, is_named)
    tl.store(partial_sums + places[:, None] * BLOCK_D + tl.arange(0, BLOCK_D)[None, :], total)


@triton.jit(do_not_specialize=["programs"])
def step_named_rows_kernel(
    rows,
    partial_sums,
    named,
    D_offsets,
    programs,  # of the launch before
    RULE: tl.constexpr,
    WEIGHT_DECAY: tl.constexpr,
    ALIGN: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Add a row's partial sums in order, and step the row if any bag names it.

    Grid: 1-D, a program a row of the table, which it owns with its state: plain stores. `partial_sums` is
    `[programs, BLOCK_E, BLOCK_D]`, `named` `[programs, BLOCK_E]`, both of the launch before; `rows` as in
    `operands`.
    """
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK_D)
    D = tl.multiple_of(tl.load(D_offsets + 1) - tl.load(D_offsets), ALIGN)
    grad = tl.zeros([BLOCK_D], dtype=tl.float32)
    is_named = tl.zeros([], dtype=tl.int32)
    for first in range(0, programs, GATHER):
        parts = first + tl.arange(0, GATHER)
        live = parts < programs
        places = parts.to(tl.int64) * BLOCK_E + row
        sums = tl.load(partial_sums + places[:, None] * BLOCK_D + columns[None, :], mask=live[:, None], other=0.0)
        grad += tl.sum(sums, axis=0)  # [BLOCK_D], zeros beyond D
        is_named = tl.maximum(is_named, tl.max(tl.load(named + places, mask=live, other=0), axis=0))
    if is_named > 0:
        step_row(rows, 0, tl.load(rows.key_base) + row, 0, D, grad, RULE, WEIGHT_DECAY, ALIGN, BLOCK_D)


_ONLY = {**SMALL_TABLE_ONLY, "lookups": ("SUM", "MEAN"), "bags": ("plain", "many")}
VARIANTS = {
    "multiply_counts_kernel": Variants(
        axes=(*_ONLY, "gradient_clipping", "small_table_warps", "from_counts_bags"),
        only=_ONLY,
        gathers="grad_output",
        height="BAGS",
    ),
    "step_named_rows_kernel": Variants(
        axes=(*SMALL_TABLE_ONLY, "optimizer", "max_norm", "stochastic_rounding", "backward_gather_width", "num_warps"),
        # The optimizer NONE steps nothing, and counts could not leave its gradients.
        only={**SMALL_TABLE_ONLY, "optimizer": tuple(o for o in AXES["optimizer"] if o[0] != "NONE")},
    ),
}


def step_from_counts(tables: EmbeddingTables, row_counts: Tensor, grad_output: Tensor) -> None:
    """Sum and step every row of the one table. `row_counts`: what `small_table_forward` kept; `grad_output`: contiguous
    fp32 `[B, D]`. Works for bags of any length; deterministic; never synchronises."""
    layout, on_device, config, device = tables.layout, tables.on_device, tables.config, tables.weights.device
    (bucket,) = (b for b in layout.buckets if b.features)
    B, block_e = row_counts.shape
    block_d = max(LEAST_DOT, next_power_of_two(layout.total_D))
    programs = min(-(-B // config.from_counts_bags), config.from_counts_programs)
    partial_sums = torch.empty((programs, block_e, block_d), dtype=torch.float32, device=device)
    named = torch.empty((programs, block_e), dtype=torch.int32, device=device)
    blocks = {"ALIGN": bucket.alignment, "BLOCK_E": block_e, "BLOCK_D": block_d}
    multiply_counts_kernel[(programs,)](
        partial_sums,
        named,
        row_counts,
        grad_output,
        on_device.D_offsets,
        tables.max_gradient,
        B,
        MEAN=tables.pooling_mode is PoolingMode.MEAN,
        BAGS=config.from_counts_bags,
        num_warps=config.small_table_warps,
        **blocks,
    )
    step_named_rows_kernel[(layout.rows[layout.feature_table_map[0]],)](
        rows_of(tables),
        partial_sums,
        named,
        on_device.D_offsets,
        programs,
        GATHER=config.backward_gather(block_d),
        num_warps=config.warps(block_d),
        **step_constants(tables),
        **blocks,
    )
    took("backward.from_counts", lambda: int(named.amax(0).count_nonzero()))
