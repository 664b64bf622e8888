"""The numbers of a case, as numpy arrays: the same on any machine, whatever the versions of torch and numpy.

They come from a counter-based generator (splitmix64) over (seed, stream, place) instead of a library's, whose streams
may change.
"""

from __future__ import annotations

import numpy as np

#: Bits of a significand, the leading one included.
SIGNIFICANDS = {"float32": 24, "float16": 11, "bfloat16": 8}


def random_bits(seed: int, stream: int, count: int) -> np.ndarray:
    """`count` random uint64, a function of (seed, stream, place) alone (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(seed * 0xD1342543DE82EF95 + stream * 0xA0761D6478BD642F & (2**64 - 1))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def integers(bits: np.ndarray, width: int) -> np.ndarray:
    """fp32 integers of either sign with magnitudes from 1 to `2 ** width - 1`."""
    size = (bits >> np.uint64(8)) % np.uint64(max(2**width - 1, 1)) + np.uint64(1)
    return np.where(bits & np.uint64(1), 1.0, -1.0).astype(np.float32) * size.astype(np.float32)


def general(bits: np.ndarray, spread: int) -> np.ndarray:
    """fp32 numbers of either sign, mantissas uniform, exponents uniform from -spread to spread."""
    exponent = ((bits >> np.uint64(32)) % np.uint64(2 * spread + 1)).astype(np.int64) - spread
    mantissa = 1.0 + ((bits >> np.uint64(8)) & np.uint64(0x7FFFFF)).astype(np.float64) * 2.0**-23
    return (np.where(bits & np.uint64(1), 1.0, -1.0) * np.ldexp(mantissa, exponent)).astype(np.float32)


def plant_specials(numbers: np.ndarray, bits: np.ndarray) -> None:
    """Turn one element in 32 into an infinity or NaN."""
    flat, chosen = numbers.reshape(-1), np.flatnonzero(bits % np.uint64(32) == 5)
    kind = (bits[chosen] >> np.uint64(16)) % np.uint64(3)
    flat[chosen] = np.select([kind == 0, kind == 1], [np.inf, -np.inf], np.nan)


def edges(bits: np.ndarray, dtype: str, small: int) -> np.ndarray:
    """fp32 numbers at which sums and steps meet the roundings of `dtype`: at ties of it and right beside them, at the
    ends of a binade, and one time in `small` so small that they move another number across such a place.
    """
    half = 2.0 ** -SIGNIFICANDS[dtype]  # of a unit in the last place of 1
    beside = np.maximum(half * 2.0**-12, 2.0**-23)
    near_one = np.array([1, 1 + half, 1 + half + beside, 1 + 2 * half, 1 + 3 * half, 1.5, 2 - 2 * half, 2 - half])
    tiny = np.array([half, half / 2, 1.5 * half, half * (1 + 2.0**-10), half * (1 - 2.0**-10), 2.0**-26, 2.0**-24, 0])
    which = (bits >> np.uint64(8)) % np.uint64(8)
    number = np.where((bits >> np.uint64(16)) % np.uint64(small) == 0, tiny[which], near_one[which])
    binade = ((bits >> np.uint64(32)) % np.uint64(3)).astype(np.int64) - 1
    return (np.where(bits & np.uint64(1), 1.0, -1.0) * np.ldexp(number, binade)).astype(np.float32)


def special_weights(weights: np.ndarray, bits: np.ndarray, pruned: np.ndarray) -> np.ndarray:
    """The weights with an infinity, NaN, zero of either sign or subnormal number at the lookups that are `pruned`,
    where it means nothing, and at one in eight of the others."""
    kinds = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 2.0**-140], np.float32)
    special = pruned | ((bits >> np.uint64(40)) % np.uint64(8) == 0)
    return np.where(special, kinds[(bits >> np.uint64(48)) % np.uint64(6)], weights)
