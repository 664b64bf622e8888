"""The functional layer: one lookup over all tables, with the optimizer step folded into its backward.

`lookup` checks its arguments, runs the bounds check and the forward, and records an autograd node whose backward sums
the gradients of the batch by row and takes one optimizer step a row. `TableBatchedEmbeddingBags` is a module on top.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from tbe_kernels.backward.batch import Lookups, Tables
from tbe_kernels.backward.long_run import step_long_runs
from tbe_kernels.backward.plan import plan_backward
from tbe_kernels.backward.psw_gradient import gradient_of_per_sample_weights
from tbe_kernels.backward.short_run import step_short_runs
from tbe_kernels.config import KernelConfig
from tbe_kernels.forward.bounds_check import check_bounds
from tbe_kernels.forward.generic import pooled_forward
from tbe_kernels.optimizers import OptimizerState
from tbe_kernels.spec import BoundsCheckMode, DeviceLayout, PoolingMode, TableLayout

INTEGERS = (torch.int32, torch.int64)


@dataclass
class EmbeddingTables:
    """A set of tables and all that a lookup needs to know of them.

    `weights`: flat `[total elements]`, fp32, fp16 or bf16. `bounds_check_warning`: int64 `[1]`, grows with every bad id
    or offset seen in mode WARNING.
    """

    weights: Tensor
    layout: TableLayout
    pooling_mode: PoolingMode
    output_dtype: torch.dtype
    bounds_check_mode: BoundsCheckMode
    optimizer: OptimizerState
    config: KernelConfig
    on_device: DeviceLayout = field(init=False)
    bounds_check_warning: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.on_device = self.layout.on(self.weights.device)
        self.bounds_check_warning = torch.zeros(1, dtype=torch.int64, device=self.weights.device)


def lookup(
    tables: EmbeddingTables, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None
) -> Tensor:
    """Look up and pool one batch: `[B, total_D]` in `tables.output_dtype`.

    `indices` int32 or int64 `[N]`; `offsets` int32 or int64 `[T * B + 1]`; `per_sample_weights` fp32 `[N]`, SUM only.
    The backward of the result updates `tables.weights` and the optimizer's state, and leaves `weights.grad` None.

    Raises ValueError for an argument of the wrong type, shape, dtype or device, BoundsCheckError (an IndexError) in
    mode FATAL, and RuntimeError for tensors on a CPU in a process that does not interpret; nothing is changed then.
    """
    batch_size = _check_arguments(tables, indices, offsets, per_sample_weights)
    return _Lookup.apply(tables.weights, per_sample_weights, tables, indices.detach(), offsets.detach(), batch_size)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weights: Tensor,
        per_sample_weights: Tensor | None,
        tables: EmbeddingTables,
        indices: Tensor,
        offsets: Tensor,
        batch_size: int,
    ) -> Tensor:
        indices, offsets = check_bounds(
            indices.contiguous(),
            offsets.contiguous(),
            batch_size,
            tables.bounds_check_mode,
            tables.bounds_check_warning,
            tables.layout,
            tables.on_device,
            tables.config,
        )
        psw = None if per_sample_weights is None else per_sample_weights.contiguous()
        output, counts = pooled_forward(
            weights,
            indices,
            offsets,
            psw,
            batch_size,
            tables.pooling_mode,
            tables.output_dtype,
            tables.layout,
            tables.on_device,
            tables.config,
        )
        # The weights are not saved: a second backward must see the rows that the first one left.
        ctx.save_for_backward(indices, offsets, psw, counts)
        ctx.tables, ctx.batch_size = tables, batch_size
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        indices, offsets, psw, counts = ctx.saved_tensors
        tables: EmbeddingTables = ctx.tables
        grad_output = grad_output.contiguous()
        psw_gradient = None
        if ctx.needs_input_grad[1]:
            psw_gradient = gradient_of_per_sample_weights(
                grad_output, tables.weights.detach(), indices, offsets, tables.layout, tables.on_device, tables.config
            )
        if ctx.needs_input_grad[0]:
            fold_and_step(tables, grad_output, indices, offsets, psw, counts)
        return None, psw_gradient, None, None, None, None


def fold_and_step(
    tables: EmbeddingTables,
    grad_output: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None,
    bag_counts: Tensor | None,
) -> None:
    """The backward of one batch: sum its gradients by row, then one optimizer step on each touched row.

    `grad_output` `[B, total_D]`, contiguous; ids and offsets as the bounds check left them; `bag_counts` int32
    `[T * B]` for MEAN. Updates weights and state in place; never synchronises.
    """
    optimizer, layout, on_device, config = tables.optimizer, tables.layout, tables.on_device, tables.config
    config.check_merge()  # now, before anything is changed
    optimizer.iter += 1
    if indices.numel() == 0:
        return
    batch_size = grad_output.shape[0]
    plan = plan_backward(indices, offsets, batch_size, layout, on_device, config)
    lookups = Lookups(
        grad_output=grad_output,
        keys=plan.keys,
        bags=plan.bags,
        per_sample_weights=None if per_sample_weights is None else per_sample_weights[plan.order],
        bag_counts=bag_counts,
        D_offsets=on_device.D_offsets,
    )
    rows = Tables(
        weights=tables.weights.detach(),
        momentum1=optimizer.momentum1,
        momentum2=optimizer.momentum2,
        hyper=optimizer.hyper,
        weights_offsets=on_device.weights_offsets,
        hash_size_cumsum=on_device.hash_size_cumsum,
        key_base=on_device.key_base,
    )
    step_short_runs(rows, lookups, plan, optimizer, layout, batch_size, config)
    step_long_runs(rows, lookups, plan, optimizer, layout, batch_size, config)


def _check_arguments(
    tables: EmbeddingTables, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None
) -> int:
    """The batch size, once every argument is known to fit; raises ValueError otherwise."""
    device, T = tables.weights.device, tables.layout.num_features
    if device.type == "cpu" and not triton.knobs.runtime.interpret:
        raise RuntimeError(
            "weights: kernels run on a cpu only in Triton's interpreter: set TRITON_INTERPRET=1 at the start"
        )
    for name, tensor in (("indices", indices), ("offsets", offsets), ("per_sample_weights", per_sample_weights)):
        if tensor is None and name == "per_sample_weights":
            continue
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name}: expected a tensor, got {type(tensor).__name__}")
        if tensor.dim() != 1:
            raise ValueError(f"{name}: expected one dimension, got shape {tuple(tensor.shape)}")
        if tensor.device != device:
            raise ValueError(f"{name}: expected device {device}, where the weights are, got {tensor.device}")
        expected = INTEGERS if name != "per_sample_weights" else (torch.float32,)
        if tensor.dtype not in expected:
            raise ValueError(f"{name}: expected {' or '.join(map(str, expected))}, got {tensor.dtype}")
    if offsets.numel() == 0 or (offsets.numel() - 1) % T != 0:
        raise ValueError(f"offsets: expected T * B + 1 entries with T = {T} features, got {offsets.numel()}")
    batch_size = (offsets.numel() - 1) // T
    if batch_size == 0 and indices.numel() > 0:
        raise ValueError(f"offsets: describe no bag (B = 0), but there are {indices.numel()} indices")
    if per_sample_weights is not None:
        if tables.pooling_mode is not PoolingMode.SUM:
            raise ValueError(f"per_sample_weights: only SUM takes them, the pooling mode is {tables.pooling_mode.name}")
        if per_sample_weights.numel() != indices.numel():
            raise ValueError(
                f"per_sample_weights: expected one for each of the {indices.numel()} indices, "
                f"got {per_sample_weights.numel()}"
            )
    return batch_size
