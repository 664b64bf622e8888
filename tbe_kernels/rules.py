"""One update rule an optimizer, shared by every backward route.

A rule gets one whole row, already widened to fp32, and its complete gradient; it updates the state in place and returns
the new weights. Which route summed the gradient, it cannot tell. `tbe_kernels.optimizers` lists the rules.

Its arguments: `weight` and `grad` fp32 `[BLOCK_D]`, zeros beyond D; `row`, the linear row, and `elements`, the places
of the weights, for state of one number a row or an element; `mask`, the columns below `D`; `run`, the row's place among
the touched ones; `rows`, a `tbe_kernels.backward.operands.Rows`, with hyper-parameters in the order of the list, the
learning rate first; WEIGHT_DECAY, the mode.

Square roots and divisions are the correctly rounded ones, so that a GPU and the interpreter agree. Lanes beyond D
divide by one, so that an eps of 0 makes no NaN that a sum over the row would spread. Copies of one state may be loaded
by several warps and are stored by one of them: behind `tl.debug_barrier()` all have loaded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tbe_kernels.spec import WeightDecayMode

L2 = tl.constexpr(WeightDecayMode.L2.value)
DECOUPLE = tl.constexpr(WeightDecayMode.DECOUPLE.value)


@triton.jit
def exact_sgd(weight, grad, row, elements, mask, run, D, rows, WEIGHT_DECAY: tl.constexpr):
    """w -= lr * g"""
    return weight - tl.load(rows.hyper) * grad


@triton.jit
def mean_of_squares(grad, D):
    """One number: the sum over D, then one division."""
    return tl.div_rn(tl.sum(grad * grad, axis=0), D.to(tl.float32))


@triton.jit
def norm_of(row):
    """One number: the Euclidean norm."""
    return tl.sqrt_rn(tl.sum(row * row, axis=0))


@triton.jit
def within_norm(weight, max_norm):
    """A row longer than `max_norm`, if that is above 0, scaled down to it."""
    norm = norm_of(weight)
    too_long = (max_norm > 0) & (norm > max_norm)
    return weight * tl.where(too_long, tl.div_rn(max_norm, tl.where(too_long, norm, 1.0)), 1.0)


@triton.jit
def exact_rowwise_adagrad(weight, grad, row, elements, mask, run, D, rows, WEIGHT_DECAY: tl.constexpr):
    """m += mean(g'^2), one number a row; w = c * w - lr / (sqrt(m) + eps) * g; then at most `max_norm` long"""
    learning_rate = tl.load(rows.hyper)
    decay = tl.load(rows.hyper + 2)
    before = tl.load(rows.momentum1 + row)
    decayed = grad
    if WEIGHT_DECAY == L2:
        decayed = grad + decay * weight
    sum_of_squares = before + mean_of_squares(decayed, D)
    tl.debug_barrier()
    tl.store(rows.momentum1 + row, sum_of_squares)
    multiplier = tl.div_rn(learning_rate, tl.sqrt_rn(sum_of_squares) + tl.load(rows.hyper + 1))
    kept = weight
    if WEIGHT_DECAY == L2:
        kept = (1.0 - multiplier * decay) * weight
    if WEIGHT_DECAY == DECOUPLE:
        kept = (1.0 - learning_rate * decay) * weight
    stepped = kept - multiplier * grad
    if rows.max_norm is not None:
        stepped = within_norm(stepped, tl.load(rows.max_norm))
    return stepped


@triton.jit
def exact_adagrad(weight, grad, row, elements, mask, run, D, rows, WEIGHT_DECAY: tl.constexpr):
    """m += g^2; w -= lr * g / (sqrt(m) + eps)"""
    sum_of_squares = tl.load(rows.momentum1 + elements, mask=mask, other=0.0) + grad * grad
    tl.store(rows.momentum1 + elements, sum_of_squares, mask=mask)
    root = tl.where(mask, tl.sqrt_rn(sum_of_squares) + tl.load(rows.hyper + 1), 1.0)
    return weight - tl.div_rn(tl.load(rows.hyper) * grad, root)


@triton.jit
def moving_average(before, beta, new):
    """beta * before + (1 - beta) * new"""
    return beta * before + (1.0 - beta) * new


@triton.jit
def adam_direction(weight, grad, row, elements, mask, D, rows, ROWWISE: tl.constexpr):
    """What ADAM subtracts, before the learning rate: m / (1 - b1^k) / (sqrt(v / (1 - b2^k)) + eps) + wd * w.

    m = b1 * m + (1 - b1) * g and v = b2 * v + (1 - b2) * g^2, or, ROWWISE, one v a row from mean(g^2). 0 beyond D.
    """
    beta1, beta2 = tl.load(rows.hyper + 1), tl.load(rows.hyper + 2)
    first = moving_average(tl.load(rows.momentum1 + elements, mask=mask, other=0.0), beta1, grad)
    if ROWWISE:
        second = moving_average(tl.load(rows.momentum2 + row), beta2, mean_of_squares(grad, D))
        tl.debug_barrier()
        tl.store(rows.momentum2 + row, second)
    else:
        second = moving_average(tl.load(rows.momentum2 + elements, mask=mask, other=0.0), beta2, grad * grad)
        tl.debug_barrier()
        tl.store(rows.momentum2 + elements, second, mask=mask)
    tl.store(rows.momentum1 + elements, first, mask=mask)
    root = tl.sqrt_rn(tl.div_rn(second, tl.load(rows.bias_corrections + 1))) + tl.load(rows.hyper + 3)
    step = tl.div_rn(tl.div_rn(first, tl.load(rows.bias_corrections)), tl.where(mask, root, 1.0))
    return step + tl.load(rows.hyper + 4) * weight


@triton.jit
def adam(weight, grad, row, elements, mask, run, D, rows, WEIGHT_DECAY: tl.constexpr):
    """w -= lr * (m / (1 - b1^k) / (sqrt(v / (1 - b2^k)) + eps) + wd * w), k = iter; touched rows only"""
    return weight - tl.load(rows.hyper) * adam_direction(weight, grad, row, elements, mask, D, rows, False)


@triton.jit
def partial_rowwise_adam(weight, grad, row, elements, mask, run, D, rows, WEIGHT_DECAY: tl.constexpr):
    """ADAM with one v a row"""
    return weight - tl.load(rows.hyper) * adam_direction(weight, grad, row, elements, mask, D, rows, True)


@triton.jit
def scaled_to_weight(weight, direction, rows):
    """w -= lr * (||w|| / ||r||) * r; the ratio is 1 where either norm is 0."""
    weight_norm, norm = norm_of(weight), norm_of(direction)
    unscaled = (weight_norm == 0) | (norm == 0)
    ratio = tl.where(unscaled, 1.0, tl.div_rn(weight_norm, tl.where(unscaled, 1.0, norm)))
    return weight - tl.load(rows.hyper) * ratio * direction


@triton.jit
def lamb(weight, grad, row, elements, mask, run, D, rows, WEIGHT_DECAY: tl.constexpr):
    """ADAM's direction r, made as long as the row: w -= lr * (||w|| / ||r||) * r"""
    return scaled_to_weight(weight, adam_direction(weight, grad, row, elements, mask, D, rows, False), rows)


@triton.jit
def partial_rowwise_lamb(weight, grad, row, elements, mask, run, D, rows, WEIGHT_DECAY: tl.constexpr):
    """LAMB with one v a row"""
    return scaled_to_weight(weight, adam_direction(weight, grad, row, elements, mask, D, rows, True), rows)


@triton.jit
def lars_sgd(weight, grad, row, elements, mask, run, D, rows, WEIGHT_DECAY: tl.constexpr):
    """a = lr * eta * ||w|| / (||g|| + wd * ||w||), or 0 over 0; m = momentum * m + a * (g + wd * w); w -= m"""
    eta, decay = tl.load(rows.hyper + 1), tl.load(rows.hyper + 3)
    before = tl.load(rows.momentum1 + elements, mask=mask, other=0.0)
    weight_norm = norm_of(weight)
    divisor = norm_of(grad) + decay * weight_norm
    rate = tl.div_rn(tl.load(rows.hyper) * eta * weight_norm, tl.where(divisor == 0, 1.0, divisor))
    rate = tl.where(divisor == 0, 0.0, rate)
    velocity = tl.load(rows.hyper + 2) * before + rate * (grad + decay * weight)
    tl.debug_barrier()
    tl.store(rows.momentum1 + elements, velocity, mask=mask)
    return weight - velocity


@triton.jit
def no_step(weight, grad, row, elements, mask, run, D, rows, WEIGHT_DECAY: tl.constexpr):
    """The row stays; what it is and its gradient go where the caller will read them."""
    columns = tl.arange(0, grad.shape[0])
    tl.store(rows.row_gradients + run * tl.load(rows.row_gradients_width) + columns, grad, mask=mask)
    tl.store(rows.touched_rows + run, row)
    return weight
