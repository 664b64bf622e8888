"""The small-table routes from outside: when they are taken, what they save, and that they give the same bits twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tbe_kernels as tbe
from corpus.case import Batch, Case, Optimizer, Table, Values
from oracles import interpreter
from oracles.check import Status, Sweep, check
from oracles.report import report
from tbe_kernels.observe import observing
from tests.kernels.graphed import GraphedKernels
from tests.kernels.sync import nothing_synchronises


@pytest.fixture(autouse=True)
def _hooks(device: torch.device) -> None:
    if device.type == "cpu":
        interpreter.install()


def make(device: torch.device, rows: int = 5, dim: int = 64, **changes: Any) -> tbe.TableBatchedEmbeddingBags:
    """One fp16 table beside one that no feature uses; expected bags of 3 and more are long."""
    config = {"small_table_bag_length": 3, **changes.pop("config", {})}
    settings: dict[str, Any] = {
        "feature_table_map": (1,),
        "weights_precision": torch.float16,
        "optimizer": tbe.OptimType.EXACT_ROWWISE_ADAGRAD,
        "learning_rate": 0.5,
        **changes,
    }
    module = tbe.TableBatchedEmbeddingBags([(3, 7), (rows, dim)], config=config, device=device, **settings)
    with torch.no_grad():
        module.weights.copy_(torch.linspace(-1, 1, module.weights.numel()))
    return module


def batch(device: torch.device, lengths: tuple[int, ...] = (4, 0, 5), **changes: Any) -> dict[str, Any]:
    """Bags of these lengths, ids 0, 1, 2, ... in turn, one of them pruned."""
    indices = torch.arange(sum(lengths), device=device) % 5
    indices[1:2] = -1
    offsets = torch.tensor([sum(lengths[:n]) for n in range(len(lengths) + 1)], device=device)
    return {"indices": indices, "offsets": offsets, **changes}


def paths_of(module: tbe.TableBatchedEmbeddingBags, inputs: dict[str, Any], trains: bool = True) -> set[str]:
    """Which paths a step takes, the bounds check apart."""
    heard: set[str] = set()
    with observing(lambda path, work: heard.add(path)):
        output = module(**inputs)
        if trains:
            output.backward(torch.ones_like(output))
    return {path for path in heard if not path.startswith("check.")}


COUNTED = {"forward.small_table", "backward.from_counts"}


@pytest.mark.parametrize("hoists", [False, True])
def test_a_long_bag_of_a_small_table_is_counted_and_nothing_is_sorted(hoists: bool, device: torch.device) -> None:
    module = make(device, config={"hoist_transpose_to_forward": hoists})
    assert paths_of(module, batch(device)) == COUNTED


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        ({}, (2, 1, 5)),  # 8 lookups for 3 bags: expected bags are short
        ({"dim": 63}, (4, 0, 5)),
        ({"dim": 129}, (4, 0, 5)),
        ({"rows": 65}, (4, 0, 5)),
        ({"weights_precision": torch.bfloat16}, (4, 0, 5)),
        ({"output_dtype": torch.float16}, (4, 0, 5)),
        ({"pooling_mode": tbe.PoolingMode.NONE}, (4, 0, 5)),
        ({"config": {"small_table": "never"}}, (4, 0, 5)),
        ({"feature_table_map": (1, 1)}, (4, 0, 5, 3)),
    ],
)
def test_other_batches_go_the_generic_way(
    changes: dict[str, Any], lengths: tuple[int, ...], device: torch.device
) -> None:
    taken = paths_of(make(device, **changes), batch(device, lengths))
    assert not taken & COUNTED
    assert "backward.plan" in taken


def test_weights_and_variable_batches_go_the_generic_way(device: torch.device) -> None:
    module = make(device)
    assert not paths_of(module, batch(device, per_sample_weights=torch.ones(9, device=device))) & COUNTED
    assert not paths_of(module, batch(device, batch_size_per_feature_per_rank=[[2, 1]])) & COUNTED


def test_always_means_wherever_it_can(device: torch.device) -> None:
    short = batch(device, (1, 0, 1))
    assert paths_of(make(device, dim=3, config={"small_table": "always"}), short) == COUNTED
    assert not paths_of(make(device, rows=65, config={"small_table": "always"}), short) & COUNTED


def test_the_backward_can_be_kept_generic(device: torch.device) -> None:
    taken = paths_of(make(device, config={"backward_from_counts": False}), batch(device))
    assert taken == {"forward.small_table", "backward.plan", "backward.short_run"}


def test_counts_are_kept_for_training_alone(device: torch.device) -> None:
    module = make(device)
    with torch.no_grad():
        assert paths_of(module, batch(device), trains=False) == {"forward.small_table"}
    module.weights.requires_grad_(False)
    assert not module(**batch(device)).requires_grad


def step(device: torch.device, **config: object) -> tuple[Tensor, Tensor]:
    """Output and weights of one step over 70 bags, with gradients of many magnitudes."""
    module = make(device, pooling_mode=tbe.PoolingMode.MEAN, config=config)
    output = module(**batch(device, tuple(n % 9 for n in range(70))))
    output.backward(torch.linspace(-3, 3, output.numel(), device=device).view(output.shape) ** 5)
    return output.detach(), module.weights.detach().clone()


def test_the_same_step_twice_gives_the_same_bits(device: torch.device) -> None:
    for first, second in zip(step(device), step(device), strict=True):
        assert torch.equal(first, second)


def test_infinities_and_nans_reach_the_bags_that_name_them_and_no_others(device: torch.device) -> None:
    """Every pair of special rows in a bag of its own, and bags of ordinary rows among them."""
    specials = [torch.inf, -torch.inf, torch.nan, 1.0, 2.0]
    pairs = [(a, b) for a in range(5) for b in range(5)]
    inputs = {
        "indices": torch.tensor(pairs, device=device).flatten(),
        "offsets": torch.arange(0, 2 * len(pairs) + 1, 2, device=device),
    }
    module = make(device, dim=3, config={"small_table": "always"})
    with torch.no_grad():
        module.split_embedding_weights()[1].copy_(torch.tensor(specials)[:, None].expand(5, 3))
    with np.errstate(all="ignore"):
        output = module(**inputs)
    expected = torch.tensor([[specials[a] + specials[b]] * 3 for a, b in pairs], device=device)
    assert torch.equal(output.detach().nan_to_num(7.5, 1e9, -1e9), expected.nan_to_num(7.5, 1e9, -1e9))


@pytest.mark.needs_device("cuda")
def test_nothing_synchronises(device: torch.device) -> None:
    module, inputs = make(device), batch(device)
    with nothing_synchronises():
        module(**inputs).sum().backward()
    assert int(module.iter) == 1


@pytest.mark.needs_device("cuda")
@pytest.mark.parametrize("mode", ["exact", "general"])
def test_captured_step(mode: str, device: torch.device) -> None:
    ids = tuple(range(16))
    spreads = ((ids, ()), ((7,) * 16, ()), ((), ids), ((-1,) * 8, (3,) * 8))
    case = Case(
        tables=(Table(16, 64),),
        feature_table_map=(0,),
        batches=tuple(Batch((bags,)) for bags in spreads),
        order=(0, 0, 1, 1, 2, 2, 3, 3),
        optimizer=Optimizer("EXACT_ROWWISE_ADAGRAD", 1.0, eps=1e-3),
        weights_dtype="float16",
        values=Values(mode, 5, grad_bits=2),
        routing={"small_table": "always"},
    )
    verdict = check(case, GraphedKernels(), device, Sweep.OWN)
    assert verdict.status is Status.PASSED, verdict.reason or report(verdict, None, device.type)
    assert verdict.changed
