"""Faults planted by hand, at least one for each class of faults that embedding kernels really had.

Each names the kernel path whose cases have to find it, and how small the case has to shrink: (tables, bags, lookups).
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.plant import Edit

SMALL = (2, 3, 6)


@dataclass(frozen=True)
class Fault:
    """One fault: in `file`, `old` (there once) becomes `new`, and `more` edits. `path`: whose strategy finds it."""

    name: str
    file: str
    old: str
    new: str
    path: str
    size: tuple[int, int, int] = SMALL
    more: tuple[Edit, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Everything that `plant` has to change."""
        return (Edit(self.file, self.old, self.new), *self.more)


FAULTS = (
    # Nothing to do: empty bags, pruned bags.
    Fault(
        "mean of an empty bag divides by zero",
        "forward/generic.py",
        "divisor = tl.maximum(count, 1)",
        "divisor = count",
        "forward.pooled",
    ),
    Fault(
        "an empty bag is not written",
        "forward/generic.py",
        "tl.store(out_row + columns, total.to(output.dtype.element_ty), mask=inside)",
        "if first < last:\n"
        "                    tl.store(out_row + columns, total.to(output.dtype.element_ty), mask=inside)",
        "forward.pooled",
    ),
    # Duplicates, runs, shared tables.
    Fault(
        "a run of exactly the threshold is nobody's",
        "backward/plan.py",
        "(lengths >= config.long_run_threshold)",
        "(lengths > config.long_run_threshold)",
        "backward.long_run.atomic",
    ),
    Fault(
        "a run of exactly the threshold is stepped twice",
        "backward/short_run.py",
        "if last - first < threshold:",
        "if last - first <= threshold:",
        "backward.short_run",
    ),
    Fault(
        "the last, partial chunk is lost",
        "backward/plan.py",
        "(lengths[runs] + (config.chunk_size - 1)) // config.chunk_size",
        "lengths[runs] // config.chunk_size",
        "backward.long_run.ordered",
    ),
    Fault(
        "chunks overlap by one lookup",
        "backward/chunks.py",
        "last = tl.minimum(first + chunk_size, end)",
        "last = tl.minimum(first + chunk_size + 1, end)",
        "backward.long_run.atomic",
    ),
    Fault(
        "the first feature's columns for the whole run",
        "backward/rows.py",
        "start = sample * total_D + tl.load(lookups.D_offsets + feature, mask=live, other=0)",
        "start = sample * total_D + tl.load(lookups.D_offsets + tl.min(tl.where(live, feature, 9999), axis=0))",
        "backward.short_run",
    ),
    Fault(
        "feature for table in the row counts",
        "spec.py",
        "rows_per_table=tensor([self.rows[t] for t in per_feature], torch.int64)",
        "rows_per_table=tensor([self.rows[f % len(self.rows)] for f in range(len(per_feature))], torch.int64)",
        "check.indices",
    ),
    Fault(
        "one step per lookup",
        "backward/plan.py",
        "    torch.ne(keys[1:], keys[:-1], out=starts_run[1:])\n",
        "",
        "backward.plan",
    ),
    # Accumulation and store in low precision.
    Fault(
        "rows are added in their own type",
        "forward/generic.py",
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
        "psw gradient from the rows after the update",
        "functional.py",
        """        psw_gradient = None
        if ctx.needs_input_grad[1]:
""",
        """        psw_gradient = None
        if ctx.needs_input_grad[0]:
            fold_and_step(tables, batch, grad_output, counts, ctx.plan)
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
    # Gradient layout.
    Fault(
        "gradients are taken for contiguous",
        "functional.py",
        "grad_output = grad_output.contiguous()",
        "grad_output = grad_output",
        "backward.plan",
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
        "forward/generic.py",
        "count += tl.sum(live.to(tl.int32), axis=0)",
        "count += tl.sum((at < last).to(tl.int32), axis=0)",
        "forward.pooled",
    ),
    Fault(
        "a pruned id is read",
        "forward/generic.py",
        "live = index >= 0  # -1 is pruned",
        "live = at < last",
        "forward.pooled",
    ),
    # Large D, grid limits, dropped tails.
    Fault(
        "the last column tile is lost",
        "forward/generic.py",
        "for tile in range(0, D, BLOCK_D):",
        "for tile in range(0, tl.maximum(D - D % BLOCK_D, BLOCK_D), BLOCK_D):",
        "forward.pooled",
    ),
    Fault(
        "the last group of bags has no program",
        "forward/generic.py",
        "groups = -(-slots // config.bags_per_program)",
        "groups = max(1, slots // config.bags_per_program)",
        "forward.pooled",
        (2, 4, 6),
        (
            Edit(
                "forward/generic.py",
                "tl.num_programs(0) * bags_per_program)",
                "slots)",
            ),
        ),
    ),
    Fault(
        "a column beyond D is written",
        "backward/rows.py",
        "tl.store(rows.weights + elements, weight.to(rows.weights.dtype.element_ty), mask=inside)",
        "tl.store(rows.weights + elements, weight.to(rows.weights.dtype.element_ty), mask=columns <= D)",
        "backward.short_run",
    ),
    # Optimizer semantics.
    Fault(
        "eps inside the root",
        "optimizers.py",
        "tl.sqrt_rn(sum_of_squares) + tl.load(rows.hyper + 1))\n    kept",
        "tl.sqrt_rn(sum_of_squares + tl.load(rows.hyper + 1)))\n    kept",
        "backward.short_run",
    ),
    Fault(
        "the state of another table's row",
        "backward/rows.py",
        "state_row = tl.load(rows.hash_size_cumsum + feature) + row",
        "state_row = row",
        "backward.short_run",
    ),
    Fault(
        "state in the type of the weights",
        "optimizers.py",
        "    tl.store(rows.momentum1 + row, sum_of_squares)\n",
        "    tl.store(rows.momentum1 + row, sum_of_squares.to(rows.weights.dtype.element_ty).to(tl.float32))\n",
        "backward.short_run",
    ),
    Fault(
        "the learning rate never changes",
        "optimizers.py",
        "self.hyper[:1].fill_(learning_rate)",
        "self.hyper[:1].add_(learning_rate * (self.hyper[0] == 0))",
        "backward.plan",
    ),
    # Atomics, workspaces.
    Fault(
        "the workspace is not cleared",
        "backward/long_run.py",
        "workspace = torch.zeros(",
        "workspace = torch.empty(",
        "backward.long_run.atomic",
    ),
    Fault(
        "the workspace row of the neighbour",
        "backward/long_run.py",
        "tl.load(workspace + owner * stride + columns",
        "tl.load(workspace + tl.maximum(owner - 1, 0) * stride + columns",
        "backward.long_run.atomic",
    ),
    # Masks, garbage lanes.
    Fault(
        "a masked load without other",
        "backward/rows.py",
        "mask=live[:, None] & inside[None, :], other=0.0\n",
        "mask=live[:, None] & inside[None, :]\n",
        "backward.short_run",
    ),
    # State: two forwards before two backwards.
    Fault(
        "psw gradient from the rows of the forward",
        "functional.py",
        "        ctx.tables, ctx.bags, ctx.check_rows = tables, batch.bags, batch.check_rows\n",
        "        ctx.tables, ctx.bags, ctx.check_rows = tables, batch.bags, batch.check_rows\n"
        "        ctx.stale = weights.detach().clone()\n",
        "backward.psw_gradient",
        more=(
            Edit(
                "functional.py",
                "gradient_of_per_sample_weights(tables, batch, grad_output)",
                "gradient_of_per_sample_weights(replace(tables, weights=ctx.stale), batch, grad_output)",
            ),
        ),
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
        "forward/generic.py",
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
