"""What the suite asks of an implementation, and what a run of one leaves behind.

Any table-batched embedding can be put under the suite by writing these few methods. Two do: the kernels
(`oracles.adapters.kernels`) and the reference (`oracles.adapters.torch_reference`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from corpus.case import Case
from oracles.contract import Refusal

Routing = Mapping[str, Any]


@dataclass
class Forward:
    """One forward: its output `[B, total_D]` and the bounds-check warnings counted so far (None: not counted).

    `tensor_products`: rows were added up as counts times rows on tensor cores, whose rounding has its own bound.
    """

    batch: int
    output: Tensor
    warnings: int | None
    tensor_products: bool = False


@dataclass
class LeftRowGradients:
    """The touched linear rows int64 `[n]` (tables one after the other), their summed gradients fp32 `[n, max D]`, zeros
    beyond each row's D, and how many entries count."""

    rows: Tensor
    gradients: Tensor
    count: int


@dataclass
class Backward:
    """One backward: what it left. `weights[t]` and `state[t][name]` hold the rows that `corpus.tensors` tracks.

    `psw_gradient` fp32 `[N]`, or None where none was asked for. `weights_grad_is_none`: the fused update leaves no
    gradient behind. `iterations`: backward calls counted so far (None: not counted). `row_gradients`: with the
    optimizer NONE, what it leaves instead of a step. `tensor_products`: gradients were added up as counts times split
    gradients on tensor cores.
    """

    batch: int
    weights: list[Tensor]
    state: list[dict[str, Tensor]]
    psw_gradient: Tensor | None
    weights_grad_is_none: bool
    iterations: int | None
    row_gradients: LeftRowGradients | None = None
    tensor_products: bool = False


@dataclass
class Trace:
    """What a run produced. Tensors are on the CPU.

    `refusal`: a FATAL bounds check that ended the run, and the weights and state it left in `steps[-1]`. `damage`: what
    guards saw (a buffer's surroundings overwritten, an input changed). `paths`: kernel paths that did real work.
    """

    steps: list[Forward | Backward] = field(default_factory=list)
    refusal: Refusal | None = None
    damage: list[str] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)


class Implementation(Protocol):
    """A table-batched embedding under test, or one to test against.

    Two more methods are asked if they are there. `describe_run(case, routing, length)`: which way a run of so many
    lookups goes, for reports. `repeats(case, routing, device)`: whether the same run adds up in the same order every
    time; then `oracles.relations.relate` compares sums that are not exact bit for bit as well, where it can.
    """

    name: str

    def supports(self, case: Case) -> str | None:
        """None, or why this implementation cannot run the case (it is then reported as not checked)."""

    def accumulator(self, case: Case, routing: Routing) -> torch.dtype:
        """The type in which the forward adds up rows: torch.float32 or torch.float64."""

    def routings(self, case: Case, device: torch.device) -> Iterator[Routing]:
        """Every routing worth checking, the case's own first; one empty routing if there are no knobs."""

    def sweep_paths(self, case: Case) -> list[set[str]]:
        """Of each set, a sweep of the case must have run at least one path."""

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        """Run the case's steps."""
