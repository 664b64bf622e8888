"""Faults in optimizers with moments and norms, in gradient clipping and in what the optimizer NONE leaves."""

from __future__ import annotations

from tests.mutants.fault import Fault
from tests.mutants.plant import Edit

RULES = "rules.py"
ROWS = "backward/rows.py"

MOMENTS = ("ADAM", "PARTIAL_ROWWISE_ADAM", "LAMB", "PARTIAL_ROWWISE_LAMB")
LAMBS = ("LAMB", "PARTIAL_ROWWISE_LAMB")

OPTIMIZER_FAULTS = (
    # Moments.
    Fault(
        "the steps of a row are counted, not those of all",
        RULES,
        "    beta1, beta2 = tl.load(rows.hyper + 1), tl.load(rows.hyper + 2)\n",
        "    beta1, beta2 = tl.load(rows.hyper + 1), tl.load(rows.hyper + 2)\n"
        "    steps = tl.load(rows.iteration + row) + 1\n"
        "    tl.store(rows.iteration + row, steps)\n"
        "    power1 = tl.exp2(steps.to(tl.float64) * tl.log2(beta1.to(tl.float64)))\n"
        "    power2 = tl.exp2(steps.to(tl.float64) * tl.log2(beta2.to(tl.float64)))\n",
        "backward.plan",
        more=(
            Edit(RULES, "tl.load(rows.bias_corrections + 1)", "(1.0 - power2).to(tl.float32)"),
            Edit(RULES, "tl.load(rows.bias_corrections))", "(1.0 - power1).to(tl.float32))"),
            Edit("backward/operands.py", "iteration=optimizer.iter,", "iteration=optimizer.row_steps,"),
            Edit(
                "optimizers.py",
                "        self.momentum2 = state(self.row.momentum2)\n",
                "        self.momentum2 = state(self.row.momentum2)\n"
                "        self.row_steps = torch.zeros(layout.total_rows, dtype=torch.int64, device=device)\n",
            ),
        ),
        optimizers=MOMENTS,
    ),
    Fault(
        "the first moment is not corrected",
        RULES,
        "tl.div_rn(first, tl.load(rows.bias_corrections))",
        "first",
        "backward.short_run",
        optimizers=MOMENTS,
    ),
    Fault(
        "the second moment is not corrected",
        RULES,
        "tl.div_rn(second, tl.load(rows.bias_corrections + 1))",
        "second",
        "backward.short_run",
        optimizers=MOMENTS,
    ),
    Fault(
        "bias corrections in fp32",
        "optimizers.py",
        "torch.cat(self._betas).to(torch.float64)",
        "torch.cat(self._betas)",
        "backward.plan",
        optimizers=MOMENTS,
    ),
    Fault(
        "untouched rows decay",
        "functional.py",
        "    tables.optimizer.advance()\n",
        "    tables.optimizer.advance()\n"
        "    if tables.optimizer.bias_corrections is not None:\n"
        "        tables.weights.data.mul_(1 - float(tables.optimizer.hyper[0] * tables.optimizer.hyper[4]))\n",
        "backward.short_run",
        optimizers=MOMENTS,
    ),
    Fault(
        "the moments of another table's elements",
        ROWS,
        "state_row, elements, inside",
        "state_row, elements - tl.load(rows.weights_offsets + feature), inside",
        "backward.short_run",
        optimizers=MOMENTS,
    ),
    # Norms and means.
    Fault(
        "the mean over the padded block",
        RULES,
        "tl.div_rn(tl.sum(grad * grad, axis=0), D.to(tl.float32))",
        "tl.div_rn(tl.sum(grad * grad, axis=0), tl.full([], grad.shape[0], tl.float32))",
        "backward.short_run",
    ),
    Fault(
        "lanes beyond D divide by zero",
        RULES,
        "tl.div_rn(first, tl.load(rows.bias_corrections)), tl.where(mask, root, 1.0))",
        "tl.div_rn(first, tl.load(rows.bias_corrections)), root)",
        "backward.short_run",
        optimizers=LAMBS,
    ),
    Fault(
        "a row of zeros has LAMB's ratio 0",
        RULES,
        "unscaled = (weight_norm == 0) | (norm == 0)",
        "unscaled = norm == 0",
        "backward.short_run",
        optimizers=LAMBS,
    ),
    Fault(
        "LAMB divides by a norm of zero",
        RULES,
        "tl.div_rn(weight_norm, tl.where(unscaled, 1.0, norm))",
        "tl.div_rn(weight_norm, norm)",
        "backward.short_run",
        more=(Edit(RULES, "unscaled = (weight_norm == 0) | (norm == 0)", "unscaled = weight_norm == 0"),),
        optimizers=LAMBS,
    ),
    Fault(
        "LARS divides zero by zero",
        RULES,
        "tl.where(divisor == 0, 1.0, divisor)",
        "divisor",
        "backward.short_run",
        more=(Edit(RULES, "    rate = tl.where(divisor == 0, 0.0, rate)\n", ""),),
        optimizers=("LARS_SGD",),
    ),
    Fault(
        "LARS leaves the decay out of its divisor",
        RULES,
        "divisor = norm_of(grad) + decay * weight_norm",
        "divisor = norm_of(grad)",
        "backward.short_run",
        optimizers=("LARS_SGD",),
    ),
    Fault(
        "the norm of a row is bounded before the step",
        RULES,
        "stepped = within_norm(stepped, tl.load(rows.max_norm))",
        "stepped = within_norm(kept, tl.load(rows.max_norm)) - multiplier * grad",
        "backward.short_run",
        optimizers=("EXACT_ROWWISE_ADAGRAD",),
    ),
    # Gradient clipping.
    Fault(
        "gradients are clipped after their per-sample weights",
        ROWS,
        """        grads = clipped(grads, lookups.max_gradient)
        if lookups.per_sample_weights is not None:
            grads *= tl.load(lookups.per_sample_weights + at, mask=live, other=0.0)[:, None]
""",
        """        if lookups.per_sample_weights is not None:
            grads *= tl.load(lookups.per_sample_weights + at, mask=live, other=0.0)[:, None]
        grads = clipped(grads, lookups.max_gradient)
""",
        "backward.plan",
        case={"pooling_mode": ("SUM",), "clips": (True,)},
    ),
    Fault(
        "the sum of a run's gradients is clipped",
        ROWS,
        "        grads = clipped(grads, lookups.max_gradient)\n",
        "",
        "backward.short_run",
        more=(Edit(ROWS, "    return total\n", "    return clipped(total, lookups.max_gradient)\n"),),
    ),
    Fault(
        "the psw gradient is of gradients not clipped",
        "backward/psw_gradient.py",
        "clipped(grads, max_gradient).to(ACCUMULATOR)",
        "grads.to(ACCUMULATOR)",
        "backward.psw_gradient",
    ),
    Fault(
        "clipping turns NaN into the bound",
        ROWS,
        "tl.where(grads > max_gradient, max_gradient, tl.where(grads < -max_gradient, -max_gradient, grads))",
        "tl.where(grads < max_gradient, tl.where(grads < -max_gradient, -max_gradient, grads), max_gradient)",
        "backward.short_run",
    ),
    # NONE.
    Fault(
        "NONE names the sort key of a row",
        ROWS,
        "weight = RULE(weight, grad, state_row,",
        "weight = RULE(weight, grad, state_row if rows.row_gradients is None else key.to(tl.int64),",
        "backward.plan",
        optimizers=("NONE",),
    ),
    Fault(
        "NONE leaves garbage beyond D",
        "backward/operands.py",
        "gradients=torch.zeros((most,",
        "gradients=torch.empty((most,",
        "backward.plan",
        optimizers=("NONE",),
    ),
    Fault(
        "NONE counts the pruned ids as a row",
        "functional.py",
        "no_row_gradients(tables, N, plan.run_bounds[-1:])",
        "no_row_gradients(tables, N, (plan.run_starts < N).sum().reshape(1))",
        "backward.plan",
        optimizers=("NONE",),
    ),
    Fault(
        "NONE numbers the runs of a long merge among themselves",
        "backward/long_run.py",
        "        run = tl.load(long_runs.runs + owner)\n        first = tl.load(run_starts + run)\n",
        "        run = owner\n        first = tl.load(run_starts + tl.load(long_runs.runs + owner))\n",
        "backward.long_run.ordered",
        optimizers=("NONE",),
    ),
)
