"""Gradients under loss scaling (`torch.amp.GradScaler`): the step is taken with them unscaled, or not at all.

The step is inside the backward, where no scaler sees the gradients of the tables. So the tables know the scale: they
divide by it in fp32, where a gradient that only fits fp16 when scaled is not lost, and leave the whole step out if any
element is infinite or NaN. That is decided on the device, by taking the lookups away, so nothing synchronises.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tbe_kernels.batch import LookupBatch
from tbe_kernels.tables import EmbeddingTables


def checked_scale(scale: object, weights: Tensor) -> Tensor:
    """A view of the scale, so that it is followed when it is changed in place. Raises ValueError."""
    if not isinstance(scale, Tensor):
        raise ValueError(
            f"gradient_scale: expected None or a tensor of one fp32 number, got a {type(scale).__name__}: {scale!r}"
        )
    if scale.numel() != 1 or scale.dtype != torch.float32:
        raise ValueError(f"gradient_scale: expected one fp32 number, got shape {tuple(scale.shape)} of {scale.dtype}")
    if scale.device != weights.device:
        raise ValueError(f"gradient_scale: expected device {weights.device}, where the weights are, got {scale.device}")
    return scale.detach().view(())


def as_unscaled(
    tables: EmbeddingTables, grad_output: Tensor, batch: LookupBatch, row_counts: Tensor | None, plan: Any
) -> tuple[Tensor, LookupBatch, Tensor | None, Any]:
    """What a step that has been counted works on, with a scale: gradients without it, and no lookup at all (nor the
    count) where one of them is not finite. A plan made before that is known is made again: None."""
    if tables.gradient_scale is None:
        return grad_output, batch, row_counts, plan
    grad_output, keep = unscaled(tables.gradient_scale, grad_output)
    tables.optimizer.iter += keep.to(torch.int64) - 1
    batch = replace(batch, indices=torch.where(keep, batch.indices, -1))
    return grad_output, batch, None if row_counts is None else row_counts * keep, None


def to_be_clamped(tables: EmbeddingTables, grad_output: Tensor) -> tuple[Tensor, Tensor | None]:
    """Gradients that per-sample weights learn from, and what theirs have to be multiplied with (None: with nothing).

    They stay scaled, as who set the scale expects; but a bound is one of gradients without it. The factor is NaN where
    the scaler has to leave a step out, which clamping would hide from it.
    """
    scale = tables.gradient_scale
    if scale is None or tables.max_gradient is None:
        return grad_output, None
    grad_output, keep = unscaled(scale, grad_output)
    return grad_output, torch.where(keep, scale, torch.nan)


def scaled_again(gradient: Tensor, factor: Tensor | None) -> Tensor:
    """The gradient times what `to_be_clamped` gave."""
    return gradient if factor is None else gradient * factor


def unscaled(scale: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 gradients in the shape of `grad_output`, and whether to keep them: bool `[]`, if all are finite."""
    gradient = grad_output.to(torch.float32) / scale
    return gradient, torch.isfinite(gradient).all()
