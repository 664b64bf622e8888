"""The bounds of sums made by tensor cores, against a model of the coarsest ones: aligned to the largest, then cut off.

And what the small-table routes rely on in Triton's interpreter, with our hooks in: fp16 products summed in fp32,
histograms that leave masked lanes out.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from oracles import interpreter
from oracles.values.tolerance import PER_PRODUCT, PER_SPLIT_PRODUCT, SPLIT, grid, product_interval

BLOCKS = st.sampled_from((4, 8, 16))


def cut(x: float, unit: float) -> float:
    """Towards zero, to a multiple of `unit`."""
    return math.trunc(x / unit) * unit


def cut_sum(terms: list[float], block: int) -> float:
    """A dot product's sum as Fasi et al. found it on V100: blocks of terms join the accumulator, all of them aligned to
    the largest and cut off 23 places below its leading bit, and the sum is cut off to 24 bits. Exact in fp64."""
    total = 0.0
    for at in range(0, len(terms), block):
        parts = [total, *terms[at : at + block]]
        largest = max(map(abs, parts))
        if largest == 0.0:
            continue
        unit = 2.0 ** (math.frexp(largest)[1] - 1 - 23)
        total = sum(cut(part, unit) for part in parts)
        if total:
            total = cut(total, 2.0 ** (math.frexp(total)[1] - 24))
    return total


def interval(terms: np.ndarray, lookups: int, per_term: int, roundings: int):
    x = torch.tensor(terms, dtype=torch.float64)
    return product_interval(x.sum(), x.abs().sum(), torch.tensor(float(lookups)), per_term, roundings, grid(x))


def halves(fewest: int = 1) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(-60000, 60000, width=16), min_size=fewest, max_size=64)


counts = st.integers(0, 256)


@given(rows=halves(), some=st.lists(counts, min_size=64, max_size=64), block=BLOCKS)
def test_products_cut_off_by_tensor_cores_are_allowed(rows: list[float], some: list[int], block: int) -> None:
    terms = np.array([n * w for n, w in zip(some, rows, strict=False)])
    products = sum(1 for t in terms if t)
    allowed = interval(terms, products, PER_PRODUCT, 0)
    assert bool(allowed.admits(torch.tensor(cut_sum(terms.tolist(), block))))
    nearest = np.float32(0)
    for term in terms:
        nearest = np.float32(nearest + np.float32(term))
    assert bool(allowed.admits(torch.tensor(float(nearest))))


def split(g: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """fp32 gradients -> (high, low, scale), as the backward from counts splits a tile."""
    most = float(np.abs(g).max())
    scale = 2.0 ** (14 - (math.frexp(most)[1] - 1))
    scaled = g.astype(np.float64) * scale
    high = scaled.astype(np.float32).astype(np.float16)
    low = ((scaled - high.astype(np.float64)) * 2.0**12).astype(np.float32).astype(np.float16)
    return high.astype(np.float64), low.astype(np.float64), scale


def split_sum(g: np.ndarray, some: list[int], block: int) -> float:
    """counts x gradients as the backward makes them, on the same model of tensor cores."""
    high, low, scale = split(g)
    high_sum, low_sum = (cut_sum([n * x for n, x in zip(some, part, strict=False)], block) for part in (high, low))
    return float(np.float32(np.float32(high_sum) + np.float32(low_sum) * np.float32(2.0**-12))) / scale


@st.composite
def gradients(draw: st.DrawFn) -> np.ndarray:
    """fp32 numbers within 2 ** 27 of each other, zeros among them."""
    size, shift = draw(st.integers(1, 32)), draw(st.integers(-40, 40))
    mantissas = draw(st.lists(st.integers(2**23, 2**24 - 1), min_size=size, max_size=size))
    places = draw(st.lists(st.integers(0, 26), min_size=size, max_size=size))
    signs = draw(st.lists(st.sampled_from((1, -1, 1, -1, 0)), min_size=size, max_size=size))
    signs[0] = signs[0] or 1  # not all of them
    return np.array(
        [s * m * 2.0 ** (p - 23 + shift) for s, m, p in zip(signs, mantissas, places, strict=True)], np.float32
    )


some_counts = st.lists(st.sampled_from((0, 1, 2, 3, 100, 2048)), min_size=32, max_size=32)


@given(g=gradients(), some=some_counts, block=BLOCKS)
def test_split_gradients_cut_off_by_tensor_cores_are_allowed(g: np.ndarray, some: list[int], block: int) -> None:
    terms = np.array([n * float(x) for n, x in zip(some, g, strict=False)])
    products = sum(1 for t in terms if t)
    allowed = interval(terms, products, PER_SPLIT_PRODUCT, SPLIT)
    assert bool(allowed.admits(torch.tensor(split_sum(g, some, block))))


@given(g=gradients())
def test_a_split_gradient_is_within_one_cut(g: np.ndarray) -> None:
    high, low, scale = split(g)
    error = np.abs((high + low * 2.0**-12) / scale - g.astype(np.float64))
    assert (error <= 2.0**-23 * np.abs(g.astype(np.float64))).all()


@given(
    integers=st.lists(st.integers(-(2**17), 2**17), min_size=1, max_size=32).filter(any),
    some=st.lists(st.sampled_from((0, 1, 2)), min_size=32, max_size=32),
    shift=st.integers(-30, 30),
    block=BLOCKS,
)
def test_split_gradients_on_a_grid_are_exact(integers: list[int], some: list[int], shift: int, block: int) -> None:
    g = np.array(integers, np.float32) * np.float32(2.0**shift)
    terms = np.array([n * float(x) for n, x in zip(some, g, strict=False)])
    assert np.abs(terms).sum() <= 2.0**23 * float(grid(torch.tensor(terms)))
    assert split_sum(g, some, block) == terms.sum()
    assert bool(interval(terms, 32, PER_SPLIT_PRODUCT, SPLIT).is_point())


def test_half_of_a_gradient_is_refused() -> None:
    """Without the low half the error is 2 ** -12 of the gradient, without the scale it is all of it."""
    g = np.float32(1.2345678)
    allowed = interval(np.array([float(g)] * 8), 8, PER_SPLIT_PRODUCT, SPLIT)
    assert not bool(allowed.admits(torch.tensor(8 * float(np.float16(g)), dtype=torch.float64)))
    assert bool(allowed.admits(torch.tensor(8 * float(g), dtype=torch.float64)))


@triton.jit
def _product_kernel(out, a, b, M: tl.constexpr):
    at = tl.arange(0, M)[:, None] * M + tl.arange(0, M)[None, :]
    tl.store(out + at, tl.dot(tl.trans(tl.load(a + at)), tl.load(b + at)))


@triton.jit
def _histogram_kernel(out, x, least, BINS: tl.constexpr, SHAPE: tl.constexpr):
    value = tl.load(x + tl.arange(0, SHAPE))
    tl.store(out + tl.arange(0, BINS), tl.histogram(value, BINS, mask=value >= least))


needs_interpreter = pytest.mark.skipif(not interpreter.interpreting(), reason="needs --device cpu")


@needs_interpreter
def test_products_of_fp16_are_summed_in_fp32() -> None:
    """2048 * 1 + 1 * 1 + ... leaves fp16 at the first step; 2048 * 1.001 leaves its 11 bits."""
    interpreter.install()
    a, b = torch.ones(16, 16, dtype=torch.float16), torch.ones(16, 16, dtype=torch.float16)
    a[0], b[1] = 2048, 1.0009765625
    out = torch.empty(16, 16)
    _product_kernel[(1,)](out, a, b, 16)
    assert torch.equal(out.double(), a.double().T @ b.double())
    b[3, 5] = torch.nan
    with np.errstate(all="ignore"):
        _product_kernel[(1,)](out, torch.zeros_like(a), b, 16)
    assert out[:, 5].isnan().all()  # 0 * NaN: why a table's NaNs are taken out


@needs_interpreter
@pytest.mark.parametrize("shape", [4, 16, 256])
def test_histograms_leave_masked_lanes_out(shape: int) -> None:
    interpreter.install()
    x = torch.arange(shape, dtype=torch.int32) % 20 - 2
    out = torch.full((16,), -1, dtype=torch.int32)
    _histogram_kernel[(1,)](out, x, 0, 16, shape)
    assert out.tolist() == [int((x == n).sum()) for n in range(16)]
