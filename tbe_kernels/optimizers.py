"""The optimizers: each a rule (`tbe_kernels.rules`) and one row here, and the state of one at work.

A new optimizer is one rule and one `OptimizerRow`. Hyper-parameters and everything that changes from step to step are
read from device tensors, so a captured CUDA graph follows them.
"""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Mapping
from ctypes import c_float
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from tbe_kernels import rules
from tbe_kernels.spec import TableLayout, WeightDecayMode


class OptimType(enum.Enum):
    """The optimizers, named as in FBGEMM."""

    EXACT_SGD = "EXACT_SGD"
    EXACT_ROWWISE_ADAGRAD = "EXACT_ROWWISE_ADAGRAD"
    EXACT_ADAGRAD = "EXACT_ADAGRAD"
    ADAM = "ADAM"
    PARTIAL_ROWWISE_ADAM = "PARTIAL_ROWWISE_ADAM"
    LAMB = "LAMB"
    PARTIAL_ROWWISE_LAMB = "PARTIAL_ROWWISE_LAMB"
    LARS_SGD = "LARS_SGD"
    NONE = "NONE"  # no update: see `TableBatchedEmbeddingBags.row_gradients`


@dataclass(frozen=True)
class OptimizerRow:
    """One optimizer: its rule, the shape of its state and the hyper-parameters it reads.

    `momentum1`, `momentum2`: "row" (one fp32 a row), "element" (one a weight) or None. `hyperparameters`: the names in
    the order of the device tensor, behind the learning rate. `decay_modes`: the weight-decay modes it knows; one that
    knows only NONE and reads `weight_decay` has it in its formula. `steps`: whether it changes the row; one that does
    not leaves the row's gradient to the caller. `state_names`: what `torch.optim` calls `momentum1` and `momentum2`.
    """

    rule: Any  # a JITFunction
    momentum1: str | None = None
    momentum2: str | None = None
    hyperparameters: tuple[str, ...] = ()
    decay_modes: tuple[WeightDecayMode, ...] = (WeightDecayMode.NONE,)
    steps: bool = True
    state_names: tuple[str, ...] = ()


#: As in `torch.optim.Adam` and `torch.optim.Adagrad`.
_AVERAGES, _SUM = ("exp_avg", "exp_avg_sq"), ("sum",)
#: ADAM and LAMB share their direction, which reads these by place.
_MOMENTS = ("beta1", "beta2", "eps", "weight_decay")

OPTIMIZERS: Mapping[OptimType, OptimizerRow] = {
    OptimType.EXACT_SGD: OptimizerRow(rules.exact_sgd),
    OptimType.EXACT_ROWWISE_ADAGRAD: OptimizerRow(
        rules.exact_rowwise_adagrad,
        momentum1="row",
        hyperparameters=("eps", "weight_decay", "max_norm"),
        decay_modes=(WeightDecayMode.NONE, WeightDecayMode.L2, WeightDecayMode.DECOUPLE),
        state_names=_SUM,
    ),
    OptimType.EXACT_ADAGRAD: OptimizerRow(
        rules.exact_adagrad, momentum1="element", hyperparameters=("eps",), state_names=_SUM
    ),
    OptimType.ADAM: OptimizerRow(rules.adam, "element", "element", _MOMENTS, state_names=_AVERAGES),
    OptimType.PARTIAL_ROWWISE_ADAM: OptimizerRow(
        rules.partial_rowwise_adam, "element", "row", _MOMENTS, state_names=_AVERAGES
    ),
    OptimType.LAMB: OptimizerRow(rules.lamb, "element", "element", _MOMENTS, state_names=_AVERAGES),
    OptimType.PARTIAL_ROWWISE_LAMB: OptimizerRow(
        rules.partial_rowwise_lamb, "element", "row", _MOMENTS, state_names=_AVERAGES
    ),
    OptimType.LARS_SGD: OptimizerRow(
        rules.lars_sgd,
        "element",
        hyperparameters=("eta", "momentum", "weight_decay"),
        state_names=("momentum_buffer",),
    ),
    OptimType.NONE: OptimizerRow(rules.no_step, steps=False),
}

#: Hyper-parameters and their defaults, which are those of `SplitTableBatchedEmbeddingBagsCodegen` in FBGEMM 1.8
#: (fbgemm_gpu/split_table_batched_embeddings_ops_training.py).
DEFAULTS: Mapping[str, float] = {
    "eps": 1e-8,
    "weight_decay": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "eta": 0.001,
    "momentum": 0.9,
    "max_norm": 0.0,
}
#: Hyper-parameters that have to be below 1.
FRACTIONS = ("beta1", "beta2")


class OptimizerState:
    """An optimizer at work on one set of tables: its state and hyper-parameters, all on the device.

    `hyper` fp32 `[1 + hyper-parameters]`, the learning rate first. `momentum1`, `momentum2`: fp32 `[total rows]` or
    `[total elements]`, zeros at first, or None. `iter`: int64 `[1]`, the number of backward calls so far.
    `bias_corrections`: fp32 `[2]`, `1 - beta1^iter` and `1 - beta2^iter`, or None. `max_norm`: fp32 `[1]`, a view into
    `hyper`, or None where rows may be of any length.

    Raises ValueError for a hyper-parameter that is out of its range or that the optimizer does not read, or a
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
            hint = "; it has weight_decay in its formula" if "weight_decay" in self.row.hyperparameters else ""
            raise ValueError(f"weight_decay_mode: {optimizer.name} knows {known}, got {weight_decay_mode!r}{hint}")
        self.weight_decay_mode = weight_decay_mode
        numbers = self._checked(hyperparameters)
        values = [numbers.get(name, DEFAULTS[name]) for name in self.row.hyperparameters]
        self.hyper = torch.tensor([0.0, *values], dtype=torch.float32, device=device)
        self.set_learning_rate(learning_rate)
        size = {"row": layout.total_rows, "element": layout.weights_offsets[-1]}

        def state(kind: str | None) -> Tensor | None:
            return None if kind is None else torch.zeros(size[kind], dtype=torch.float32, device=device)

        self.momentum1 = state(self.row.momentum1)
        self.momentum2 = state(self.row.momentum2)
        self.iter = torch.zeros(1, dtype=torch.int64, device=device)
        self.bounds_norms = numbers.get("max_norm", 0.0) > 0
        self._look_into_hyper()

    def _checked(self, hyperparameters: Mapping[str, object]) -> dict[str, float]:
        """The numbers of some hyper-parameters, the learning rate among them or not, all in range and all read."""
        numbers = {name: checked_number(name, value) for name, value in hyperparameters.items()}
        for name, number in numbers.items():
            if name != "learning_rate" and name not in DEFAULTS:
                known = ", ".join(("learning_rate", *self.row.hyperparameters))
                raise ValueError(f"{name}: expected a hyper-parameter of {self.optimizer.name}: {known}")
            if name in DEFAULTS and name not in self.row.hyperparameters and number != DEFAULTS[name]:
                raise ValueError(f"{name}: {self.optimizer.name} does not read it, got {number!r}")
        by_mode = self.row.decay_modes != (WeightDecayMode.NONE,)
        decay = numbers.get("weight_decay", 0.0)
        if by_mode and decay != 0.0 and self.weight_decay_mode is WeightDecayMode.NONE:
            raise ValueError(
                f"weight_decay: {decay!r} has no effect with weight_decay_mode NONE; choose L2 or DECOUPLE"
            )
        return numbers

    def _look_into_hyper(self) -> None:
        """Views of single hyper-parameters."""
        held = {name: self.hyper[n : n + 1] for n, name in enumerate(self.row.hyperparameters, start=1)}
        self._betas = [held[name] for name in FRACTIONS if name in held]
        with torch.inference_mode(False):  # every step writes into it, also where a lookup for inference comes first
            zeros = torch.zeros(2, dtype=torch.float32, device=self.hyper.device)
        self.bias_corrections = zeros if self._betas else None
        self.max_norm = held.get("max_norm") if self.bounds_norms else None

    def holding(self, tensors: Mapping[str, Tensor]) -> OptimizerState:
        """The same optimizer at work on other tensors, named as in `tensors()`."""
        other = copy.copy(self)
        for name, tensor in tensors.items():
            setattr(other, name, tensor)
        other._look_into_hyper()
        return other

    def read_norm_bound(self) -> None:
        """Bound norms from now on if the `hyper` of a checkpoint says so. Waits for the device."""
        if "max_norm" in self.row.hyperparameters and not self.hyper.is_meta:
            place = 1 + self.row.hyperparameters.index("max_norm")
            self.bounds_norms = bool(self.hyper[place] > 0)
            self._look_into_hyper()

    def advance(self) -> None:
        """Count one backward call; on the device, before its kernels run.

        The corrections are `1 - beta^iter` in fp64, from the fp32 betas, rounded once. Powers of different libraries
        differ in the last bits of fp64, so theirs in fp32 is the same number unless it lies that close to the middle
        between two; each backward works them out once instead of once a row.
        """
        self.iter += 1
        if self.bias_corrections is not None:
            powers = torch.pow(torch.cat(self._betas).to(torch.float64), self.iter)
            self.bias_corrections.copy_(1.0 - powers)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a training run has to keep, by name."""
        named = {"iter": self.iter, "hyper": self.hyper, "momentum1": self.momentum1, "momentum2": self.momentum2}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of every later backward, without synchronising. Raises ValueError if it is negative."""
        learning_rate = checked_number("learning_rate", learning_rate)
        self.hyper[:1].fill_(learning_rate)

    def set_hyperparameters(self, values: Mapping[str, object]) -> None:
        """Set some of them by name for every later backward, without synchronising: all of them or, if one does not
        fit, none. Raises ValueError as the constructor does, and for a name that is no hyper-parameter."""
        numbers = self._checked(values)
        for place, name in enumerate(("learning_rate", *self.row.hyperparameters)):
            if name in numbers:
                self.hyper[place : place + 1].fill_(numbers[name])
        if "max_norm" in numbers:
            self.bounds_norms = numbers["max_norm"] > 0
            self._look_into_hyper()


def checked_number(name: str, value: object) -> float:
    """The number that a hyper-parameter is given as: Python's or numpy's. Raises ValueError.

    A tensor is none: to look at its range would wait for the device.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name}: expected a number, got {value!r}, a {type(value).__name__}")
    number = float(value)
    as_fp32 = c_float(number).value  # the number that it will be
    if not math.isfinite(as_fp32) or number < 0:
        raise ValueError(f"{name}: expected a finite number from 0 up, got {value!r}")
    if name in FRACTIONS and as_fp32 >= 1:
        raise ValueError(f"{name}: expected a number from 0 to below 1, got {value!r}")
    return number
