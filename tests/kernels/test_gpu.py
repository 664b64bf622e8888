"""What only a GPU can show: no synchronisation, a captured step, a table beyond 2**31 elements.

`python -m pytest tests/kernels --device cuda`
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from corpus.case import OPTIMIZERS, Batch, Case, Optimizer, Sampled, Table, Values
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.check import Status, check
from oracles.report import report
from tests.kernels.graphed import GraphedKernels
from tests.kernels.sync import nothing_synchronises

pytestmark = pytest.mark.needs_device("cuda")

#: Every way from a forward to its backward that a step can take.
ROUTES: dict[str, dict[str, object]] = {
    "atomic": {"long_run_merge": "atomic"},
    "ordered": {"long_run_merge": "ordered", "fused_bounds_check": True},
    "fused": {"long_run_merge": "fused"},
    "hoisted": {"hoist_transpose_to_forward": True, "fused_bounds_check": True},
}


def expect_pass(case: Case, device: torch.device, implementation: object = IMPLEMENTATION, sweep: str = "some") -> None:
    """Check, and fail with the report."""
    verdict = check(case, implementation, device, sweep)  # type: ignore[arg-type]
    assert verdict.status is Status.PASSED, verdict.reason or report(verdict, None, device.type)
    assert verdict.changed


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["WARNING", "IGNORE", "NONE"])
def test_nothing_synchronises(route: str, optimizer: str, mode: str, device: torch.device) -> None:
    from tbe_kernels import BoundsCheckMode, OptimType, TableBatchedEmbeddingBags

    module = TableBatchedEmbeddingBags(
        [(100, 8), (5, 33)],
        optimizer=OptimType[optimizer],
        bounds_check_mode=BoundsCheckMode[mode],
        config={"long_run_threshold": 4, "chunk_size": 2, **ROUTES[route]},
        device=device,
    )
    module.init_embedding_weights_uniform(-1, 1)
    indices = torch.arange(24, device=device) % 5
    offsets = torch.arange(0, 25, 4, device=device)
    psw = torch.ones(24, device=device, requires_grad=True)
    with nothing_synchronises():
        output = module(indices, offsets, psw)
        output.backward(torch.ones_like(output))
        module.set_learning_rate(0.5)
        output = module(indices, offsets)
        output.sum().backward()
    assert int(module.iter) == 2


def moving_runs(optimizer: str, weights_dtype: str, mode: str, route: str, psw: str) -> Case:
    """Four batches of 48 lookups: all rows different, one hot row, eight warm rows, two features sharing."""
    sixteen = tuple(range(16))
    spreads = (
        ((sixteen, ()), ((*range(16, 31), 3), (2,) * 16)),
        (((7,) * 16, ()), ((7,) * 16, (7,) * 16)),
        ((tuple(i % 8 for i in sixteen), ()), ((0,) * 16, tuple(i % 8 for i in sixteen))),
        (((1,) * 9 + (2,) * 7, ()), ((1,) * 16, (-1,) * 15 + (30,))),
    )
    rates = (None, 0.5, 0.125, None)
    return Case(
        tables=(Table(31, 20), Table(3, 5)),
        feature_table_map=(0, 0),
        batches=tuple(Batch(bags, psw, learning_rate=rate) for bags, rate in zip(spreads, rates, strict=True)),
        order=(0, 0, 1, 1, 2, 2, 3, 3),
        optimizer=Optimizer(optimizer, 1.0, eps=1e-3, eta=0.25),
        weights_dtype=weights_dtype,
        values=Values(mode, 5, grad_bits=2),
        routing={"long_run_threshold": 8, "chunk_size": 5, **ROUTES[route]},
    )


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("mode", ["exact", "general"])
@pytest.mark.parametrize("weights_dtype", ["float32", "float16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_captured_step(optimizer: str, weights_dtype: str, mode: str, route: str, device: torch.device) -> None:
    """One graph, replayed on other ids whose runs cross the threshold both ways, and with other learning rates."""
    psw = "given" if weights_dtype == "float16" else "none"
    expect_pass(moving_runs(optimizer, weights_dtype, mode, route, psw), device, GraphedKernels(), "own")


@pytest.mark.parametrize("pooling_mode", ["SUM", "MEAN", "NONE"])
@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize("route", ["atomic", "hoisted"])
def test_captured_step_of_every_pooling(route: str, variable: bool, pooling_mode: str, device: torch.device) -> None:
    """The same with a variable batch, whose sizes the graph keeps, and without pooling."""
    case = moving_runs("EXACT_SGD", "float32", "exact", route, "none")
    batches = case.batches
    if variable:  # the second sample of feature 0 is gone
        sizes = ((1, 0), (1, 1))
        batches = tuple(
            replace(b, features=(b.features[0][:1], b.features[1]), batch_size_per_feature_per_rank=sizes)  # type: ignore[index]
            for b in batches
        )
    expect_pass(replace(case, batches=batches, pooling_mode=pooling_mode), device, GraphedKernels(), "own")


def test_a_variable_batch_does_not_synchronise_and_is_not_captured_unseen(device: torch.device) -> None:
    from tbe_kernels import TableBatchedEmbeddingBags

    module = TableBatchedEmbeddingBags([(100, 8), (5, 33)], device=device)
    module.init_embedding_weights_uniform(-1, 1)
    indices, offsets = torch.arange(24, device=device) % 5, torch.arange(0, 25, 4, device=device)
    with nothing_synchronises():
        for sizes in (((1, 2), (3, 0)), ((0, 0), (6, 0))):
            module(indices, offsets, batch_size_per_feature_per_rank=sizes).sum().backward()
    assert int(module.iter) == 2
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        _ = indices + 1  # an empty graph is warned of
        with pytest.raises(RuntimeError, match="has to be looked up once before it is captured"):
            module(indices, offsets, batch_size_per_feature_per_rank=((2, 0), (2, 2)))


def huge_table(optimizer: str) -> Case:
    """A table of 2**31 + 64,000 elements: ids at its ends and around element 2**31."""
    rows, dim = 2**31 // 64 + 1000, 64
    middle = 2**31 // dim
    bags = ((0, rows - 1, middle), (middle - 1, middle + 1, rows - 1), (middle, rows - 2, rows - 1))
    return Case(
        tables=(Table(3, 7), Table(rows, dim)),
        feature_table_map=(1, 0),
        batches=(Batch((bags, ((0,), (2, 2), ()))), Batch((bags[::-1], ((1,), (), (0, 2))))),
        order=(0, 0, 1, 1),
        optimizer=Optimizer(optimizer, 0.5, eps=1e-3, eta=0.25),
        weights_dtype="float16",
        indices_dtype="int32",
        offsets_dtype="int32",
        values=Values(grad_bits=2),
        routing={"long_run_threshold": 3, "chunk_size": 2},
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_table_beyond_two_to_the_31_elements(optimizer: str, device: torch.device) -> None:
    expect_pass(huge_table(optimizer), device)


@pytest.mark.parametrize("exponent", [0.0, 1.05, 1.3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_large_batch(optimizer: str, exponent: float, device: torch.device) -> None:
    """A million lookups in two steps on the default routing: long runs of thousands of chunks where ids are skewed."""
    features = (Sampled(4096, 128, exponent, 1), Sampled(4096, 64, exponent, 2))
    case = Case(
        tables=(Table(20_000, 16), Table(1000, 8)),
        feature_table_map=(0, 1),
        batches=(Batch(features), Batch(features[::-1])),
        order=(0, 0, 1, 1),
        optimizer=Optimizer(optimizer, 0.5, eps=1e-3, eta=0.25),
        values=Values(grad_bits=1, weight_bits=3),
    )
    expect_pass(case, device, sweep="some")
