"""The functional layer: one lookup over all tables, with the optimizer step folded into its backward.

`lookup` checks its arguments, runs the bounds check and the forward, and records an autograd node whose backward sums
the gradients of the batch by row and takes one optimizer step a row. `TableBatchedEmbeddingBags` is a module on top.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tbe_kernels.arguments import checked_batch
from tbe_kernels.backward.from_counts import step_from_counts
from tbe_kernels.backward.long_run import step_long_runs
from tbe_kernels.backward.long_run_fused import step_long_runs_fused
from tbe_kernels.backward.operands import lookups_in, no_row_gradients, rows_of
from tbe_kernels.backward.plan import BackwardPlan, plan_backward
from tbe_kernels.backward.psw_gradient import gradient_of_per_sample_weights
from tbe_kernels.backward.short_run import step_short_runs
from tbe_kernels.batch import LookupBatch
from tbe_kernels.forward.bounds_check import check_indices, check_offsets, raise_first_bad
from tbe_kernels.forward.pooled import pooled_forward
from tbe_kernels.forward.small_table import small_table_forward, takes_small_table
from tbe_kernels.forward.unpooled import unpooled_forward
from tbe_kernels.observe import took
from tbe_kernels.recompute import for_a_forward
from tbe_kernels.scaling import as_unscaled
from tbe_kernels.spec import BoundsCheckMode, PoolingMode
from tbe_kernels.tables import EmbeddingTables


def lookup(
    tables: EmbeddingTables,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    batch_size_per_feature_per_rank: Sequence[Sequence[int]] | None = None,
    feature_requires_grad: Tensor | None = None,
) -> Tensor:
    """Look up and pool one batch: `[B, total_D]` in `tables.output_dtype`; `[N, D]` with pooling mode NONE.

    `indices` int32 or int64 `[N]`; `offsets` int32 or int64 `[T * B + 1]`; `per_sample_weights` fp32 `[N]`, SUM only.
    `batch_size_per_feature_per_rank` makes a variable batch (VBE): feature f has `sum` of its list's samples, offsets
    one entry for each and one more, and the output is flat, ordered (rank, feature, sample, column).
    `feature_requires_grad` bool or int32 `[T]`: the per-sample weights of a feature with 0 get a gradient of 0.
    The backward of the result updates `tables.weights` and the optimizer's state, and leaves `weights.grad` None. It
    changes nothing, and counts no step, where the result gets no gradient or where only that of the per-sample weights
    is asked for (`torch.autograd.grad`). That gradient is of the rows as they are when the backward begins.
    A lookup made inside a backward is one made again, by `torch.utils.checkpoint`: `tbe_kernels.recompute`.

    Raises ValueError for an argument of the wrong type, shape, dtype or device, BoundsCheckError (an IndexError) in
    mode FATAL, and RuntimeError for tensors on a CPU in a process that does not interpret, and under torch.compile,
    which the module passes on to `tbe_kernels.operators`; nothing is changed then.
    """
    if torch.compiler.is_compiling():
        raise RuntimeError("lookup: no graph can hold its launches; call the module, or operators.lookup_in_graph")
    batch = checked_batch(
        tables, indices, offsets, per_sample_weights, batch_size_per_feature_per_rank, feature_requires_grad
    )
    trains = torch.is_grad_enabled() and tables.weights.requires_grad
    if not (trains and per_sample_weights is not None and per_sample_weights.requires_grad):
        return _Lookup.apply(tables.weights, per_sample_weights, tables, batch, trains, None)
    step = _Step()
    below = _Stepped.apply(tables.weights, tables, batch, step)
    return _Lookup.apply(below, per_sample_weights, tables, batch, trains, step)


class _Step:
    """What the backward of a lookup hands down to the node of its step."""

    def __init__(self) -> None:
        self.take: Callable[[], None] | None = None


class _Stepped(torch.autograd.Function):
    """The step of a lookup whose per-sample weights are trained too, as a node of its own below the lookup's.

    So the engine leaves the step out where only the gradient of the per-sample weights is asked for; and that gradient
    is taken before the step, because this node waits for what the lookup's backward hands down. Its result stands for
    the output's shape alone and holds nothing.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, tables: EmbeddingTables, batch: LookupBatch, step: _Step) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.step = step
        return torch.empty(1, dtype=tables.output_dtype, device=weights.device).expand(batch.bags.output_shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, handed: Tensor | None) -> tuple[None, ...]:
        take, ctx.step.take = ctx.step.take, None
        if handed is not None and take is not None:
            take()
        return None, None, None, None


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weights: Tensor,
        per_sample_weights: Tensor | None,
        tables: EmbeddingTables,
        given: LookupBatch,
        trains: bool,
        step: _Step | None,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        batch, output, counts, row_counts = forward(for_a_forward(tables), given, trains and _counts(tables))
        # The weights are not saved: a second backward must see the rows that the first one left.
        ctx.save_for_backward(batch.indices, batch.offsets, batch.per_sample_weights, counts, row_counts)
        ctx.tables, ctx.bags, ctx.check_rows = tables, batch.bags, batch.check_rows
        ctx.feature_requires_grad = batch.feature_requires_grad
        hoists = trains and row_counts is None and _hoists(tables, batch)
        ctx.plan = plan_backward(tables, batch) if hoists else None
        ctx.step = step
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_output is None:  # nobody asks for anything: no step, and no count of one
            return None, None, None, None, None, None
        indices, offsets, psw, counts, row_counts = ctx.saved_tensors
        tables: EmbeddingTables = ctx.tables
        batch = LookupBatch(indices, offsets, psw, ctx.bags, ctx.check_rows, ctx.feature_requires_grad)
        grad_output = grad_output.contiguous()
        psw_gradient = None
        if ctx.needs_input_grad[1]:
            psw_gradient = gradient_of_per_sample_weights(tables, batch, grad_output)
        if ctx.needs_input_grad[0] and tables.weights.requires_grad:  # not frozen since the forward
            take = partial(fold_and_step, tables, batch, grad_output, counts, ctx.plan, row_counts)
            if ctx.step is not None:
                ctx.step.take = take
                return grad_output, psw_gradient, None, None, None, None
            take()
        return None, psw_gradient, None, None, None, None


def forward(
    tables: EmbeddingTables, given: LookupBatch, keep_counts: bool = False
) -> tuple[LookupBatch, Tensor, Tensor | None, Tensor | None]:
    """Check and look up: the batch as later kernels may read it, the output, for MEAN the count of each bag, and with
    `keep_counts`, on the route that has them, how often each bag names each row."""
    batch, check = check_offsets(tables, given)
    fused = tables.config.fused_bounds_check
    if check is not None and not fused:
        batch = check_indices(tables, batch, check)
    if check is not None and not fused and tables.bounds_check_mode is BoundsCheckMode.FATAL:
        raise_first_bad(tables, check, given)
    counts = row_counts = None
    if takes_small_table(tables, batch):
        output, counts, row_counts = small_table_forward(tables, batch, check if fused else None, keep_counts)
    elif tables.pooling_mode is PoolingMode.NONE:
        output = unpooled_forward(tables, batch, check if fused else None)
    else:
        output, counts = pooled_forward(tables, batch, check if fused else None)
    if check is not None and fused:
        if tables.bounds_check_mode is BoundsCheckMode.FATAL:
            raise_first_bad(tables, check, given)
        batch = replace(batch, check_rows=tables.on_device.rows_per_table)
        took("check.indices.fused", batch.indices.numel)
    return batch, output, counts, row_counts


def fold_and_step(
    tables: EmbeddingTables,
    batch: LookupBatch,
    grad_output: Tensor,
    bag_counts: Tensor | None,
    plan: BackwardPlan | None = None,
    row_counts: Tensor | None = None,
) -> None:
    """The backward of one batch: sum its gradients by row, then one optimizer step on each touched row.

    `grad_output`: contiguous, in the shape of the output; `batch` and `bag_counts` as the forward left them; `plan`: if
    the forward made it; `row_counts`: if the forward kept them, which spares the sort. Updates weights and state in
    place, or leaves `tables.row_gradients`; never synchronises.
    """
    N, leaves_gradients = batch.indices.numel(), not tables.optimizer.row.steps
    merge = tables.config.merge  # raises now, before anything is changed, as this does:
    if leaves_gradients:
        _demand_one_a_backward(tables)
    tables.last_backward = torch._C._current_graph_task_id()
    tables.optimizer.advance()
    grad_output, batch, row_counts, plan = as_unscaled(tables, grad_output, batch, row_counts, plan)
    if N == 0:
        tables.row_gradients = no_row_gradients(tables, N) if leaves_gradients else None
        return
    if row_counts is not None:
        step_from_counts(tables, row_counts, grad_output)
        return
    if plan is None:
        plan = plan_backward(tables, batch)
    if leaves_gradients:
        tables.row_gradients = no_row_gradients(tables, N, plan.run_bounds[-1:])
    rows, lookups = rows_of(tables), lookups_in(tables, batch, plan, grad_output, bag_counts)
    step_short_runs(tables, batch, plan, rows, lookups)
    if merge == "fused":
        step_long_runs_fused(tables, batch, plan, rows, lookups)
    else:
        step_long_runs(tables, batch, plan, rows, lookups, merge)


def _demand_one_a_backward(tables: EmbeddingTables) -> None:
    """Raise RuntimeError if this backward has left row gradients of another lookup already, which would be lost."""
    backward = torch._C._current_graph_task_id()
    if backward != -1 and backward == tables.last_backward:
        raise RuntimeError(
            "row_gradients: with the optimizer NONE a backward leaves those of one lookup, but this one goes through "
            "two lookups of the same tables; call backward for each and take row_gradients in between"
        )


def _counts(tables: EmbeddingTables) -> bool:
    """Whether the counts of a small table make the backward: they hold no run whose gradient could be left."""
    return tables.config.backward_from_counts and tables.optimizer.row.steps


def _hoists(tables: EmbeddingTables, batch: LookupBatch) -> bool:
    return tables.config.hoist_transpose_to_forward and batch.indices.numel() > 0
