"""Known quirks of Triton's interpreter, as it comes: prints {name: whether the interpreter does it right} as JSON.

Run as a process of its own, without the hooks of `oracles.interpreter`.
"""

from __future__ import annotations

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl


@triton.jit
def cast_kernel(out, x, SHAPE: tl.constexpr):
    at = tl.arange(0, SHAPE)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit
def add_kernel(out, x, y):
    tl.store(out, tl.load(x) + tl.load(y))


@triton.jit
def atomic_kernel(out, x):
    tl.atomic_add(out, tl.load(x))


@triton.jit
def masked_kernel(out, x, SHAPE: tl.constexpr):
    at = tl.arange(0, SHAPE)
    tl.store(out + at, tl.load(x + at, mask=at < 1))


@triton.jit
def overflow_kernel(out, x):
    tl.store(out, (tl.load(x) + tl.load(x)).to(tl.int64))


def bf16_cast_rounds() -> bool:
    """1 + 3 * 2**-9 lies nearer to the bf16 above."""
    x, out = torch.tensor([1 + 3 * 2.0**-9]), torch.zeros(1, dtype=torch.bfloat16)
    cast_kernel[(1,)](out, x, 1)
    return bool(out.float() == 1 + 2.0**-7)


def fp64_to_bf16_keeps_the_value() -> bool:
    x, out = torch.tensor([2.5], dtype=torch.float64), torch.zeros(1, dtype=torch.bfloat16)
    cast_kernel[(1,)](out, x, 1)
    return bool(out.float() == 2.5)


def bf16_adds() -> bool:
    x, y, out = (torch.tensor([v], dtype=torch.bfloat16) for v in (2.5, 2.0, 0.0))
    add_kernel[(1,)](out, x, y)
    return bool(out.float() == 4.5)


def bf16_atomic_adds() -> bool:
    x, out = torch.tensor([1.0], dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
    atomic_kernel[(1,)](out, x)
    return bool(out.float() == 1.0)


def masked_lanes_are_not_zero() -> bool:
    x, out = torch.ones(2), torch.zeros(2)
    masked_kernel[(1,)](out, x, 2)
    return bool(out[1] != 0)


def int32_overflow_is_told() -> bool:
    x, out = torch.tensor([2**31 - 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    overflow_kernel[(1,)](out, x)
    return False  # it came this far in silence


@triton.jit
def mask_kernel(out, x, wanted, SHAPE: tl.constexpr):
    at = tl.arange(0, SHAPE)
    live = (at < 1) & (tl.load(wanted) != 0)
    tl.store(out + at, tl.load(x + at, mask=live, other=0))


def a_block_and_a_scalar_make_a_mask() -> bool:
    x, out = torch.ones(2), torch.zeros(2)
    mask_kernel[(1,)](out, x, torch.ones(1, dtype=torch.int32), 2)
    return bool(out.tolist() == [1, 0])


@triton.jit
def histogram_kernel(out, x, BINS: tl.constexpr, SHAPE: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, SHAPE)), BINS))


def histograms_drop_what_is_just_beyond() -> bool:
    x, out = torch.tensor([0, 2, 2, 2], dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    histogram_kernel[(1,)](out, x, 2, 4)
    return bool(out.tolist() == [1, 0])


QUIRKS = (
    bf16_cast_rounds,
    fp64_to_bf16_keeps_the_value,
    bf16_adds,
    bf16_atomic_adds,
    masked_lanes_are_not_zero,
    int32_overflow_is_told,
    a_block_and_a_scalar_make_a_mask,
    histograms_drop_what_is_just_beyond,
)


def right(quirk) -> bool:
    """Whether the interpreter does it right; an exception is not right."""
    try:
        return quirk()
    except Exception:
        return False


if __name__ == "__main__":
    print(json.dumps({quirk.__name__: right(quirk) for quirk in QUIRKS}))
