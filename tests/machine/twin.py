"""The plain twin of a module: what each of its tensors has to hold, stepped by the suite's own reference.

A step may be anything that the reference allows, bit for bit where that is one number; the twin then goes on from what
the module has.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corpus.case import Case, Optimizer
from corpus.tensors import TableRows
from oracles.implementation import LeftRowGradients
from oracles.values.compare import Finding, Sharpness, compare, compare_bits
from oracles.values.interval import Interval
from oracles.values.optimizer_rules import RULES
from oracles.values.reference import ExpectedBackward, ReferenceBatch
from oracles.values.row_gradients import compare_row_gradients

_MOMENTS = ("beta1", "beta2", "eps", "weight_decay")
#: What `hyper` holds behind the learning rate, as the module's users know it.
HYPER: dict[str, tuple[str, ...]] = {
    "EXACT_SGD": (),
    "EXACT_ROWWISE_ADAGRAD": ("eps", "weight_decay", "max_norm"),
    "EXACT_ADAGRAD": ("eps",),
    "ADAM": _MOMENTS,
    "PARTIAL_ROWWISE_ADAM": _MOMENTS,
    "LAMB": _MOMENTS,
    "PARTIAL_ROWWISE_LAMB": _MOMENTS,
    "LARS_SGD": ("eta", "momentum", "weight_decay"),
    "NONE": (),
}


class Wrong(AssertionError):  # noqa: N818  # a verdict
    """The module is not what its twin says."""


def demand(findings: list[Finding]) -> None:
    """Raise Wrong for the first finding."""
    for finding in findings:
        raise Wrong("\n".join((finding.headline, *map(str, finding.differences))))


def demand_bits(name: str, expected: Tensor, actual: Tensor) -> None:
    """Raise Wrong unless a tensor holds exactly these bits."""
    demand(compare_bits(name, expected.detach(), actual.detach()))


@dataclass
class Held:
    """A tensor of the module's and what it has to hold; `frozen`, if it is the weights. Twins that share the tensor
    share this."""

    tensor: Tensor
    value: Tensor
    frozen: bool = False


@dataclass
class Left:
    """What the last backward of the optimizer NONE has to have left."""

    case: Case
    expected: ExpectedBackward


@dataclass
class Twin:
    """`held`: by the names of the state dict. `scale`: of the gradients."""

    bare: Case
    held: dict[str, Held]
    scale: float | None = None
    left: Left | None = None

    @classmethod
    def first(cls, bare: Case, tensors: dict[str, Tensor]) -> Twin:
        """Of a new module whose weights are ones."""
        given, rule = bare.optimizer, RULES[bare.optimizer.name]
        numbers = [given.learning_rate, *(getattr(given, name) for name in HYPER[given.name])]
        rows = sum(table.rows for table in bare.tables)
        elements = sum(table.rows * table.dim for table in bare.tables)
        values = {
            "weights": torch.ones(elements, dtype=getattr(torch, bare.weights_dtype)),
            "bounds_check_warning": torch.zeros(1, dtype=torch.int64),
            "rounding_seed": torch.tensor([bare.rounding_seed]),
            "iter": torch.zeros(1, dtype=torch.int64),
            "hyper": torch.tensor(numbers, dtype=torch.float32),
            **{name: torch.zeros(rows if name in rule.per_row else elements) for name, _ in rule.state_names},
        }
        if values.keys() != tensors.keys():
            raise Wrong(f"the module has {sorted(tensors)}, expected {sorted(values)}")
        return cls(bare, {name: Held(tensors[name], value) for name, value in values.items()})

    def copied(self, tensors: dict[str, Tensor]) -> Twin:
        """The same in other tensors."""
        if self.held.keys() != tensors.keys():
            raise Wrong(f"the copy has {sorted(tensors)}, expected {sorted(self.held)}")
        held = {name: Held(tensors[name], mine.value.clone(), mine.frozen) for name, mine in self.held.items()}
        return dataclasses.replace(self, held=held)

    @property
    def frozen(self) -> bool:
        return self.held["weights"].frozen

    def value(self, name: str) -> Tensor:
        return self.held[name].value

    def optimizer(self) -> Optimizer:
        """The optimizer with the hyper-parameters that are in force."""
        rate, *numbers = self.value("hyper").tolist()
        read = dict(zip(HYPER[self.bare.optimizer.name], numbers, strict=True))
        return dataclasses.replace(self.bare.optimizer, learning_rate=rate, **read)

    def by_table(self, name: str) -> list[Tensor]:
        """A tensor's part of each table: `[E, D]`, or `[E]` where it has one number a row."""
        return self.split(name, self.value(name))

    def split(self, name: str, flat: Tensor) -> list[Tensor]:
        """The same of any tensor of that name."""
        by_row = name in RULES[self.bare.optimizer.name].per_row
        sizes = [table.rows if by_row else table.rows * table.dim for table in self.bare.tables]
        parts = flat.split(sizes)
        return [p if by_row else p.view(t.rows, t.dim) for p, t in zip(parts, self.bare.tables, strict=True)]

    def reference(self, case: Case) -> ReferenceBatch:
        """The reference of a lookup under the present hyper-parameters."""
        tracked = tuple(TableRows(None, w) for w in self.by_table("weights"))
        return ReferenceBatch(dataclasses.replace(case, optimizer=self.optimizer()), 0, tracked)

    def accumulator(self) -> torch.dtype:
        wide = self.bare.weights_dtype == "float32" and self.bare.routing.get("accumulate_fp64", True)
        return torch.float64 if wide else torch.float32

    def backward(self, case: Case, products: bool) -> ExpectedBackward:
        """What the step of a lookup may leave, from what is here now."""
        state = [
            dict(zip([name for name, _ in RULES[self.bare.optimizer.name].state_names], parts, strict=True))
            for parts in self._states()
        ]
        given, iteration = self.optimizer(), int(self.value("iter")) + 1
        return self.reference(case).backward(
            self.by_table("weights"), state, given.learning_rate, iteration, self.accumulator(), products
        )

    def _states(self) -> list[tuple[Tensor, ...]]:
        split = [self.by_table(name) for name, _ in RULES[self.bare.optimizer.name].state_names]
        return list(zip(*split, strict=True)) if split else [()] * len(self.bare.tables)

    def follow(self, case: Case, expected: ExpectedBackward, now: dict[str, Tensor]) -> None:
        """Go on from a step that has been taken: `now` is what the tensors hold after it."""
        steps = RULES[self.bare.optimizer.name].steps
        self.value("iter").add_(1)
        if not steps:
            self.left = Left(case, expected)
            return
        for name in ("weights", *(name for name, _ in RULES[self.bare.optimizer.name].state_names)):
            after = self.split(name, now[name].detach())
            for t, (old, new, table) in enumerate(zip(self.by_table(name), after, expected.tables, strict=True)):
                untouched = torch.ones(len(old), dtype=torch.bool)
                untouched[table.touched] = False
                demand(compare_bits(f"untouched rows of {name}[t={t}]", old, new, untouched))
                allowed = table.weights if name == "weights" else table.state[name]
                demand_within(f"{name}[t={t}]", allowed, new[table.touched])
            self.held[name].value = now[name].detach().clone()

    def check(self, now: dict[str, Tensor]) -> None:
        """Every tensor holds what it has to, and is the one that it was."""
        for name, mine in self.held.items():
            demand_bits(name, mine.value, now[name])
            if now[name].data_ptr() != mine.tensor.data_ptr():
                raise Wrong(f"{name} is in another place than the tensor that was put there")

    def check_left(self, left: Any) -> None:
        """The row gradients that a module shows."""
        if self.left is None:
            if left is not None:
                raise Wrong("row gradients are there, but no backward has left any")
            return
        have = None if left is None else LeftRowGradients(left.rows, left.gradients, int(left.count))
        tracked = tuple(TableRows(None, w) for w in self.by_table("weights"))
        demand(compare_row_gradients(self.left.case, tracked, self.left.expected, have, Sharpness()))


def demand_within(name: str, allowed: Interval, actual: Tensor) -> None:
    """Raise Wrong unless a tensor is within what is allowed."""
    demand(compare(name, allowed, actual.detach(), lambda at: f"{name}{list(at)}", Sharpness()))
