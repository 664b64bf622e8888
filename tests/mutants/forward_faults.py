"""Faults in the lookup: pooling, layouts, per-sample weights, checks of ids and offsets, precision."""

from __future__ import annotations

from tests.mutants.fault import Fault
from tests.mutants.plant import Edit

FORWARD_FAULTS = (
    # Nothing to do: empty bags, pruned bags.
    Fault(
        "mean of an empty bag divides by zero",
        "forward/pooled.py",
        "divisor = tl.maximum(count, 1)",
        "divisor = count",
        "forward.pooled",
    ),
    Fault(
        "an empty bag is not written",
        "forward/pooled.py",
        "tl.store(out_row + columns, total.to(output.dtype.element_ty), mask=inside)",
        "if first < last:\n"
        "                    tl.store(out_row + columns, total.to(output.dtype.element_ty), mask=inside)",
        "forward.pooled",
    ),
    # Accumulation and store in low precision.
    Fault(
        "rows are added in their own type",
        "forward/pooled.py",
        ").to(ACCUMULATOR)  # [GATHER, BLOCK_D]",
        ")  # [GATHER, BLOCK_D]",
        "forward.pooled",
    ),
    Fault(
        "the sum of a run is kept in the type of the weights",
        "backward/rows.py",
        "weight = RULE(weight, grad, state_row",
        "weight = RULE(weight, grad.to(rows.weights.dtype.element_ty).to(tl.float32), state_row",
        "backward.short_run",
    ),
    Fault(
        "fp32 rows are added in fp32",
        "tables.py",
        "return self.weights.dtype == torch.float32 and self.config.accumulate_fp64",
        "return False",
        "forward.pooled",
    ),
    # Per-sample weights.
    Fault(
        "the per-sample weight of a pruned id is multiplied by nothing",
        "forward/pooled.py",
        "rows *= tl.load(per_sample_weights + at, mask=live, other=0.0).to(ACCUMULATOR)[:, None]",
        "rows *= tl.load(per_sample_weights + at, mask=at < last, other=0.0).to(ACCUMULATOR)[:, None]",
        "forward.pooled",
    ),
    # Where roundings meet.
    Fault(
        "a sum in fp64 is rounded twice on its way to a narrow output",
        "forward/pooled.py",
        "total.to(output.dtype.element_ty), mask=inside)",
        "total.to(tl.float32).to(output.dtype.element_ty), mask=inside)",
        "forward.pooled",
    ),
    Fault(
        "psw gradient from the rows after the update",
        "functional.py",
        """        psw_gradient = None
        if ctx.needs_input_grad[1]:
""",
        """        psw_gradient = None
        if ctx.needs_input_grad[0]:
            fold_and_step(tables, batch, grad_output, counts, ctx.plan, row_counts)
            ctx.needs_input_grad = (False, *ctx.needs_input_grad[1:])
        if ctx.needs_input_grad[1]:
""",
        "backward.psw_gradient",
    ),
    Fault(
        "per-sample weights not sorted with their lookups",
        "backward/operands.py",
        "psw[plan.order]",
        "psw",
        "backward.plan",
    ),
    Fault(
        "psw gradient misses the last column tile",
        "backward/psw_gradient.py",
        "for tile in range(0, D, BLOCK_D):",
        "for tile in range(0, tl.maximum(D - D % BLOCK_D, BLOCK_D), BLOCK_D):",
        "backward.psw_gradient",
    ),
    # Bounds, and -1.
    Fault(
        "an id of exactly the row count is let through",
        "forward/bounds_check.py",
        "bad = (index < -1) | (index >= rows)",
        "bad = (index < -1) | (index > rows)",
        "check.indices",
    ),
    Fault(
        "an int64 id is narrowed before it is judged",
        "forward/bounds_check.py",
        "index = tl.load(indices + at, mask=inside, other=-1).to(tl.int64)\n        bad",
        "index = tl.load(indices + at, mask=inside, other=-1).to(tl.int64)\n"
        "        if checked is not None:\n            index = index.to(tl.int32).to(tl.int64)\n        bad",
        "check.indices",
    ),
    Fault(
        "a repair counts once, not once an offset",
        "forward/bounds_check.py",
        "changed += tl.sum((inside & (fixed != given)).to(tl.int64), axis=0)",
        "changed = tl.maximum(changed, tl.max((inside & (fixed != given)).to(tl.int64), axis=0))",
        "check.offsets",
    ),
    Fault(
        "repairs are counted in the last block alone",
        "forward/bounds_check.py",
        "changed += tl.sum((inside & (fixed != given)).to(tl.int64), axis=0)",
        "changed = tl.sum((inside & (fixed != given)).to(tl.int64), axis=0)",
        "check.offsets",
        (2, 16, 6),
    ),
    Fault(
        "a pruned id trains the row before",
        "backward/plan.py",
        "key = tl.where(index >= 0, key, total_rows)",
        "key = tl.where(index >= -1, key, total_rows)",
        "backward.plan",
    ),
    Fault(
        "a pruned id counts in the mean",
        "forward/pooled.py",
        "count += tl.sum(live.to(tl.int32), axis=0)",
        "count += tl.sum((at < last).to(tl.int32), axis=0)",
        "forward.pooled",
    ),
    Fault(
        "a pruned id is read",
        "forward/pooled.py",
        "live = index >= 0  # -1 is pruned",
        "live = at < last",
        "forward.pooled",
    ),
    # Large D, grid limits, dropped tails.
    Fault(
        "the last column tile is lost",
        "forward/pooled.py",
        "for tile in range(0, D, BLOCK_D):",
        "for tile in range(0, tl.maximum(D - D % BLOCK_D, BLOCK_D), BLOCK_D):",
        "forward.pooled",
    ),
    Fault(
        "the last group of bags has no program",
        "forward/pooled.py",
        "groups = -(-slots // config.bags_per_program)",
        "groups = max(1, slots // config.bags_per_program)",
        "forward.pooled",
        (2, 4, 6),
        (
            Edit(
                "forward/pooled.py",
                "tl.num_programs(0) * bags_per_program)",
                "slots)",
            ),
        ),
    ),
    Fault(
        "a column beyond D is written",
        "backward/rows.py",
        "tl.store(rows.weights + elements, to_storage(weight, elements, rows), mask=inside)",
        "tl.store(rows.weights + elements, to_storage(weight, elements, rows), mask=columns <= D)",
        "backward.short_run",
    ),
    # Variable batches.
    Fault(
        "output places by the samples of another rank",
        "batch.py",
        "for rank in range(len(sizes[0])):",
        "for rank in reversed(range(len(sizes[0]))):",
        "forward.pooled.variable",
    ),
    Fault(
        "a variable batch's gradients as if it were plain",
        "backward/rows.py",
        "start = tl.load(lookups.places.output + bag, mask=live, other=0)",
        "start = (bag - tl.load(lookups.places.starts)).to(tl.int64) * D",
        "forward.pooled.variable",
    ),
    # Lookups without pooling.
    Fault(
        "a pruned lookup is not written",
        "forward/unpooled.py",
        "mask=(at < last)[:, None] & inside[None, :]",
        "mask=live[:, None] & inside[None, :]",
        "forward.unpooled",
    ),
    Fault(
        "without pooling, gradients in sorted order",
        "backward/rows.py",
        "start = tl.load(lookups.gradient_rows + at, mask=live, other=0) * D",
        "start = at.to(tl.int64) * D",
        "forward.unpooled",
    ),
    # The check inside the lookup.
    Fault(
        "the fused check lets an id of exactly the row count through",
        "forward/pooled.py",
        "bad = (index < -1) | (index >= tl.load(check.rows_per_table + feature))",
        "bad = (index < -1) | (index > tl.load(check.rows_per_table + feature))",
        "check.indices.fused",
    ),
    Fault(
        "the fused check counts a bad id once a column tile",
        "forward/pooled.py",
        "                        if tile == 0:\n                            report_bad(check, bad, at, last)",
        "                        report_bad(check, bad, at, last)",
        "check.indices.fused",
    ),
    Fault(
        "the backward forgets that ids were checked on the way",
        "functional.py",
        "batch = replace(batch, check_rows=tables.on_device.rows_per_table)",
        "batch = replace(batch, check_rows=None)",
        "check.indices.fused",
    ),
    # Precision of one operation.
    Fault(
        "the mean multiplies by a reciprocal",
        "backward/rows.py",
        "grads = tl.div_rn(grads, tl.broadcast_to(count[:, None], [GATHER, BLOCK_D]))",
        "grads *= (1.0 / count)[:, None]",
        "backward.short_run",
        (2, 3, 7),  # 7 is the least count whose reciprocal, times a multiple of it, does not round back
    ),
    Fault(
        "a relative error of 2 ** -18 in one lookup of the forward",
        "forward/pooled.py",
        "total += tl.sum(rows, axis=0)",
        "total += tl.sum(tl.where((at == first)[:, None], rows * (1.0 + 2.0**-18), rows), axis=0)",
        "forward.pooled",
    ),
    Fault(
        "a relative error of 2 ** -18 in one lookup of the backward",
        "backward/rows.py",
        "total += tl.sum(grads, axis=0)",
        "total += tl.sum(tl.where((at == first)[:, None], grads * (1.0 + 2.0**-18), grads), axis=0)",
        "backward.short_run",
    ),
)
