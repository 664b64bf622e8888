"""Gradients under loss scaling (`torch.amp.GradScaler`): the step is taken with them unscaled, or not at all.

The step is inside the backward, where no scaler sees the gradients of the tables. So the tables know the scale: they
divide by it in fp32, where a gradient that only fits fp16 when scaled is not lost, and leave the whole step out if any
element is infinite or NaN. That is decided on the device, by taking the lookups away, so nothing synchronises.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tbe_kernels.batch import LookupBatch


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


def unscaled(scale: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 gradients in the shape of `grad_output`, and whether to keep them: bool `[]`, if all are finite."""
    gradient = grad_output.to(torch.float32) / scale
    return gradient, torch.isfinite(gradient).all()


def without_lookups(batch: LookupBatch, row_counts: Tensor | None, keep: Tensor) -> tuple[LookupBatch, Tensor | None]:
    """The batch and the counts of its rows as they are, or with no lookup where `keep` is False: ids are pruned."""
    batch = replace(batch, indices=torch.where(keep, batch.indices, -1))
    return batch, None if row_counts is None else row_counts * keep


def scaled_again(scale: Tensor, gradient: Tensor, keep: Tensor) -> Tensor:
    """A gradient that was worked out unscaled, for who unscales it; NaN where the scaler has to leave a step out,
    which clamping might have hidden from it."""
    return gradient * torch.where(keep, scale, torch.nan)
