"""Stochastic rounding: the right probabilities, independent wherever they have to be, alike on every route.

The statistics and their confidence: `tests.chance`. The experiments: `tests.rounding_statistics`. That each of them
sees what it is for: `tests/suite/test_rounding_faults.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tbe_kernels
from tests.chance import MISS, MOST, Trial
from tests.kernels.graphed import capture
from tests.rounding_statistics import EXPERIMENTS, HALVES, SEED, Rounding

ROUTES: dict[str, dict[str, Any]] = {
    "short runs": {"long_run_threshold": 1000},
    "short runs, other programs": {"long_run_threshold": 1000, "short_run_programs": 7, "min_block_d": 512},
    "atomic": {"long_run_threshold": 1, "chunk_size": 2, "long_run_merge": "atomic"},
    "ordered": {"long_run_threshold": 1, "chunk_size": 1, "long_run_merge": "ordered", "long_run_programs": 5},
    "fused": {"long_run_threshold": 1, "chunk_size": 2, "long_run_merge": "fused"},
}


@pytest.fixture
def rounding(device: torch.device) -> Rounding:
    """The rounding of the kernels."""
    return Rounding(tbe_kernels, device)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.__name__)
def test_experiment(experiment: Callable[[Rounding, Trial], None], rounding: Rounding) -> None:
    trial, begin = Trial(), time.perf_counter()
    experiment(rounding, trial)
    seconds = time.perf_counter() - begin
    figures = f"{trial.comparisons} comparisons, worst {trial.worst:.2f} of its limit, {seconds:.1f} s"
    print(f"\n{experiment.__name__}: {figures}")
    assert trial.problems == []
    # All experiments together may not raise a false alarm more often than once in 10 ** 9 seeds.
    assert 0 < trial.comparisons <= MOST / len(EXPERIMENTS)
    assert MISS * MOST < 1e-9


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_route_rounds_alike_and_a_run_repeats(dtype: torch.dtype, rounding: Rounding) -> None:
    gradient = -9 / 128 * torch.finfo(dtype).eps  # four of them are 9 / 32 of a unit, in any order
    runs = {}
    for name, knobs in ROUTES.items():
        module = rounding.module(dtype, config=knobs)
        runs[name] = [rounding.step(module, gradient, repeats=4) for _ in range(2)]
    first, second = runs["short runs"]
    for name, (one, two) in runs.items():
        assert all(map(torch.equal, one, first)), name
        assert all(map(torch.equal, two, second)), name
    assert not any(map(torch.equal, first, second))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_new_seed_takes_effect_and_the_old_one_comes_back(dtype: torch.dtype, rounding: Rounding) -> None:
    gradient = -0.5 * torch.finfo(dtype).eps
    module = rounding.module(dtype)
    first = rounding.step(module, gradient)
    for seed, same in ((SEED, True), (SEED + 1, False), (SEED - 2**32, False), (-1, False), (SEED, True)):
        module.iter.zero_()
        module.set_rounding_seed(seed)
        assert all(map(torch.equal, rounding.step(module, gradient), first)) == same, seed


def test_fp32_rows_take_no_notice(rounding: Rounding) -> None:
    plain = rounding.module(torch.float32, stochastic_rounding=False)
    asked = rounding.module(torch.float32)
    for gradient in (-(2.0**-23), 2.0**-30, 0.3):
        assert all(map(torch.equal, rounding.step(asked, gradient), rounding.step(plain, gradient)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rounding_is_to_nearest_unless_asked_for(dtype: torch.dtype, rounding: Rounding) -> None:
    unit = torch.finfo(dtype).eps
    module = rounding.module(dtype, stochastic_rounding=False)
    for part, expected in ((0.49, 1.0), (0.51, 1.0 + unit)):
        for table in rounding.step(module, -part * unit):
            assert bool((table == expected).all())


@pytest.mark.needs_device("cuda")
def test_a_captured_step_follows_iteration_and_seed(rounding: Rounding) -> None:
    gradient = -0.5 * torch.finfo(torch.float16).eps
    eager, captured = rounding.module(torch.float16), rounding.module(torch.float16)
    batch = rounding.batch(1, gradient)
    graph = capture(captured, {n: v for n, v in vars(batch).items() if n != "grad_output"}, batch.grad_output).graph
    seen = []
    for seed in (SEED, SEED, SEED + 1):
        captured.set_rounding_seed(seed)
        eager.set_rounding_seed(seed)
        captured.weights.detach().fill_(1.0)
        graph.replay()
        seen.append(rounding.tables(captured))
        assert all(map(torch.equal, rounding.step(eager, gradient), seen[-1]))
    assert not any(map(torch.equal, seen[0], seen[1]))
