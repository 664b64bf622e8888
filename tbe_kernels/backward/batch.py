"""The pointers that backward kernels share, as named tuples: what a step updates, and what a run sums.

A kernel takes them whole (`tables.weights`, `lookups.bags`), so a route's signature shows only what is its own.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Tables(NamedTuple):
    """The rows that an optimizer step reads and writes, and where each feature's begin."""

    weights: Tensor  # flat, fp32, fp16 or bf16
    momentum1: Tensor | None  # fp32, by linear row or by element
    momentum2: Tensor | None
    hyper: Tensor  # fp32: learning rate, then the optimizer's hyper-parameters
    weights_offsets: Tensor  # int64 [T]
    hash_size_cumsum: Tensor  # int64 [T + 1]
    key_base: Tensor  # int64 [T]


class Lookups(NamedTuple):
    """The lookups of a batch, sorted by row, and the gradients that they bring."""

    grad_output: Tensor  # [B, total_D], contiguous
    keys: Tensor  # [N], sorted
    bags: Tensor  # [N]: feature * B + sample
    per_sample_weights: Tensor | None  # fp32 [N]
    bag_counts: Tensor | None  # int32 [T * B], in bag order: divide by it (MEAN)
    D_offsets: Tensor  # int32 [T + 1]
