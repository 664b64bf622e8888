"""From an updated fp32 row to what its table stores: to nearest, or stochastically. The last act of every step.

Stochastic rounding takes one of the two neighbours in the storage type, the upper one with probability
`(x - lower) / (upper - lower)`, so that updates far below the last bit of a weight are kept on average. A number that
the type can hold is kept. The noise is a function of (seed, iteration, element of the flat weights) and of nothing
else, so every route rounds alike and a run can be repeated; seed and iteration are read from device tensors, so a
captured CUDA graph follows them.

Integers throughout: the bits are the same on a CPU and on any GPU, whatever its casts do with subnormal numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Bits of noise a number gets.
NOISE_BITS = tl.constexpr(30)


@triton.jit
def to_storage(weight, elements, rows):
    """fp32 weights as their table stores them. `elements`: where in the flat weights they belong."""
    if rows.rounding_seed is not None:
        noise = rounding_noise(tl.load(rows.rounding_seed), tl.load(rows.iteration), elements)
        stored = round_stochastically(weight, noise, rows.weights.dtype.element_ty)
    else:
        stored = weight.to(rows.weights.dtype.element_ty)
    return stored


@triton.jit
def rounding_noise(seed, iteration, elements):
    """`NOISE_BITS` random bits for each element: Philox4x32-10 with the seed for its key and (element, iteration), both
    with all of their 64 bits, for its counter."""
    word, _1, _2, _3 = tl.philox(
        seed,
        elements.to(tl.uint32),
        (elements >> 32).to(tl.uint32),
        iteration.to(tl.uint32),
        (iteration >> 32).to(tl.uint32),
    )
    return (word >> (32 - NOISE_BITS)).to(tl.int32)


@triton.jit
def round_stochastically(value, noise, dtype: tl.constexpr):
    """fp32 -> fp16 or bf16, upwards in magnitude where the noise and what is cut off add up to a whole.

    Exactly `p * 2 ** NOISE_BITS` values of the noise round up, if p is the part of a unit that is cut off: for every
    bf16 and for fp16 from 2 ** -31 up. Below, p is cut to a multiple of 2 ** -30. Beyond the largest finite number
    rounding is to nearest, and NaN stays NaN.
    """
    tl.static_assert(dtype == tl.float16 or dtype == tl.bfloat16, "only fp16 and bf16 are rounded stochastically")
    # The storage type's fraction bits; fp32's exponent field of its least normal number, fp32's patterns of its largest
    # finite number and of half a unit beyond that; the storage type's pattern of infinity.
    FRACTION: tl.constexpr = 10 if dtype == tl.float16 else 7
    LEAST: tl.constexpr = 113 if dtype == tl.float16 else 1
    LARGEST: tl.constexpr = 0x477FE000 if dtype == tl.float16 else 0x7F7F0000
    OVERFLOW: tl.constexpr = 0x477FF000 if dtype == tl.float16 else 0x7F7F8000
    INFINITY: tl.constexpr = 0x7C00 if dtype == tl.float16 else 0x7F80

    pattern = value.to(tl.int32, bitcast=True)
    magnitude = pattern & 0x7FFFFFFF
    exponent = tl.maximum(magnitude >> 23, 1)  # a subnormal fp32 has the exponent of the least normal one
    significand = magnitude - ((exponent - 1) << 23)  # 24 bits: |value| = significand * 2 ** (exponent - 150)
    cut = 23 - FRACTION + tl.maximum(LEAST - exponent, 0)  # bits below the last one that the storage type has here
    missing = cut - NOISE_BITS  # bits that the noise is short of, negative where it has too many
    significand >>= tl.minimum(tl.maximum(missing, 0), 31)
    cut = tl.minimum(cut, NOISE_BITS)
    units = (significand + (noise >> tl.maximum(-missing, 0))) >> cut
    # The leading bit of `units`, and a carry out of it, count the exponent up by themselves.
    bits = units + ((tl.maximum(exponent, LEAST) - LEAST) << FRACTION)
    bits = tl.where(magnitude > LARGEST, INFINITY - 1, bits)
    bits = tl.where(magnitude >= OVERFLOW, INFINITY, bits)
    bits = tl.where(magnitude > 0x7F800000, INFINITY + (1 << (FRACTION - 1)), bits)  # NaN
    bits |= (pattern >> 16) & 0x8000
    return bits.to(tl.int16).to(dtype, bitcast=True)
