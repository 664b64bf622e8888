"""Faults in how gradients are folded: runs, chunks, merges, workspaces, plans, what one batch leaves to the next."""

from __future__ import annotations

from tests.mutants.fault import Fault
from tests.mutants.plant import Edit

BACKWARD_FAULTS = (
    # Duplicates, runs, shared tables.
    Fault(
        "lanes beyond D keep 0 times an infinite per-sample weight",
        "backward/rows.py",
        "total = tl.where(inside, total, 0.0)",
        "total = total + 0.0",
        "backward.short_run",
        optimizers=("EXACT_ROWWISE_ADAGRAD", "PARTIAL_ROWWISE_ADAM", "LARS_SGD"),
    ),
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
        "tl.load(lookups.D_offsets + feature, mask=live, other=0)",
        "tl.load(lookups.D_offsets + tl.min(tl.where(live, feature, 9999), axis=0))",
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
    # Gradient layout.
    Fault(
        "gradients are taken for contiguous",
        "functional.py",
        "grad_output = grad_output.contiguous()",
        "grad_output = grad_output",
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
    # Fused long runs.
    Fault(
        "the counter of a fused run is not reset",
        "backward/long_run_fused.py",
        "            tl.store(counters + owner, 0)\n",
        "",
        "backward.long_run.fused",
        (2, 3, 8),  # two steps of two lookups of one row, at least
    ),
    Fault(
        "the sums of a fused run are not cleared",
        "backward/long_run_fused.py",
        "            tl.store(sums, tl.zeros([BLOCK_D], dtype=tl.float32), mask=inside)\n",
        "",
        "backward.long_run.fused",
    ),
    Fault(
        "a fused run is stepped by its first chunk",
        "backward/long_run_fused.py",
        "if before == chunks - 1:",
        "if before == 0:",
        "backward.long_run.fused",
    ),
    # The hoisted transpose.
    Fault(
        "the last forward's plan for every backward",
        "functional.py",
        "        ctx.plan = plan_backward",
        "        ctx.plan = tables.plan = plan_backward",
        "backward.plan.hoisted",
        more=(
            Edit(
                "functional.py",
                "partial(fold_and_step, tables, batch, grad_output, counts, ctx.plan, row_counts)",
                # Of batches of as many lookups; others would crash.
                "partial(fold_and_step, tables, batch, grad_output, counts, tables.plan if tables.plan and ctx.plan"
                " and len(tables.plan.keys) == len(ctx.plan.keys) else ctx.plan, row_counts)",
            ),
            Edit("tables.py", "    on_device: DeviceLayout", "    plan: object = None\n    on_device: DeviceLayout"),
        ),
    ),
    Fault(
        "per-sample weights in the order of another sort",
        "backward/operands.py",
        "psw[plan.order]",
        "psw[psw.numel() - 1 - batch.indices.flip(0).sort(stable=True)[1]]",
        "backward.plan",
    ),
    Fault(
        "the first feature's wish for psw gradients for all",
        "backward/psw_gradient.py",
        "live &= tl.load(feature_requires_grad + feature) != 0",
        "live &= tl.load(feature_requires_grad) != 0",
        "backward.psw_gradient",
    ),
)
