"""A set of tables with all that a lookup needs to know of them: the object that every wrapper is handed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor

from tbe_kernels.config import KernelConfig
from tbe_kernels.description import describe
from tbe_kernels.optimizers import OptimizerState
from tbe_kernels.spec import BoundsCheckMode, DeviceLayout, PoolingMode, TableLayout


class RowGradients(NamedTuple):
    """What a backward of the optimizer NONE leaves, on the device: the first `count` entries of both tensors.

    `rows` int64 `[min(N, total rows)]`: the touched linear rows (in the numbering of `hash_size_cumsum`), each once;
    -1 behind them. `gradients` fp32 `[min(N, total rows), max D]`: the sum of each row's gradients, zeros beyond its D.
    `count` int64 `[1]`.
    """

    rows: Tensor
    gradients: Tensor
    count: Tensor  # type: ignore[assignment]  # not tuple.count


#: What a description of tables leaves out, for it may change.
TENSORS = ("weights", "gradient_scale")


@dataclass
class EmbeddingTables:
    """`weights`: flat `[total elements]`, fp32, fp16 or bf16. `bounds_check_warning`: int64 `[1]`, grows with every bad
    id or offset seen in mode WARNING. `layout` and `on_device` say where tables, rows and columns lie.
    `max_gradient`: the bound to which output gradients are clamped, or None. `gradient_scale`: fp32, one number, by
    which output gradients are divided first (`tbe_kernels.scaling`), or None."""

    weights: Tensor
    layout: TableLayout
    pooling_mode: PoolingMode
    output_dtype: torch.dtype
    bounds_check_mode: BoundsCheckMode
    optimizer: OptimizerState
    config: KernelConfig
    stochastic_rounding: bool = False
    max_gradient: float | None = None
    gradient_scale: Tensor | None = None
    #: What the last backward of the optimizer NONE left; None before it and for every other optimizer.
    row_gradients: RowGradients | None = field(init=False, default=None)
    #: The number that autograd gives to the backward that stepped, or left them, last: a later one has a larger one.
    last_backward: int = field(init=False, default=-1)
    #: What never changes about these tables, for operators: see `tbe_kernels.description`.
    description: str = field(init=False)
    on_device: DeviceLayout = field(init=False)
    bounds_check_warning: Tensor = field(init=False)
    #: int64 `[1]`: what the noise of stochastic rounding is made from.
    rounding_seed: Tensor = field(init=False)
    #: By stream: sums and counters of fused long runs, all zeros between launches.
    fused_workspaces: dict[int, tuple[Tensor, Tensor]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name not in TENSORS}
        kind, decay_mode = self.optimizer.optimizer, self.optimizer.weight_decay_mode
        self.description = describe({**given, "optimizer": kind, "weight_decay_mode": decay_mode})
        self.on_device = self.layout.on(self.weights.device)
        self.bounds_check_warning = torch.zeros(1, dtype=torch.int64, device=self.weights.device)
        self.rounding_seed = torch.zeros(1, dtype=torch.int64, device=self.weights.device)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a training run has to keep, by name."""
        own = {"bounds_check_warning": self.bounds_check_warning, "rounding_seed": self.rounding_seed}
        return {"weights": self.weights, **own, **self.optimizer.tensors()}

    def holding(self, tensors: Mapping[str, Tensor]) -> EmbeddingTables:
        """The same tables in other tensors, named as in `tensors()`; what was begun on these goes on here.

        Raises ValueError for a tensor of another shape, dtype or device, and for a sharded one.
        """
        for name, mine in self.tensors().items():
            _check_like(name, mine, tensors[name])
        other = copy.copy(self)
        other.weights = tensors["weights"]
        other.bounds_check_warning, other.rounding_seed = tensors["bounds_check_warning"], tensors["rounding_seed"]
        other.optimizer = self.optimizer.holding({name: tensors[name] for name in self.optimizer.tensors()})
        other.fused_workspaces = {}
        return other

    @property
    def rounds_stochastically(self) -> bool:
        """Whether updated rows are rounded stochastically: if asked for, and there is something to round to."""
        return self.stochastic_rounding and self.weights.dtype != torch.float32

    @property
    def accumulates_fp64(self) -> bool:
        """Whether the forward adds rows in fp64: fp32 rows do, unless the configuration says otherwise."""
        return self.weights.dtype == torch.float32 and self.config.accumulate_fp64


def _check_like(name: str, mine: Tensor, other: object) -> None:
    """Raise ValueError unless a tensor may take another one's place."""
    if not isinstance(other, Tensor) or hasattr(other, "placements"):
        raise ValueError(
            f"{name}: expected a tensor that is whole, got a {type(other).__name__}: tables are not sharded by element"
        )
    for what in ("shape", "dtype", "device"):
        if getattr(other, what) != getattr(mine, what):
            raise ValueError(f"{name}: expected {what} {getattr(mine, what)}, got {getattr(other, what)}")
    if not other.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {other.stride()}")
