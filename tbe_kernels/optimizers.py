"""One update rule an optimizer, shared by every backward route.

A rule gets one whole row, already widened to fp32, and its complete gradient; it updates the state in place and returns
the new weights. Which route summed the gradient, it cannot tell. A new optimizer is one rule and one `OptimizerRow`.

Formulas: SEMANTICS as in the README; square roots and divisions are the correctly rounded ones, so that a GPU and the
interpreter agree. Hyper-parameters are read from a device tensor, so a captured CUDA graph follows a change.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.spec import TableLayout, WeightDecayMode

L2 = tl.constexpr(WeightDecayMode.L2.value)
DECOUPLE = tl.constexpr(WeightDecayMode.DECOUPLE.value)


@triton.jit
def exact_sgd(weight, grad, row, elements, mask, D, rows, WEIGHT_DECAY: tl.constexpr):
    """w -= lr * g"""
    return weight - tl.load(rows.hyper) * grad


@triton.jit
def exact_rowwise_adagrad(weight, grad, row, elements, mask, D, rows, WEIGHT_DECAY: tl.constexpr):
    """m += mean(g'^2), one number a row; w = c * w - lr / (sqrt(m) + eps) * g"""
    learning_rate = tl.load(rows.hyper)
    decay = tl.load(rows.hyper + 2)
    before = tl.load(rows.momentum1 + row)
    decayed = grad
    if WEIGHT_DECAY == L2:
        decayed = grad + decay * weight
    # Lanes beyond D hold zeros in `grad` and in `weight`, so they add nothing.
    mean_square = tl.div_rn(tl.sum(decayed * decayed, axis=0), D.to(tl.float32))
    sum_of_squares = before + mean_square
    # Every warp of the program loads the row's one number and one of them stores it: all of them have to load first.
    tl.debug_barrier()
    tl.store(rows.momentum1 + row, sum_of_squares)
    multiplier = tl.div_rn(learning_rate, tl.sqrt_rn(sum_of_squares) + tl.load(rows.hyper + 1))
    kept = weight
    if WEIGHT_DECAY == L2:
        kept = (1.0 - multiplier * decay) * weight
    if WEIGHT_DECAY == DECOUPLE:
        kept = (1.0 - learning_rate * decay) * weight
    return kept - multiplier * grad


@triton.jit
def exact_adagrad(weight, grad, row, elements, mask, D, rows, WEIGHT_DECAY: tl.constexpr):
    """m += g^2; w -= lr * g / (sqrt(m) + eps)"""
    sum_of_squares = tl.load(rows.momentum1 + elements, mask=mask, other=0.0) + grad * grad
    tl.store(rows.momentum1 + elements, sum_of_squares, mask=mask)
    # Lanes beyond D divide by one, so that eps = 0 makes no NaN there.
    root = tl.where(mask, tl.sqrt_rn(sum_of_squares) + tl.load(rows.hyper + 1), 1.0)
    return weight - tl.div_rn(tl.load(rows.hyper) * grad, root)


class OptimType(enum.Enum):
    """The optimizers, named as in FBGEMM."""

    EXACT_SGD = "EXACT_SGD"
    EXACT_ROWWISE_ADAGRAD = "EXACT_ROWWISE_ADAGRAD"
    EXACT_ADAGRAD = "EXACT_ADAGRAD"


@dataclass(frozen=True)
class OptimizerRow:
    """One optimizer: its rule, the shape of its state and the hyper-parameters it reads.

    `momentum1`, `momentum2`: "row" (one fp32 a row), "element" (one a weight) or None. `hyperparameters`: the names in
    the order of the device tensor, behind the learning rate. `decay_modes`: the weight-decay modes it knows.
    """

    rule: Any  # a JITFunction
    momentum1: str | None = None
    momentum2: str | None = None
    hyperparameters: tuple[str, ...] = ()
    decay_modes: tuple[WeightDecayMode, ...] = (WeightDecayMode.NONE,)


OPTIMIZERS: Mapping[OptimType, OptimizerRow] = {
    OptimType.EXACT_SGD: OptimizerRow(exact_sgd),
    OptimType.EXACT_ROWWISE_ADAGRAD: OptimizerRow(
        exact_rowwise_adagrad,
        momentum1="row",
        hyperparameters=("eps", "weight_decay"),
        decay_modes=(WeightDecayMode.NONE, WeightDecayMode.L2, WeightDecayMode.DECOUPLE),
    ),
    OptimType.EXACT_ADAGRAD: OptimizerRow(exact_adagrad, momentum1="element", hyperparameters=("eps",)),
}

#: Hyper-parameters and their defaults, which are FBGEMM's.
DEFAULTS: Mapping[str, float] = {"eps": 1e-8, "weight_decay": 0.0}


class OptimizerState:
    """An optimizer at work on one set of tables: its state and hyper-parameters, all on the device.

    `hyper` fp32 `[1 + hyper-parameters]`, the learning rate first. `momentum1`, `momentum2`: fp32 `[total rows]` or
    `[total elements]`, zeros at first, or None. `iter`: int64 `[1]`, the number of backward calls so far.

    Raises ValueError for a hyper-parameter that is negative or not finite, that the optimizer does not read, or a
    weight-decay mode that it does not know.
    """

    def __init__(
        self,
        optimizer: OptimType,
        layout: TableLayout,
        device: torch.device,
        learning_rate: float,
        weight_decay_mode: WeightDecayMode,
        hyperparameters: Mapping[str, float],
    ) -> None:
        if not isinstance(optimizer, OptimType):
            raise ValueError(f"optimizer: expected one of {', '.join(o.name for o in OptimType)}, got {optimizer!r}")
        self.optimizer = optimizer
        self.row = OPTIMIZERS[optimizer]
        if weight_decay_mode not in self.row.decay_modes:
            known = ", ".join(m.name for m in self.row.decay_modes)
            raise ValueError(f"weight_decay_mode: {optimizer.name} knows {known}, got {weight_decay_mode!r}")
        for name, value in hyperparameters.items():
            if name not in self.row.hyperparameters and value != DEFAULTS[name]:
                raise ValueError(f"{name}: {optimizer.name} does not read it, got {value!r}")
            _check_hyperparameter(name, value)
        if hyperparameters.get("weight_decay", 0.0) != 0.0 and weight_decay_mode is WeightDecayMode.NONE:
            raise ValueError(
                f"weight_decay: {hyperparameters['weight_decay']!r} has no effect with weight_decay_mode NONE; "
                "choose L2 or DECOUPLE"
            )
        self.weight_decay_mode = weight_decay_mode
        values = [hyperparameters.get(name, DEFAULTS[name]) for name in self.row.hyperparameters]
        self.hyper = torch.tensor([0.0, *values], dtype=torch.float32, device=device)
        self.set_learning_rate(learning_rate)
        size = {"row": layout.total_rows, "element": layout.weights_offsets[-1]}

        def state(kind: str | None) -> Tensor | None:
            return None if kind is None else torch.zeros(size[kind], dtype=torch.float32, device=device)

        self.momentum1 = state(self.row.momentum1)
        self.momentum2 = state(self.row.momentum2)
        self.iter = torch.zeros(1, dtype=torch.int64, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a training run has to keep, by name."""
        named = {"iter": self.iter, "hyper": self.hyper, "momentum1": self.momentum1, "momentum2": self.momentum2}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of every later backward, without synchronising. Raises ValueError if it is negative."""
        _check_hyperparameter("learning_rate", learning_rate)
        self.hyper[:1].fill_(learning_rate)


def _check_hyperparameter(name: str, value: float) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name}: expected a finite number from 0 up, got {value!r}")
