"""Interval arithmetic: rounding is exact, points stay what fp32 computes, and intervals hold every result they must."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from oracles.values import interval as iv
from oracles.values.interval import FORMATS, Interval, neighbours, round_to
from oracles.values.optimizer_rules import norm

finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
moderate = st.floats(-(2.0**40), 2.0**40, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-40)


def one(x: float) -> Tensor:
    return torch.tensor([x], dtype=torch.float64)


def nearest_by_fractions(x: float, dtype: torch.dtype) -> float:
    """Round to nearest, ties to even, in exact rational arithmetic."""
    precision, least, largest = FORMATS[dtype]
    exact = Fraction(x)
    if exact == 0:
        return x
    exponent = least
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - precision + 1)
    rounded = round(exact / step) * step  # Python rounds halves to even
    return float("inf") if rounded > largest else -float("inf") if rounded < -largest else float(rounded)


@pytest.mark.parametrize("dtype", list(FORMATS), ids=str)
@given(x=st.floats(-1e5, 1e5) | st.floats(-1e-30, 1e-30) | st.floats(-7e-5, 7e-5))
def test_round_to_rounds_once(dtype: torch.dtype, x: float) -> None:
    assert float(round_to(one(x), dtype)) == nearest_by_fractions(x, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@given(x=st.floats(-70000, 70000, width=32) | st.floats(-(2.0**-13), 2.0**-13, width=32) | finite32)
def test_neighbours_are_next_to_each_other_with_the_number_between(dtype: torch.dtype, x: float) -> None:
    below, above = (float(end) for end in neighbours(one(x), dtype))
    for end in (below, above):
        assert float(torch.tensor(end).to(dtype)) == end
    if abs(x) > FORMATS[dtype][2]:
        assert below == above == nearest_by_fractions(x, dtype)
        return
    precision, least, _ = FORMATS[dtype]
    step = Fraction(2) ** (max(math.frexp(x)[1] - 1, least) - precision + 1)
    exact = Fraction(x)
    assert Fraction(below) == math.floor(exact / step) * step
    assert Fraction(above) == math.ceil(exact / step) * step
    allowed = Interval.point(one(x)).rounded_stochastically(dtype)
    for outside in (math.nextafter(below, -math.inf), math.nextafter(above, math.inf)):
        assert not bool(allowed.admits(one(outside)))


def test_neighbours_of_a_number_that_needs_no_rounding_are_itself() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).to(torch.float64)
        for end in neighbours(x, dtype):
            assert torch.equal(end.nan_to_num(0.5), x.nan_to_num(0.5))
    x = torch.tensor([0.1], dtype=torch.float32).to(torch.float64)
    assert [float(end) for end in neighbours(x, torch.float32)] == [float(x)] * 2


def test_round_to_does_not_round_twice() -> None:
    """1 + 2**-11 + 2**-40 is nearer to 1 + 2**-10; by way of fp32 it becomes a tie, which goes to 1."""
    x = one(1 + 2.0**-11 + 2.0**-40)
    assert float(round_to(x, torch.float16)) == 1 + 2.0**-10
    assert float(x.to(torch.float32).to(torch.float16)) == 1.0


@given(a=moderate, b=moderate)
def test_points_are_what_fp32_computes(a: float, b: float) -> None:
    x, y = np.float32(a), np.float32(b)
    left, right = Interval.point(one(a)), Interval.point(one(b))
    with np.errstate(all="ignore"):
        results = {
            "add": (iv.add(left, right), x + y),
            "subtract": (iv.subtract(left, right), x - y),
            "multiply": (iv.multiply(left, right), x * y),
            "divide": (iv.divide(left, right), x / y),
            "square_root": (iv.square_root(left), np.sqrt(x)),
            "square": (iv.square(left), x * x),
        }
    for name, (interval, expected) in results.items():
        assert bool(interval.is_point()), name
        assert bool(interval.admits(one(float(expected)))), name


@given(a=moderate, b=moderate, c=moderate)
def test_fused_and_unfused_results_are_both_allowed(a: float, b: float, c: float) -> None:
    x, y, z = map(np.float32, (a, b, c))
    fused = nearest_by_fractions_of(Fraction(a) * Fraction(b) + Fraction(c))
    allowed = iv.multiply_add(*(Interval.point(one(v)) for v in (a, b, c)))
    assert bool(allowed.admits(one(float(x * y + z))))
    assert bool(allowed.admits(one(fused)))
    product = iv.difference_of_products(*(Interval.point(one(v)) for v in (a, b, c, a)))
    assert bool(product.admits(one(float(x * y - z * x))))
    assert bool(product.admits(one(nearest_by_fractions_of(Fraction(a) * Fraction(b) - Fraction(float(z * x))))))


def nearest_by_fractions_of(exact: Fraction) -> float:
    """An exact rational as fp32: numerator and denominator may be too long for one fp64."""
    low = float(exact)  # correctly rounded by Python
    around = [np.float32(low)] + [np.nextafter(np.float32(low), np.float32(d)) for d in (-np.inf, np.inf)]
    return float(min(around, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.uint32)) & 1)))


@given(ends=st.lists(moderate, min_size=4, max_size=4), inside=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_intervals_hold_every_result(ends: list[float], inside: tuple[float, float]) -> None:
    """Any two fp32 numbers of two intervals have their results in the result's interval."""
    a_lo, a_hi, b_lo, b_hi = *sorted(ends[:2]), *sorted(ends[2:])
    x = np.clip(np.float32(a_lo + (a_hi - a_lo) * inside[0]), np.float32(a_lo), np.float32(a_hi))
    y = np.clip(np.float32(b_lo + (b_hi - b_lo) * inside[1]), np.float32(b_lo), np.float32(b_hi))
    a, b = Interval(one(a_lo), one(a_hi)), Interval(one(b_lo), one(b_hi))
    with np.errstate(all="ignore"):
        pairs = [
            (iv.add(a, b), x + y),
            (iv.subtract(a, b), x - y),
            (iv.multiply(a, b), x * y),
            (iv.square(a), x * x),
            (iv.square_add(a, b), x * x + y),
            (iv.multiply_add(a, b, a), x * y + x),
        ]
        if y != 0:  # the sign of a zero divisor is nobody's business
            pairs.append((iv.divide(a, b), x / y))
    for interval, result in pairs:
        assert bool(interval.admits(one(float(result))))


def test_nan_stays_nan_and_unknown_stays_unknown() -> None:
    nan, inf = one(torch.nan), one(torch.inf)
    wide = Interval(one(-1.0), one(1.0))
    assert bool(iv.multiply(Interval.point(nan), wide).admits(nan))
    assert not bool(iv.multiply(Interval.point(nan), wide).admits(one(0.0)))
    free = iv.divide(wide, Interval(one(0.0), one(1.0)))
    assert bool(free.is_free())
    assert bool(iv.square(free).is_free())  # not just from 0 up: it may be NaN
    row = Interval(torch.stack([free.lo, one(1.0)], dim=1), torch.stack([free.hi, one(1.0)], dim=1))
    assert bool(norm(row).is_free().all())
    assert bool(iv.subtract(Interval.point(inf), Interval.point(inf)).admits(nan))
    assert not bool(Interval.point(one(1.0)).admits(one(1.0000001)))
    assert bool(Interval.point(one(0.0)).admits(one(-0.0)))
