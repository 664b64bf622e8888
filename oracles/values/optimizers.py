"""What an optimizer step on touched rows has to give, twice: by a real optimizer, and as an interval.

The real one says what the step is: `torch.optim` classes in fp64, and for what torch has not got those of
`oracles.values.real_optimizers`, which tests tie to torch's. The interval rule (`oracles.values.optimizer_rules`) says
how far a correct fp32 implementation may be from it. Each step is done both ways and the two have to agree, so a rule
misread in one of them is found here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from corpus.case import Optimizer
from oracles.values import optimizer_rules as rules
from oracles.values.interval import Interval, round_to
from oracles.values.optimizer_rules import State, Step, Taken, fp32
from oracles.values.real_optimizers import AdamFamily, LarsSgd, NoStep, RowwiseAdagrad


@dataclass(frozen=True)
class Rule:
    """One optimizer: the interval rule, how to make the real optimizer, and what the real one calls our state.

    `per_row`: states of one number a row. `steps`: whether it changes the rows it touches.
    """

    interval: Callable[[Taken], Step]
    real: Callable[[Tensor, float, Optimizer], torch.optim.Optimizer]
    state_names: tuple[tuple[str, str], ...] = ()  # (ours, the real optimizer's)
    per_row: tuple[str, ...] = ()
    steps: bool = True


def _betas(given: Optimizer) -> tuple[float, float]:
    return fp32(given.beta1), fp32(given.beta2)


def _adam(w: Tensor, lr: float, given: Optimizer) -> torch.optim.Optimizer:
    """Adam, or with decay AdamW, whose `w *= 1 - lr * wd` before the step is ours within it."""
    if given.weight_decay == 0:
        return torch.optim.Adam([w], lr, _betas(given), fp32(given.eps))
    return torch.optim.AdamW([w], lr, _betas(given), fp32(given.eps), fp32(given.weight_decay))


def _adam_family(rowwise: bool, lamb: bool) -> Callable[[Tensor, float, Optimizer], torch.optim.Optimizer]:
    return lambda w, lr, given: AdamFamily(
        [w], lr, _betas(given), fp32(given.eps), fp32(given.weight_decay), rowwise, lamb
    )


_SUM = (("momentum1", "sum"),)
_MOMENTS = (("momentum1", "exp_avg"), ("momentum2", "exp_avg_sq"))

RULES = {
    "EXACT_SGD": Rule(rules.sgd, lambda w, lr, given: torch.optim.SGD([w], lr=lr)),
    "EXACT_ROWWISE_ADAGRAD": Rule(
        rules.rowwise_adagrad,
        lambda w, lr, given: RowwiseAdagrad(
            [w], lr, fp32(given.eps), fp32(given.weight_decay), given.weight_decay_mode, fp32(given.max_norm)
        ),
        _SUM,
        per_row=("momentum1",),
    ),
    "EXACT_ADAGRAD": Rule(
        rules.adagrad, lambda w, lr, given: torch.optim.Adagrad([w], lr=lr, eps=fp32(given.eps)), _SUM
    ),
    "ADAM": Rule(rules.adam, _adam, _MOMENTS),
    "PARTIAL_ROWWISE_ADAM": Rule(
        rules.partial_rowwise_adam, _adam_family(rowwise=True, lamb=False), _MOMENTS, per_row=("momentum2",)
    ),
    "LAMB": Rule(rules.lamb, _adam_family(rowwise=False, lamb=True), _MOMENTS),
    "PARTIAL_ROWWISE_LAMB": Rule(
        rules.partial_rowwise_lamb, _adam_family(rowwise=True, lamb=True), _MOMENTS, per_row=("momentum2",)
    ),
    "LARS_SGD": Rule(
        rules.lars_sgd,
        lambda w, lr, given: LarsSgd([w], lr, fp32(given.eta), fp32(given.momentum), fp32(given.weight_decay)),
        (("momentum1", "momentum_buffer"),),
    ),
    "NONE": Rule(rules.no_step, lambda w, lr, given: NoStep([w]), steps=False),
}


def real_step(
    w: Tensor, g: Tensor, state: State, lr: float, given: Optimizer, iteration: int = 1
) -> tuple[Tensor, State]:
    """Rows and state (fp64) after the real optimizer's step with gradient `g`; the arguments stay as they are."""
    rule = RULES[given.name]
    parameter = w.clone().requires_grad_()
    optimizer = rule.real(parameter, fp32(lr), given)
    for ours, theirs in rule.state_names:
        optimizer.state[parameter][theirs] = state[ours].clone()
        optimizer.state[parameter]["step"] = torch.tensor(iteration - 1.0)
    parameter.grad = g.clone()
    optimizer.step()
    return parameter.detach(), {ours: optimizer.state[parameter][theirs] for ours, theirs in rule.state_names}


class OracleError(AssertionError):
    """The reference disagrees with itself: a fault of the suite, not of the implementation under test."""


def step(w: Tensor, g: Interval, center: Tensor, state: State, lr: float, given: Optimizer, iteration: int = 1) -> Step:
    """The rows `w` and their `state` (fp64 `[rows, D]`, `[rows]`) after one step with gradient `g` around `center`.

    `iteration`: backward calls, this one included. Raises OracleError if `center` is no such gradient, or if the real
    optimizer's result at `center` lies outside what the interval rule allows.
    """
    rule = RULES[given.name].interval
    result = rule(Taken(w, g, state, lr, given, iteration))
    _agree("gradient", g, round_to(center, torch.float32), center)
    # In fp64 the gradient need not be one of those that fp32 may give, and where terms cancel that shows.
    both = g.union(Interval.point(center))
    allowed = result if g.admits(center).all() else rule(Taken(w, both, state, lr, given, iteration))
    weights, after = real_step(w, center, state, lr, given, iteration)
    _agree("weights", allowed.weights, weights, w)
    for name, value in after.items():
        _agree(name, allowed.state[name], value, state[name])
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
            f"{name}{list(place)}: the real optimizer has {float(real[place])!r}, the interval rule "
            f"[{float(allowed.lo[place])!r}, {float(allowed.hi[place])!r}]"
        )
