"""The optimizers as interval rules: how far a correct fp32 implementation may be from a step, operation by operation;
and, in `RULES`, each beside the real optimizer. What else the oracle knows of them is data: `corpus.optimizers`.

Operations are taken in the order in which the formulas are written; where a compiler may fuse a multiplication into an
addition, both results are in. A row's sums over D may be added in any order. A point stays a point wherever every
operation is correctly rounded and nothing could be fused with another result.

Intervals do not know that two of them stem from one gradient, so m_hat / sqrt(v_hat) is allowed about twice the
relative uncertainty of the gradient it comes from. In LAMB and LARS the norms are the widest part: their sums over D
are known to `gamma(D)` only, where the squares lie on no grid, and that relative width goes through to the whole step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext

import torch
from torch import Tensor

from corpus.case import Optimizer
from oracles.values import interval as iv
from oracles.values.interval import Interval
from oracles.values.real_optimizers import AdamFamily, LarsSgd, NoStep, RowwiseAdagrad
from oracles.values.tolerance import LEAST, grid, sum_interval

State = dict[str, Tensor]


@dataclass
class Step:
    """The result of one step on some rows: weights before they are stored, and the state by name."""

    weights: Interval
    state: dict[str, Interval]

    def of(self, name: str) -> Interval:
        """The weights, or a state."""
        return self.weights if name == "weights" else self.state[name]


@dataclass(frozen=True)
class Taken:
    """A step to take: rows `w` and their `state` (fp64), what their gradients `g` may be, and with what.

    `iteration`: backward calls, this one included.
    """

    w: Tensor  # [rows, D]
    g: Interval  # [rows, D]
    state: State  # [rows] or [rows, D]
    lr: float
    given: Optimizer
    iteration: int

    def hyper(self, name: str) -> Interval:
        """A hyper-parameter as fp32."""
        return number(self.lr if name == "learning_rate" else getattr(self.given, name))

    def before(self, name: str) -> Interval:
        """A state before the step."""
        return Interval.point(self.state[name])


def fp32(x: float) -> float:
    """A hyper-parameter as the fp32 number that implementations hold."""
    return float(torch.tensor(x, dtype=torch.float32))


def number(x: float) -> Interval:
    """One fp32 number, for all elements."""
    return Interval.point(torch.tensor(fp32(x), dtype=torch.float64))


def bias_correction(beta: float, iteration: int) -> Interval:
    """`1 - beta ** iteration`, worked out in fp64 from the fp32 beta and rounded once to fp32.

    The power is off by at most `iteration - 1` roundings if it is multiplied up (in any order, squarings included), and
    by 2 units in the last place, 4 of 2 ** -53, if a library's `pow` makes it (CUDA's bound; those of CPUs are lower);
    the difference is rounded once more. Nearly always one fp32 number all the same.
    """
    with localcontext() as context:
        context.prec = 60
        unit = Decimal(2) ** -53
        power = Decimal(fp32(beta)) ** iteration
        radius = (iteration + 4) * unit * power + unit
        ends = [float(1 - power - radius), float(1 - power + radius)]
    lo, hi = (torch.tensor(end, dtype=torch.float64) for end in ends)
    return Interval(lo, hi).rounded(torch.float32)


def sum_of_squares(row: Interval) -> Interval:
    """The sum over D of squares, `[rows]`; exact where they lie on a grid that is coarse enough, and not below fp32's.

    Each square is rounded, or fused into the addition that follows.
    """
    squares = iv.exact_square(row)
    terms = torch.tensor(float(row.lo.shape[1]), dtype=torch.float64)
    certain = row.is_point().all(dim=1)
    ends = []
    for end in (squares.lo, squares.hi):
        total = end.sum(dim=1)
        steps = grid(end, dim=1) if end.numel() else total
        steps = torch.where(certain & (steps >= LEAST[torch.float32]), steps, 0.0)
        ends.append(sum_interval(total, total, terms, 1, steps, torch.float32))
    lo, hi = ends[0].lo, ends[1].hi
    return Interval(torch.where(lo == -torch.inf, lo, lo.clamp(min=0.0)), hi)  # a term of any size may be NaN


def norm(row: Interval) -> Interval:
    """The Euclidean norm of each row."""
    return iv.square_root(sum_of_squares(row))


def mean_of_squares(row: Interval) -> Interval:
    """The sum over D of squares, divided once."""
    return iv.divide(sum_of_squares(row), number(row.lo.shape[1]))


def moving_average(before: Interval, beta: Interval, new: Interval) -> Interval:
    """`beta * before + (1 - beta) * new`"""
    return iv.sum_of_products(beta, before, iv.subtract(number(1.0), beta), new)


def sgd(step: Taken) -> Step:
    """w -= lr * g"""
    return Step(iv.multiply_add(step.hyper("learning_rate").negated(), step.g, Interval.point(step.w)), {})


def rowwise_adagrad(step: Taken) -> Step:
    """m += mean(g'^2); w = c * w - lr / (sqrt(m) + eps) * g; then w *= min(1, max_norm / ||w||)"""
    weight, rate, decay, mode = (
        Interval.point(step.w),
        step.hyper("learning_rate"),
        step.hyper("weight_decay"),
        step.given.weight_decay_mode,
    )
    decayed = iv.multiply_add(decay, weight, step.g) if mode == "L2" else step.g
    total = iv.add(step.before("momentum1"), mean_of_squares(decayed))
    multiplier = iv.divide(rate, iv.add(iv.square_root(total), step.hyper("eps")))[:, None]
    if mode == "NONE":
        stepped = iv.multiply_add(multiplier.negated(), step.g, weight)
    else:
        taken_off = multiplier if mode == "L2" else rate
        kept = iv.multiply_add(taken_off.negated(), decay, number(1.0))
        stepped = iv.difference_of_products(kept, weight, multiplier, step.g)
    if step.given.max_norm > 0:
        stepped = _within_norm(stepped, step.hyper("max_norm"))
    return Step(stepped, {"momentum1": total})


def _within_norm(row: Interval, bound: Interval) -> Interval:
    """Rows longer than the bound, scaled down to it; where their length is uncertain, perhaps."""
    length = norm(row)
    factor, one = iv.divide(bound, length), torch.ones_like(length.lo)
    surely, perhaps = length.lo > bound.lo, length.hi > bound.lo
    lo = torch.where(perhaps, torch.minimum(factor.lo, one), one)
    hi = torch.where(surely, factor.hi, one)
    return iv.multiply(row, Interval(lo, hi)[:, None])


def adagrad(step: Taken) -> Step:
    """m += g^2; w -= lr * g / (sqrt(m) + eps)"""
    total = iv.square_add(step.g, step.before("momentum1"))
    change = iv.divide(
        iv.multiply(step.hyper("learning_rate"), step.g), iv.add(iv.square_root(total), step.hyper("eps"))
    )
    return Step(iv.subtract(Interval.point(step.w), change), {"momentum1": total})


def _direction(step: Taken, rowwise: bool) -> tuple[Interval, dict[str, Interval]]:
    """m_hat / (sqrt(v_hat) + eps) + wd * w, and the moments"""
    squares = mean_of_squares(step.g) if rowwise else iv.square(step.g)
    first = moving_average(step.before("momentum1"), step.hyper("beta1"), step.g)
    second = moving_average(step.before("momentum2"), step.hyper("beta2"), squares)
    corrections = [bias_correction(beta, step.iteration) for beta in (step.given.beta1, step.given.beta2)]
    root = iv.add(iv.square_root(iv.divide(second, corrections[1])), step.hyper("eps"))
    scaled = iv.divide(iv.divide(first, corrections[0]), root[:, None] if rowwise else root)
    direction = iv.multiply_add(step.hyper("weight_decay"), Interval.point(step.w), scaled)
    return direction, {"momentum1": first, "momentum2": second}


def adam(step: Taken, rowwise: bool = False) -> Step:
    """w -= lr * direction"""
    direction, state = _direction(step, rowwise)
    return Step(iv.multiply_add(step.hyper("learning_rate").negated(), direction, Interval.point(step.w)), state)


def partial_rowwise_adam(step: Taken) -> Step:
    """ADAM with one v a row"""
    return adam(step, rowwise=True)


def lamb(step: Taken, rowwise: bool = False) -> Step:
    """w -= lr * (||w|| / ||direction||) * direction; a norm of zero makes the ratio 1."""
    direction, state = _direction(step, rowwise)
    weight = Interval.point(step.w)
    length, size = norm(weight), norm(direction)
    one = Interval.point(torch.ones_like(length.lo))
    surely = (length.hi == 0) | (size.hi == 0)
    perhaps = (length.lo == 0) | (size.lo == 0)
    quotient = iv.divide(length, size)
    ratio = iv.choose(surely, one, iv.choose(perhaps, quotient.union(one), quotient))
    rate = iv.multiply(step.hyper("learning_rate"), ratio)[:, None]
    return Step(iv.multiply_add(rate.negated(), direction, weight), state)


def partial_rowwise_lamb(step: Taken) -> Step:
    """LAMB with one v a row"""
    return lamb(step, rowwise=True)


def lars_sgd(step: Taken) -> Step:
    """a = lr * eta * ||w|| / (||g|| + wd * ||w||), 0 over 0; m = momentum * m + a * (g + wd * w); w -= m"""
    weight, decay = Interval.point(step.w), step.hyper("weight_decay")
    length = norm(weight)
    divisor = iv.multiply_add(decay, length, norm(step.g))
    dividend = iv.multiply(iv.multiply(step.hyper("learning_rate"), step.hyper("eta")), length)
    zero = Interval.point(torch.zeros_like(divisor.lo))
    rate = iv.choose(divisor.hi == 0, zero, iv.divide(dividend, divisor))[:, None]
    decayed = iv.multiply_add(decay, weight, step.g)
    velocity = iv.sum_of_products(step.hyper("momentum"), step.before("momentum1"), rate, decayed)
    return Step(iv.subtract(weight, velocity), {"momentum1": velocity})


def no_step(step: Taken) -> Step:
    """Nothing changes."""
    return Step(Interval.point(step.w), {})


@dataclass(frozen=True)
class Rule:
    """The functions of an optimizer: the interval rule, how to make the real one, and what that calls our state.

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
    "EXACT_SGD": Rule(sgd, lambda w, lr, given: torch.optim.SGD([w], lr=lr)),
    "EXACT_ROWWISE_ADAGRAD": Rule(
        rowwise_adagrad,
        lambda w, lr, given: RowwiseAdagrad(
            [w], lr, fp32(given.eps), fp32(given.weight_decay), given.weight_decay_mode, fp32(given.max_norm)
        ),
        _SUM,
        per_row=("momentum1",),
    ),
    "EXACT_ADAGRAD": Rule(adagrad, lambda w, lr, given: torch.optim.Adagrad([w], lr=lr, eps=fp32(given.eps)), _SUM),
    "ADAM": Rule(adam, _adam, _MOMENTS),
    "PARTIAL_ROWWISE_ADAM": Rule(
        partial_rowwise_adam, _adam_family(rowwise=True, lamb=False), _MOMENTS, per_row=("momentum2",)
    ),
    "LAMB": Rule(lamb, _adam_family(rowwise=False, lamb=True), _MOMENTS),
    "PARTIAL_ROWWISE_LAMB": Rule(
        partial_rowwise_lamb, _adam_family(rowwise=True, lamb=True), _MOMENTS, per_row=("momentum2",)
    ),
    "LARS_SGD": Rule(
        lars_sgd,
        lambda w, lr, given: LarsSgd([w], lr, fp32(given.eta), fp32(given.momentum), fp32(given.weight_decay)),
        (("momentum1", "momentum_buffer"),),
    ),
    "NONE": Rule(no_step, lambda w, lr, given: NoStep([w]), steps=False),
}
