"""What an optimizer step on touched rows has to give, twice: by a real optimizer, and as an interval.

The real one says what the step is: `torch.optim` classes in fp64, and for what torch has not got those of
`oracles.values.real_optimizers`, which tests tie to torch's. The interval rule (`oracles.values.optimizer_rules`) says
how far a correct fp32 implementation may be from it. Each step is done both ways and the two have to agree, so a rule
misread in one of them is found here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from corpus.case import Optimizer
from oracles.values.interval import Interval, round_to, rounding_optional
from oracles.values.optimizer_rules import RULES, State, Step, Taken, fp32


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
    weights, after = real_step(w, center, state, lr, given, iteration)
    real = {"weights": (w, weights)} | {name: (state[name], value) for name, value in after.items()}
    if any(_differ(result.of(name), *pair).any() for name, pair in real.items()):
        # Where terms cancel, all that fp64 has left may be what fp32 rounds away: the rule with rounding optional.
        with rounding_optional():
            both = Taken(w, g.union(Interval.point(center)), state, lr, given, iteration)
            unrounded = rule(both)
        for name, (before, after_it) in real.items():
            _agree(name, unrounded.of(name), after_it, before)
    return result


def _differ(allowed: Interval, before: Tensor, real: Tensor) -> Tensor:
    """The two ways may differ by fp32 rounding, which 2 ** -12 of everything involved exceeds by far; a rule that was
    misread differs by much more."""
    slack = 2.0**-12 * (before.abs() + (real - before).abs()) + 2.0**-120
    wide = Interval(allowed.lo - slack, allowed.hi + slack)
    return ~(wide.admits(real) | ~torch.isfinite(real))


def _agree(name: str, allowed: Interval, real: Tensor, before: Tensor) -> None:
    bad = _differ(allowed, before, real)
    if bad.any():
        place = tuple(int(i) for i in bad.nonzero()[0])
        raise OracleError(
            f"{name}{list(place)}: the real optimizer has {float(real[place])!r}, the interval rule "
            f"[{float(allowed.lo[place])!r}, {float(allowed.hi[place])!r}]"
        )
