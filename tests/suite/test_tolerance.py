"""Bounds of sums: proved exact where they are, wide enough for any order, and no wider than the formula says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles.values.tolerance import gamma, grid, sum_interval

terms_lists = st.lists(st.floats(-(2.0**20), 2.0**20, width=32), min_size=1, max_size=60)


def allowed(terms: np.ndarray, accumulator: torch.dtype = torch.float32):
    x = torch.tensor(terms, dtype=torch.float64)
    count = torch.tensor(float(len(terms)), dtype=torch.float64)
    return sum_interval(x.sum(), x.abs().sum(), count, 0, grid(x), accumulator)


def test_grid_is_the_largest_power_of_two_that_divides_all() -> None:
    assert float(grid(torch.tensor([3.0, 0.75, 12.0, 0.0, torch.nan, torch.inf]))) == 0.25
    assert float(grid(torch.tensor([1.0 + 2**-23]))) == 2.0**-23
    assert float(grid(torch.tensor([2.0**-149]))) == 2.0**-149
    assert float(grid(torch.zeros(3))) == torch.inf
    assert grid(torch.tensor([[1.0, 0.5], [4.0, 8.0]]), dim=1).tolist() == [0.5, 4.0]


@given(terms=terms_lists, order=st.randoms(use_true_random=False))
def test_any_order_of_fp32_addition_is_allowed(terms: list[float], order) -> None:
    interval = allowed(np.array(terms))
    order.shuffle(terms)
    total = np.float32(0)
    for term in terms:
        total = np.float32(total + np.float32(term))
    assert bool(interval.admits(torch.tensor(float(total))))
    pairwise = np.array(terms, np.float32)
    while len(pairwise) > 1:
        pairwise = np.concatenate((pairwise[0:-1:2] + pairwise[1::2], pairwise[len(pairwise) // 2 * 2 :]))
    assert bool(interval.admits(torch.tensor(float(pairwise[0]))))


@given(terms=st.lists(st.integers(-(2**18), 2**18), min_size=1, max_size=60), shift=st.integers(-20, 20))
def test_sums_on_a_grid_are_exact(terms: list[int], shift: int) -> None:
    scaled = np.array(terms, np.float64) * 2.0**shift
    interval = allowed(scaled)
    assert bool(interval.is_point())
    assert float(interval.lo) == scaled.sum()


def test_a_sum_just_beyond_the_proof_is_not_taken_for_exact() -> None:
    assert bool(allowed(np.array([2.0**24 - 1, 1.0])).is_point())
    assert not bool(allowed(np.array([2.0**24, 1.0])).is_point())


@pytest.mark.parametrize("terms", [1, 2, 5, 8])
def test_a_relative_error_of_two_to_the_minus_18_is_refused(terms: int) -> None:
    """In one of n terms of the same size, as long as n * (n - 1) < 64, where the bound reaches that size."""
    x = np.float64(np.float32(1.2345678)) * np.ones(terms)
    interval = allowed(x)
    wrong = x.sum() + x[0] * 2.0**-18
    assert bool(interval.admits(torch.tensor(x.sum()).to(torch.float32)))
    assert not bool(interval.admits(torch.tensor(wrong)))


def test_gamma_is_highams() -> None:
    assert float(gamma(torch.tensor(10.0, dtype=torch.float64), 24)) == 10 * 2.0**-24 / (1 - 10 * 2.0**-24)
    assert float(gamma(torch.tensor(0.0), 24)) == 0.0
