"""How far a sum may be from its exact value: not at all where that can be proved, else by a bound derived per element.

Proof of exactness: if every term is a multiple of one power of two, the *grid*, and the sum of their absolute values is
at most `2 ** precision` grids, then every partial sum, in any order and over any split into chunks, is a multiple of
the grid of at most `precision` bits: nothing is ever rounded, if the grid is one that the type has: products of small
numbers may lie on a finer one than its least subnormal number. The grid is read from the terms themselves, so the proof
holds for any values; exact mode only chooses values for which it goes through.

Bound otherwise: a sum of n terms after k roundings of each (a product, a division) is off by at most
`gamma(n - 1 + k) * sum|terms|`, `gamma(m) = m * u / (1 - m * u)` (Higham, Accuracy and Stability of Numerical
Algorithms, section 4.2; any order of summation), plus one smallest normal number a term, because float atomics of GPUs
flush subnormal numbers to zero.

Products of counts and rows on tensor cores (fp16 x fp16 -> fp32) round differently: products are exact, but the terms
of a block are aligned to the largest and cut off, at worst 23 binary places below its leading bit, and the block's sum
is cut off to fp32. So found Fasi, Higham, Mikaitis and Pranesh (Numerical behavior of NVIDIA tensor cores, PeerJ
Computer Science 7:e330, 2021) for V100, the coarsest, and T4, A100 keeping more; Khattak and Mikaitis (Accurate models
of NVIDIA tensor cores, arXiv:2512.07004, 2025) went on to H100 and B200. Each cut loses less than 2 ** -23 of the sum
of absolute values. A product other than 0 is cut once as a term, and each block that has one cuts its accumulator and
its sum: `PER_PRODUCT` = 3 cuts a product at the most, whatever the size of a block. A single product is not cut at all.
Ordinary fp32 arithmetic, which an interpreter or another device may use, stays within the same bound.

A gradient of fp32 is split for this into two fp16 numbers that together are within 2 ** -23 of it (`SPLIT` = 1 cut),
and exactly it where it is at most 2 ** 23 grids. Its sum over a tile takes the cuts of two products, the second at most
2 ** -11 times as large as the first, and three more roundings: of the two sums, onto the sum of the tiles before, and
onto that of the programs before. With the terms of second order that is less than `PER_SPLIT_PRODUCT` = 7 a product.
Both are exact where the terms' absolute values add up to at most 2 ** 23 grids: then no bit is cut, nor lost in the
split.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oracles.values.interval import Interval, scale

PRECISION = {torch.float32: 24, torch.float64: 53}
#: Bits that tensor cores keep for certain, and how often a product is cut; see above.
PRODUCT_PRECISION = 23
PER_PRODUCT = 3
PER_SPLIT_PRODUCT = 7
SPLIT = 1
TINY = {torch.float32: 2.0**-126, torch.float64: 2.0**-1022}
#: The least numbers above 0; that of fp64 is out of reach of products of three fp32 numbers.
LEAST = {torch.float32: 2.0**-149, torch.float64: 0.0}


def grid(x: Tensor, dim: int | None = None) -> Tensor:
    """The largest power of two that divides every finite element of `x` (along `dim`), fp64; inf if all are 0."""
    x = x.to(torch.float64)
    mantissa, exponent = torch.frexp(x)
    integer = (torch.nan_to_num(mantissa, 0.0, 0.0, 0.0) * 2.0**53).to(torch.int64)
    lowest_bit = scale((integer & -integer).to(torch.float64), exponent - 53)
    steps = torch.where(torch.isfinite(x) & (x != 0), lowest_bit, torch.inf)
    if steps.numel() == 0:
        return torch.tensor(torch.inf, dtype=torch.float64)
    return steps.min() if dim is None else steps.min(dim).values


def gamma(roundings: Tensor, precision: int) -> Tensor:
    """Higham's gamma: the relative error that so many roundings in a row can add up to."""
    error = roundings * 2.0**-precision
    return error / (1 - error)


def sum_interval(
    center: Tensor,
    magnitude: Tensor,
    terms: Tensor,
    roundings_per_term: int,
    step: Tensor,
    accumulator: torch.dtype,
) -> Interval:
    """What a sum may come to.

    `center`: the sum in fp64; `magnitude`: the sum of the terms' absolute values; `terms`: how many there are (fp64,
    broadcastable); `roundings_per_term`: roundings of each term before it is added; `step`: the grid of the terms;
    `accumulator`: the type that holds partial sums. One term that is rounded once is exactly the rounded term.
    """
    precision = PRECISION[accumulator]
    exact = (magnitude <= 2.0**precision * step) & (step >= LEAST[accumulator])
    roundings = torch.clamp(terms - 1, min=0) + roundings_per_term
    radius = gamma(roundings, precision) * magnitude + terms * TINY[accumulator]
    single = (terms <= 1).expand_as(center) & (roundings_per_term <= 1)
    radius = torch.where(exact | single, torch.zeros_like(radius), radius)
    return Interval.around(center, radius).rounded(accumulator)


def product_interval(
    center: Tensor, magnitude: Tensor, terms: Tensor, per_term: int, roundings_per_term: int, step: Tensor
) -> Interval:
    """What a sum may come to that tensor cores made from counts and rows, in fp32.

    Arguments as of `sum_interval`; at most `terms` products are not 0, and each may be cut `per_term` times.
    """
    exact = (magnitude <= 2.0**PRODUCT_PRECISION * step) & (step >= LEAST[torch.float32])
    radius = gamma(terms * per_term + roundings_per_term, PRODUCT_PRECISION) * magnitude
    radius = radius + per_term * terms * TINY[torch.float32]
    single = (terms <= 1).expand_as(center) & (roundings_per_term == 0)
    radius = torch.where(exact | single, torch.zeros_like(radius), radius)
    return Interval.around(center, radius).rounded(torch.float32)
