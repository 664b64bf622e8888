"""What an optimizer step on touched rows has to give, twice: by a real optimizer, and as an interval.

The real one says what the step is: `torch.optim` classes in fp64, and for row-wise rules a `torch.optim.Optimizer` of
our own that is tied to `torch.optim.Adagrad` at D = 1 by a test. The interval rule says how far a correct fp32
implementation may be from it, operation by operation. Each step is done both ways and the two have to agree, so a rule
misread here is found here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corpus.case import Optimizer
from oracles import interval as iv
from oracles.interval import Interval
from oracles.tolerance import grid, sum_interval

State = dict[str, Tensor]


@dataclass
class Step:
    """The result of one step on some rows: weights before they are stored, and the state by name."""

    weights: Interval
    state: dict[str, Interval]


class RowwiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one accumulator a row: `sum += mean(g'^2)`, `w = c * w - lr / (sqrt(sum) + eps) * g`.

    `g' = g + weight_decay * w` with mode L2. `c = 1 - lr / (sqrt(sum) + eps) * weight_decay` (L2),
    `1 - lr * weight_decay` (DECOUPLE) or 1. Parameters are `[rows, D]` and every row of them is stepped.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, eps: float, weight_decay: float, weight_decay_mode: str
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay, "mode": weight_decay_mode})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, decay, mode = group["lr"], group["weight_decay"], group["mode"]
            for w in group["params"]:
                state = self.state[w]
                if "sum" not in state:
                    state["sum"] = torch.zeros(w.shape[0], dtype=w.dtype)
                g = w.grad + decay * w if mode == "L2" else w.grad
                state["sum"] += (g * g).mean(dim=1)
                rate = lr / (state["sum"].sqrt() + group["eps"])[:, None]
                kept = {"L2": 1 - rate * decay, "DECOUPLE": 1 - lr * decay, "NONE": 1.0}[mode]
                w.copy_(kept * w - rate * w.grad)


def _fp32(number: float) -> float:
    """A hyper-parameter as the fp32 number that implementations hold."""
    return float(torch.tensor(number, dtype=torch.float32))


def _number(number: float) -> Interval:
    return Interval.point(torch.tensor(_fp32(number), dtype=torch.float64))


def _sgd(w: Tensor, g: Interval, state: State, lr: float, given: Optimizer) -> Step:
    return Step(iv.multiply_add(_number(-lr), g, Interval.point(w)), {})


def _rowwise_adagrad(w: Tensor, g: Interval, state: State, lr: float, given: Optimizer) -> Step:
    weight, rate, decay = Interval.point(w), _number(lr), _number(given.weight_decay)
    decayed = iv.multiply_add(decay, weight, g) if given.weight_decay_mode == "L2" else g
    one = _number(1.0)
    total = iv.add(Interval.point(state["momentum1"]), iv.divide(_sum_of_squares(decayed), _number(w.shape[1])))
    multiplier = iv.divide(rate, iv.add(iv.square_root(total), _number(given.eps)))[:, None]
    if given.weight_decay_mode == "L2":
        kept = iv.multiply_add(multiplier.negated(), decay, one)
    elif given.weight_decay_mode == "DECOUPLE":
        kept = iv.multiply_add(rate.negated(), decay, one)
    else:
        return Step(iv.multiply_add(multiplier.negated(), g, weight), {"momentum1": total})
    return Step(iv.difference_of_products(kept, weight, multiplier, g), {"momentum1": total})


def _adagrad(w: Tensor, g: Interval, state: State, lr: float, given: Optimizer) -> Step:
    total = iv.square_add(g, Interval.point(state["momentum1"]))
    root = iv.add(iv.square_root(total), _number(given.eps))
    step = iv.divide(iv.multiply(_number(lr), g), root)
    return Step(iv.subtract(Interval.point(w), step), {"momentum1": total})


def _sum_of_squares(g: Interval) -> Interval:
    """The sum over D of g^2, exact where the squares lie on a grid that is coarse enough."""
    squares = iv.square(g)
    terms = torch.tensor(float(g.lo.shape[1]), dtype=torch.float64)
    certain = g.is_point().all(dim=1)
    ends = []
    for end in (squares.lo, squares.hi):
        total = end.sum(dim=1)
        steps = torch.where(certain, grid(end, dim=1), 0.0) if end.numel() else total
        exact = sum_interval(total, total, terms, 0, steps, torch.float32)
        ends.append(exact)
    return Interval(ends[0].lo, ends[1].hi)


@dataclass(frozen=True)
class Rule:
    """One optimizer: the interval rule, how to make the real optimizer, and what the real one calls our state."""

    interval: Callable[[Tensor, Interval, State, float, Optimizer], Step]
    real: Callable[[Tensor, float, Optimizer], torch.optim.Optimizer]
    state_names: tuple[tuple[str, str], ...] = ()  # (ours, the real optimizer's)
    per_row: tuple[str, ...] = ()  # states of one number a row


RULES = {
    "EXACT_SGD": Rule(_sgd, lambda w, lr, given: torch.optim.SGD([w], lr=lr)),
    "EXACT_ROWWISE_ADAGRAD": Rule(
        _rowwise_adagrad,
        lambda w, lr, given: RowwiseAdagrad(
            [w], lr, _fp32(given.eps), _fp32(given.weight_decay), given.weight_decay_mode
        ),
        state_names=(("momentum1", "sum"),),
        per_row=("momentum1",),
    ),
    "EXACT_ADAGRAD": Rule(
        _adagrad,
        lambda w, lr, given: torch.optim.Adagrad([w], lr=lr, eps=_fp32(given.eps)),
        state_names=(("momentum1", "sum"),),
    ),
}


def real_step(w: Tensor, g: Tensor, state: State, lr: float, given: Optimizer) -> tuple[Tensor, State]:
    """Rows and state (fp64) after the real optimizer's step with gradient `g`; the arguments stay as they are."""
    rule = RULES[given.name]
    parameter = w.clone().requires_grad_()
    optimizer = rule.real(parameter, _fp32(lr), given)
    for ours, theirs in rule.state_names:
        optimizer.state[parameter][theirs] = state[ours].clone()
        optimizer.state[parameter].setdefault("step", torch.tensor(0.0))
    parameter.grad = g.clone()
    optimizer.step()
    return parameter.detach(), {ours: optimizer.state[parameter][theirs] for ours, theirs in rule.state_names}


class OracleError(AssertionError):
    """The reference disagrees with itself: a fault of the suite, not of the implementation under test."""


def step(w: Tensor, g: Interval, center: Tensor, state: State, lr: float, given: Optimizer) -> Step:
    """The rows `w` and their `state` (fp64 `[rows, D]`, `[rows]`) after one step with gradient `g` around `center`.

    Raises OracleError if the real optimizer's result at `center` lies outside what the interval rule allows.
    """
    result = RULES[given.name].interval(w, g, state, lr, given)
    weights, after = real_step(w, center, state, lr, given)
    _agree("weights", result.weights, weights, w)
    for name, value in after.items():
        _agree(name, result.state[name], value, state[name])
    return result


def _agree(name: str, allowed: Interval, real: Tensor, before: Tensor) -> None:
    """The two ways may differ by fp32 rounding, which 2 ** -12 of everything involved exceeds by far; a rule that was
    misread differs by much more."""
    slack = 2.0**-12 * (before.abs() + (real - before).abs()) + 2.0**-120
    wide = Interval(allowed.lo - slack, allowed.hi + slack)
    bad = ~(wide.admits(real) | ~torch.isfinite(real))
    if bad.any():
        place = tuple(int(i) for i in bad.nonzero()[0])
        raise OracleError(
            f"{name}{list(place)}: the real optimizer gives {float(real[place])!r}, the interval rule "
            f"[{float(allowed.lo[place])!r}, {float(allowed.hi[place])!r}]"
        )
