"""Interval arithmetic that models fp32: what a correct implementation may compute, and nothing else.

An `Interval` holds for each element the least and the largest fp32 number that an intermediate result can be. Rounding
is monotone, so the interval of a rounded result is the rounding of the exact interval's ends; a point (lo == hi) stays
a point under every operation that is correctly rounded, which is what makes exact mode exact all the way through a
non-linear optimizer. Where a compiler may fuse a multiplication into an addition, the result covers both ways.

Ends are fp32 numbers held in fp64. For those, one fp64 operation followed by a rounding to fp32 is the correctly
rounded fp32 operation (+, -, *, / and sqrt; 53 >= 2 * 24 + 2), so ends that are points are exact.

Inside `rounding_optional` an operation may also leave its result as it is, which covers what fp64 makes of a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

#: (precision in bits, exponent of the smallest normal number, largest finite number) of each storage type.
FORMATS = {
    torch.float32: (24, -126, torch.finfo(torch.float32).max),
    torch.float16: (11, -14, torch.finfo(torch.float16).max),
    torch.bfloat16: (8, -126, torch.finfo(torch.bfloat16).max),
}


_OPTIONAL: ContextVar[bool] = ContextVar("rounding is optional", default=False)


@contextmanager
def rounding_optional() -> Iterator[None]:
    """Each result of an operation is the fp32 number, or the number before rounding, or any between the two."""
    token = _OPTIONAL.set(True)
    try:
        yield
    finally:
        _OPTIONAL.reset(token)


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """fp64 -> the nearest number of `dtype` (ties to even), held in fp64.

    One rounding: torch's own cast from fp64 to fp16 or bf16 goes through fp32 and rounds twice.
    """
    if dtype == torch.float64:
        return x
    if dtype == torch.float32:
        return x.to(torch.float32).to(torch.float64)
    precision, least, largest = FORMATS[dtype]
    _, exponent = torch.frexp(x)
    step = torch.clamp(exponent - precision, min=least - precision + 1)
    rounded = scale(torch.round(scale(x, -step)), step)
    rounded = torch.where(rounded.abs() > largest, torch.copysign(torch.full_like(x, torch.inf), x), rounded)
    return torch.where(torch.isfinite(x), rounded, x)


def neighbours(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """fp64 -> what stochastic rounding to `dtype` may make of it: the numbers next to `x` from below and from above.

    Both are `x` where `dtype` holds it or is not coarser than fp32. Beyond the largest finite number rounding is to
    nearest, so both are what `round_to` gives.
    """
    nearest = round_to(x, dtype)
    if dtype in (torch.float32, torch.float64):
        return nearest, nearest
    precision, least, largest = FORMATS[dtype]
    _, exponent = torch.frexp(x)
    step = torch.clamp(exponent - precision, min=least - precision + 1)
    units, certain = scale(x, -step), ~(x.abs() <= largest)
    below, above = (scale(whole(units), step) for whole in (torch.floor, torch.ceil))
    return torch.where(certain, nearest, below), torch.where(certain, nearest, above)


def scale(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2 ** exponent in fp64 (`torch.ldexp` takes the power in fp32, which overflows at 2 ** 128)."""
    return x * torch.pow(torch.tensor(2.0, dtype=torch.float64), exponent.to(torch.float64))


@dataclass(frozen=True)
class Interval:
    """Least and largest value of each element, fp64. NaN at both ends: the result has to be NaN.

    -inf to inf: anything goes, NaN included (a division whose divisor may be zero).
    """

    lo: Tensor
    hi: Tensor

    @classmethod
    def point(cls, x: Tensor) -> Interval:
        """The numbers of `x` and no others."""
        x = x.to(torch.float64)
        return cls(x, x)

    @classmethod
    def around(cls, center: Tensor, radius: Tensor) -> Interval:
        """`center` plus or minus `radius`; where either is not finite, exactly `center`."""
        certain = ~torch.isfinite(center) | ~torch.isfinite(radius) | (radius == 0)
        lo = torch.where(certain, center, _below(center - radius))
        hi = torch.where(certain, center, _above(center + radius))
        return cls(lo, hi)

    def rounded(self, dtype: torch.dtype) -> Interval:
        """After one correct rounding to `dtype`."""
        result = Interval(round_to(self.lo, dtype), round_to(self.hi, dtype))
        return result.union(self) if _OPTIONAL.get() else result

    def rounded_stochastically(self, dtype: torch.dtype) -> Interval:
        """After one stochastic rounding to `dtype`: of a point, its two neighbours, with nothing between them."""
        return Interval(neighbours(self.lo, dtype)[0], neighbours(self.hi, dtype)[1])

    def __getitem__(self, index: object) -> Interval:
        return Interval(self.lo[index], self.hi[index])  # type: ignore[index]

    def negated(self) -> Interval:
        """Minus the interval."""
        return Interval(-self.hi, -self.lo)

    def magnitude(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(self.lo.abs(), self.hi.abs())

    def is_point(self) -> Tensor:
        """Where only one value is allowed."""
        return (self.lo == self.hi) | (self.lo.isnan() & self.hi.isnan())

    def is_free(self) -> Tensor:
        """Where anything goes."""
        return (self.lo == -torch.inf) & (self.hi == torch.inf)

    def admits(self, x: Tensor) -> Tensor:
        """Where `x` is allowed. Zeros are equal whatever their sign."""
        x = x.to(torch.float64)
        return ((self.lo <= x) & (x <= self.hi)) | (self.lo.isnan() & x.isnan()) | self.is_free()

    def union(self, other: Interval) -> Interval:
        """The smallest interval that covers both."""
        unknown = self.lo.isnan() != other.lo.isnan()
        lo, hi = torch.minimum(self.lo, other.lo), torch.maximum(self.hi, other.hi)
        return Interval(lo.masked_fill(unknown, -torch.inf), hi.masked_fill(unknown, torch.inf))


def add(a: Interval, b: Interval) -> Interval:
    """fl(a + b)"""
    return _rounded_outward(a.lo + b.lo, a.hi + b.hi)


def subtract(a: Interval, b: Interval) -> Interval:
    """fl(a - b)"""
    return add(a, b.negated())


def multiply(a: Interval, b: Interval) -> Interval:
    """fl(a * b)"""
    return _product(a, b).rounded(torch.float32)


def divide(a: Interval, b: Interval) -> Interval:
    """fl(a / b), correctly rounded; anything where b is uncertain and may be zero."""
    result = _rounded_outward(*_corners(torch.div, a, b))
    unknown = (b.lo <= 0) & (b.hi >= 0) & ~(a.is_point() & b.is_point())
    return Interval(result.lo.masked_fill(unknown, -torch.inf), result.hi.masked_fill(unknown, torch.inf))


def square_root(a: Interval) -> Interval:
    """fl(sqrt(a)), correctly rounded."""
    return _rounded_outward(torch.sqrt(a.lo), torch.sqrt(a.hi))


def square(a: Interval) -> Interval:
    """fl(a * a), knowing that both factors are the same."""
    return exact_square(a).rounded(torch.float32)


def multiply_add(a: Interval, b: Interval, c: Interval) -> Interval:
    """a * b + c, with the product rounded first or fused into the addition."""
    return _fused_add(_product(a, b), c).union(add(multiply(a, b), c))


def square_add(a: Interval, c: Interval) -> Interval:
    """a * a + c, fused or not."""
    return _fused_add(exact_square(a), c).union(add(square(a), c))


def difference_of_products(a: Interval, b: Interval, c: Interval, d: Interval) -> Interval:
    """a * b - c * d, with neither product or either one fused."""
    return (
        subtract(multiply(a, b), multiply(c, d))
        .union(_fused_add(_product(a, b), multiply(c, d).negated()))
        .union(_fused_add(_product(c, d).negated(), multiply(a, b)))
    )


def sum_of_products(a: Interval, b: Interval, c: Interval, d: Interval) -> Interval:
    """a * b + c * d, with neither product or either one fused."""
    return difference_of_products(a, b, c.negated(), d)


def choose(condition: Tensor, a: Interval, b: Interval) -> Interval:
    """a where the condition holds, b elsewhere."""
    return Interval(torch.where(condition, a.lo, b.lo), torch.where(condition, a.hi, b.hi))


def _product(a: Interval, b: Interval) -> Interval:
    """a * b before rounding: fp64 holds the product of two fp32 numbers exactly."""
    return Interval(*_corners(torch.mul, a, b))


def exact_square(a: Interval) -> Interval:
    """a * a before rounding. What may be NaN stays so: anything goes."""
    across = (a.lo < 0) & (a.hi > 0)
    low, high = a.lo * a.lo, a.hi * a.hi
    least = torch.where(across, torch.zeros_like(low), torch.minimum(low, high))
    return Interval(least.masked_fill(a.is_free(), -torch.inf), torch.maximum(low, high))


def _corners(operation: Callable[[Tensor, Tensor], Tensor], a: Interval, b: Interval) -> tuple[Tensor, Tensor]:
    """Least and largest result over the four pairs of ends."""
    first, *rest = (operation(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi))
    lo = hi = first
    for corner in rest:
        lo, hi = torch.minimum(lo, corner), torch.maximum(hi, corner)
    # A corner that is NaN (0 * inf, inf / inf) while a factor is uncertain says nothing, unless a factor is NaN itself.
    unknown = lo.isnan() & ~(a.is_point() & b.is_point()) & ~(a.lo.isnan() | b.lo.isnan())
    return lo.masked_fill(unknown, -torch.inf), hi.masked_fill(unknown, torch.inf)


def _rounded_outward(lo: Tensor, hi: Tensor) -> Interval:
    """Round ends that are one fp64 operation away from fp32 numbers; anything goes where only one end is NaN."""
    unknown = lo.isnan() != hi.isnan()
    lo, hi = lo.masked_fill(unknown, -torch.inf), hi.masked_fill(unknown, torch.inf)
    return Interval(lo, hi).rounded(torch.float32)


def _fused_add(product: Interval, c: Interval) -> Interval:
    """fl(product + c) with one rounding. The fp64 sum may be inexact, so its ends are taken on both sides."""
    lo, hi = product.lo + c.lo, product.hi + c.hi
    lo_inexact, hi_inexact = _inexact(product.lo, c.lo, lo), _inexact(product.hi, c.hi, hi)
    return _rounded_outward(torch.where(lo_inexact, _below(lo), lo), torch.where(hi_inexact, _above(hi), hi))


def _inexact(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """Where fp64 rounded `a + b` (Knuth's two-sum)."""
    b_part = total - a
    residual = (a - (total - b_part)) + (b - b_part)
    return (residual != 0) & torch.isfinite(total)


def _below(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.full_like(x, -torch.inf))


def _above(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.full_like(x, torch.inf))
