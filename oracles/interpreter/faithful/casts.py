"""Casts to and from bf16 as a GPU does them: to nearest, ties to even, once.

The interpreter keeps bf16 as bit patterns; its cast from fp32 truncates and those from and to fp64 take the pattern for
a number. `tests/suite` pins each of these quirks with a strict xfail, so that a Triton without them is noticed.
"""

from __future__ import annotations

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def bf16_to_fp32(bits: np.ndarray) -> np.ndarray:
    """uint16 patterns -> their fp32 numbers."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def fp32_to_bf16(x: np.ndarray) -> np.ndarray:
    """fp32 -> uint16 patterns of the nearest bf16 (ties to even); NaN stays NaN."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FC0), rounded).astype(np.uint16).reshape(x.shape)


def fp64_to_fp32_odd(x: np.ndarray) -> np.ndarray:
    """fp64 -> fp32 rounded to odd: a later rounding to fewer bits then comes out as if it were the only one."""
    near = x.astype(np.float32)
    bits = np.ascontiguousarray(near).view(np.uint32).copy()
    inexact = np.isfinite(x) & (near.astype(np.float64) != x)
    beyond = inexact & (np.abs(near.astype(np.float64)) > np.abs(x))
    bits[beyond] -= np.uint32(1)  # towards zero, then the last bit says that something was cut off
    bits[inexact] |= np.uint32(1)
    return bits.view(np.float32).reshape(x.shape)


def install() -> None:
    """Replace the builder's float casts where bf16 takes part."""
    builder = interpreter.interpreter_builder
    plain_cast = builder.cast_impl

    def cast(src: interpreter.TensorHandle, dst_type: tl.dtype) -> interpreter.TensorHandle:
        have, want = src.dtype.scalar, dst_type.scalar
        if have == tl.bfloat16 and want != tl.bfloat16:
            wide = interpreter.TensorHandle(bf16_to_fp32(src.data), tl.float32)
            return wide if want == tl.float32 else plain_cast(wide, dst_type)
        if want == tl.bfloat16 and have != tl.bfloat16:
            data = np.atleast_1d(src.data)
            data = fp64_to_fp32_odd(data) if data.dtype == np.float64 else data.astype(np.float32)
            return interpreter.TensorHandle(fp32_to_bf16(data).reshape(src.data.shape), tl.bfloat16)
        return plain_cast(src, dst_type)

    builder.cast_impl = cast
