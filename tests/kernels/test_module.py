"""The module as users call it: bad input is refused by name and changes nothing; good input of every kind is taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tbe_kernels as tbe
from oracles import interpreter
from tbe_kernels.observe import observing


@pytest.fixture(autouse=True)
def _hooks(device: torch.device) -> None:
    if device.type == "cpu":
        interpreter.install()


def make(device: torch.device, **changes: Any) -> tbe.TableBatchedEmbeddingBags:
    """Two tables of 4 x 3 and 5 x 2, three features, weights 0, 1, 2, ..."""
    settings: dict[str, Any] = {"feature_table_map": (0, 1, 0), "device": device, **changes}
    specs = settings.pop("embedding_specs", [(4, 3), (5, 2)])
    module = tbe.TableBatchedEmbeddingBags(specs, **settings)
    with torch.no_grad():
        module.weights.copy_(torch.arange(module.weights.numel()))
    return module


def batch(device: torch.device, **changes: Any) -> dict[str, Any]:
    """B = 2, T = 3, six lookups."""
    inputs = {
        "indices": torch.tensor([0, 3, 4, 1, 1, 2], device=device),
        "offsets": torch.tensor([0, 1, 2, 3, 4, 6, 6], device=device),
    }
    return {**inputs, **changes}


BAD_MODULES: dict[str, tuple[dict[str, Any], str]] = {
    "no table": ({"embedding_specs": []}, "embedding_specs: expected at least one table"),
    "no row": ({"embedding_specs": [(4, 3), (0, 2)]}, r"embedding_specs\[1\]: rows must be at least 1, got 0"),
    "negative D": ({"embedding_specs": [(4, -3), (1, 2)]}, r"embedding_specs\[0\]: D must be from 1 .* got -3"),
    "a D beyond a tile": ({"embedding_specs": [(1, 2**20 + 1), (1, 2)]}, r"embedding_specs\[0\]: D must be from 1"),
    "rows that are no integer": ({"embedding_specs": [(4.5, 3), (5, 2)]}, r"embedding_specs\[0\]: .* got 4.5"),
    "a feature of no table": ({"feature_table_map": (0, 2)}, r"feature_table_map\[1\]: expected a table .* got 2"),
    "a negative table": ({"feature_table_map": (0, -1)}, r"feature_table_map\[1\]: .* got -1"),
    "no feature": ({"feature_table_map": ()}, "feature_table_map: expected at least one feature"),
    "fp64 weights": ({"weights_precision": torch.float64}, "weights_precision: expected .* got torch.float64"),
    "integer outputs": ({"output_dtype": torch.int32}, "output_dtype: expected .* got torch.int32"),
    "a pooling mode by name": ({"pooling_mode": "SUM"}, "pooling_mode: expected one of .* got 'SUM'"),
    "a bounds check by number": ({"bounds_check_mode": 1}, "bounds_check_mode: expected one of .* got 1"),
    "an unknown optimizer": ({"optimizer": "sgd"}, "optimizer: expected one of EXACT_SGD, .* got 'sgd'"),
    "a negative rate": ({"learning_rate": -0.1}, "learning_rate: expected a finite number from 0 up, got -0.1"),
    "a rate that is no number": ({"learning_rate": float("nan")}, "learning_rate: .* got nan"),
    "a negative eps": ({"optimizer": tbe.OptimType.EXACT_ADAGRAD, "eps": -1.0}, "eps: .* got -1.0"),
    "an eps for SGD": ({"eps": 0.5}, "eps: EXACT_SGD does not read it, got 0.5"),
    "decay for an optimizer without": ({"weight_decay": 0.1}, "weight_decay: EXACT_SGD does not read it"),
    "decay without a mode": (
        {"optimizer": tbe.OptimType.EXACT_ROWWISE_ADAGRAD, "weight_decay": 0.1},
        "weight_decay: 0.1 has no effect with weight_decay_mode NONE",
    ),
    "a decay mode for an optimizer without": (
        {"weight_decay_mode": tbe.WeightDecayMode.L2},
        "weight_decay_mode: EXACT_SGD knows NONE",
    ),
    "a rounding that is no truth": ({"stochastic_rounding": 1}, "stochastic_rounding: expected True or False, got 1"),
    "a seed that is no integer": ({"rounding_seed": 0.5}, "rounding_seed: expected an integer, got 0.5"),
    "a seed beyond int64": (
        {"rounding_seed": 2**63},
        r"rounding_seed: expected an integer from -2\*\*63 to .* got 9223",
    ),
    "an unknown knob": ({"config": {"gather": 3}}, "there is no knob 'gather'"),
    "a knob's value": ({"config": {"gather_width": 3}}, "gather_width: expected one of 1, 2, 4, .* got 3"),
    "a threshold of zero": ({"config": {"long_run_threshold": 0}}, "long_run_threshold: .* from 1 up, got 0"),
    "an unknown merge": ({"config": {"long_run_merge": "quick"}}, "long_run_merge: .* got 'quick'"),
    "a true number": ({"config": {"chunk_size": True}}, "chunk_size: .* got True"),
    "a number for a truth": ({"config": {"accumulate_fp64": 1}}, "accumulate_fp64: .* got 1"),
    "widths that differ without pooling": (
        {"pooling_mode": tbe.PoolingMode.NONE},
        r"embedding_specs: pooling_mode NONE needs one D for all features, got \[2, 3\]",
    ),
}


@pytest.mark.parametrize("name", BAD_MODULES)
def test_a_bad_module_is_refused(name: str, device: torch.device) -> None:
    changes, message = BAD_MODULES[name]
    with pytest.raises(ValueError, match=message):
        make(device, **changes)


BAD_INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "indices of floats": (
        {"indices": torch.zeros(6)},
        "indices: expected torch.int32 or torch.int64, got torch.float32",
    ),
    "indices in rows": ({"indices": torch.zeros(2, 3, dtype=torch.int64)}, r"indices: .* got shape \(2, 3\)"),
    "a list of indices": ({"indices": [0, 1]}, "indices: expected a tensor, got list"),
    "offsets of int16": ({"offsets": torch.zeros(7, dtype=torch.int16)}, "offsets: .* got torch.int16"),
    "too few offsets": ({"offsets": torch.tensor([0, 3, 6])}, "offsets: expected T . B . 1 entries with T = 3.* got 3"),
    "no offsets": ({"offsets": torch.zeros(0, dtype=torch.int64)}, "offsets: expected T . B . 1 entries"),
    "ids without a bag": ({"offsets": torch.tensor([6])}, "offsets: describe no bag, but there are 6 indices"),
    "weights of fp64": (
        {"per_sample_weights": torch.ones(6, dtype=torch.float64)},
        "per_sample_weights: expected torch.float32, got torch.float64",
    ),
    "too few weights": ({"per_sample_weights": torch.ones(5)}, "per_sample_weights: expected one for each of the 6"),
    "meta indices": ({"indices": torch.zeros(6, dtype=torch.int64, device="meta")}, "indices: expected device .*meta"),
    "ranks of too few features": (
        {"batch_size_per_feature_per_rank": [[2], [2]]},
        "batch_size_per_feature_per_rank: expected a list for each of the 3 features, got 2",
    ),
    "features of different ranks": (
        {"batch_size_per_feature_per_rank": [[2], [1, 1], [2]]},
        r"batch_size_per_feature_per_rank\[1\]: expected as many ranks as in \[0\], at least one, got \[1, 1\]",
    ),
    "a negative number of samples": (
        {"batch_size_per_feature_per_rank": [[7], [-1], [0]]},
        r"batch_size_per_feature_per_rank\[1\]: expected integers from 0 up, got \[-1\]",
    ),
    "offsets for fewer samples than the ranks have": (
        {"batch_size_per_feature_per_rank": [[3], [2], [2]]},
        "offsets: expected 8 entries, one more than the samples of batch_size_per_feature_per_rank, got 7",
    ),
    "wanted gradients of too few features": (
        {"feature_requires_grad": torch.ones(2, dtype=torch.int32)},
        "feature_requires_grad: expected one for each of the 3 features, got 2",
    ),
    "wanted gradients as floats": (
        {"feature_requires_grad": torch.ones(3)},
        "feature_requires_grad: expected torch.bool or torch.int32, got torch.float32",
    ),
}


def everything(module: tbe.TableBatchedEmbeddingBags) -> list[Tensor]:
    """All that a call could change."""
    state = [value for table in module.split_optimizer_states() for value in table]
    return [t.detach().clone() for t in (module.weights, module.iter, module.bounds_check_warning, *state)]


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_refused_and_changes_nothing(name: str, device: torch.device) -> None:
    changes, message = BAD_INPUTS[name]
    moved = {k: v.to(device) if isinstance(v, Tensor) and v.device.type == "cpu" else v for k, v in changes.items()}
    module = make(device, optimizer=tbe.OptimType.EXACT_ADAGRAD)
    before = everything(module)
    with pytest.raises(ValueError, match=message):
        module(**batch(device, **moved))
    assert all(map(torch.equal, everything(module), before))


def test_per_sample_weights_with_mean_are_refused(device: torch.device) -> None:
    module = make(device, pooling_mode=tbe.PoolingMode.MEAN)
    with pytest.raises(ValueError, match=r"per_sample_weights: only SUM takes them, the pooling mode is MEAN"):
        module(**batch(device, per_sample_weights=torch.ones(6, device=device)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_fatal_names_the_first_bad_id_and_changes_nothing(dtype: torch.dtype, device: torch.device) -> None:
    module = make(device, bounds_check_mode=tbe.BoundsCheckMode.FATAL)
    indices = torch.tensor([0, 3, 4, 5, 4, -7], device=device, dtype=dtype)
    before = everything(module)
    with pytest.raises(tbe.BoundsCheckError, match=r"indices\[3\] = 5 \(feature 1, bag 1\): .* below 5") as caught:
        module(**batch(device, indices=indices))
    error = caught.value
    assert (error.kind, error.feature, error.bag, error.index, error.rows) == ("indices", 1, 1, 5, 5)
    assert isinstance(error, IndexError)
    assert all(map(torch.equal, everything(module), before))


def test_fatal_names_the_first_bad_offset(device: torch.device) -> None:
    module = make(device, bounds_check_mode=tbe.BoundsCheckMode.FATAL)
    offsets = torch.tensor([0, 1, 3, 2, 4, 6, 6], device=device)
    with pytest.raises(tbe.BoundsCheckError, match=r"offsets\[3\] = 2 \(feature 1, bag 1\)"):
        module(**batch(device, offsets=offsets))


def test_warnings_add_up_over_calls_and_inputs_stay(device: torch.device) -> None:
    module = make(device)
    bad = torch.tensor([0, 4, 4, 1, -2, 2], device=device)
    kept = bad.clone()
    for calls in (1, 2):
        module(**batch(device, indices=bad))
        assert int(module.bounds_check_warning) == 2 * calls
    assert torch.equal(bad, kept)


def test_a_bad_learning_rate_is_refused_later_too(device: torch.device) -> None:
    module = make(device, learning_rate=0.5)
    with pytest.raises(ValueError, match=r"learning_rate: .* got -1"):
        module.set_learning_rate(-1)
    module(**batch(device)).sum().backward()
    assert float(module.split_embedding_weights()[0][0, 0]) == -0.5


def test_the_output_of_a_batch_by_hand(device: torch.device) -> None:
    """Table 0 is [[0 1 2] [3 4 5] [6 7 8] [9 10 11]], table 1 [[12 13] ... [20 21]]; feature 2 adds rows 1 and 2."""
    output = make(device)(**batch(device))
    assert output.tolist() == [[0, 1, 2, 20, 21, 9, 11, 13], [9, 10, 11, 14, 15, 0, 0, 0]]


def test_no_gradient_is_left_and_nothing_changes_without_one(device: torch.device) -> None:
    module = make(device)
    before = everything(module)
    with torch.no_grad():
        output = module(**batch(device))
    assert not output.requires_grad
    assert all(map(torch.equal, everything(module), before))
    module(**batch(device)).sum().backward()
    assert module.weights.grad is None
    assert int(module.iter) == 1


def test_a_second_derivative_is_refused(device: torch.device) -> None:
    psw = torch.ones(6, device=device, requires_grad=True)
    output = make(device)(**batch(device, per_sample_weights=psw))
    seed = torch.ones_like(output, requires_grad=True)
    (gradient,) = torch.autograd.grad(output, psw, seed, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_frozen_weights_still_give_psw_gradients(device: torch.device) -> None:
    module = make(device)
    module.weights.requires_grad_(False)
    before = everything(module)
    psw = torch.ones(6, device=device, requires_grad=True)
    module(**batch(device, per_sample_weights=psw)).sum().backward()
    assert psw.grad is not None
    assert psw.grad.tolist() == [3, 30, 41, 29, 12, 21]
    assert all(map(torch.equal, everything(module), before))


@pytest.mark.parametrize("merge", ["atomic", "fused"])
def test_a_merge_in_no_order_is_refused_where_torch_has_to_be_deterministic(merge: str, device: torch.device) -> None:
    module = make(device, config={"long_run_merge": merge})
    output = module(**batch(device))
    before = everything(module)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match=rf"long_run_merge='{merge}' adds in no fixed order"):
            output.sum().backward()
        assert all(map(torch.equal, everything(module), before))
        seen: list[str] = []
        automatic = make(device, config={"long_run_threshold": 1})
        with observing(lambda path, work: seen.append(path)):
            automatic(**batch(device)).sum().backward()
        assert "backward.long_run.ordered" in seen
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_observer_hears_what_ran_and_nobody_else_pays(device: torch.device) -> None:
    module, heard = make(device), []
    with observing(lambda path, work: heard.append((path, work))):
        module(**batch(device)).sum().backward()
    assert ("forward.pooled", 6) in heard
    assert ("backward.short_run", 6) in heard
    heard.clear()
    module(**batch(device)).sum().backward()
    assert heard == []


@pytest.mark.needs_device("cuda")  # elsewhere the process interprets
def test_cpu_tensors_need_the_interpreter() -> None:
    module = tbe.TableBatchedEmbeddingBags([(4, 3)], device="cpu")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        module(torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1]))


def train(module: tbe.TableBatchedEmbeddingBags, steps: int) -> None:
    """Some steps on the usual batch, from other gradients each time."""
    device = module.weights.device
    for _ in range(steps):
        output = module(**batch(device))
        output.backward(torch.arange(1.0, 1 + output.numel(), device=device).view(output.shape) * (1 + module.iter))


@pytest.mark.parametrize("optimizer", tbe.OptimType)
def test_a_training_run_goes_on_from_its_state_dict(optimizer: tbe.OptimType, device: torch.device) -> None:
    first, second = (make(device, optimizer=optimizer) for _ in range(2))
    train(first, 2)
    first.set_learning_rate(0.25)
    first.bounds_check_warning.fill_(3)
    saved = {name: value.clone() for name, value in first.state_dict().items()}
    assert {"weights", "iter", "hyper", "bounds_check_warning"} <= saved.keys()
    second.load_state_dict(saved)
    train(first, 2)
    train(second, 2)
    assert all(map(torch.equal, everything(first), everything(second)))
    assert int(second.iter) == 4
    assert int(second.bounds_check_warning) == 3
    assert float(second.tables.optimizer.hyper[0]) == 0.25


def test_a_module_is_neither_moved_nor_converted(device: torch.device) -> None:
    module = make(device)
    assert module.to(device) is module
    with pytest.raises(RuntimeError, match=r"stays as it was made, torch.float32 on .*; got torch.float16"):
        module.half()
    with pytest.raises(RuntimeError, match=r"got torch.float32 on meta"):
        module.to("meta")
    train(module, 1)
    assert int(module.iter) == 1


@pytest.mark.parametrize("trains_psw", [False, True])
@pytest.mark.parametrize("trains_weights", [False, True])
@pytest.mark.parametrize("hoisted", [False, True])
def test_every_combination_of_gradients(
    trains_weights: bool, trains_psw: bool, hoisted: bool, device: torch.device
) -> None:
    """Frozen weights keep every bit; per-sample weights get a gradient if and only if they ask for one."""
    module = make(device, config={"hoist_transpose_to_forward": hoisted})
    module.weights.requires_grad_(trains_weights)
    before, heard = everything(module), []
    psw = torch.ones(6, device=device, requires_grad=trains_psw)
    with observing(lambda path, work: heard.append(path)):
        output = module(**batch(device, per_sample_weights=psw))
        assert output.requires_grad == (trains_weights or trains_psw)
        assert ("backward.plan.hoisted" in heard) == (trains_weights and hoisted)
        if output.requires_grad:
            output.sum().backward()
    changed = not all(map(torch.equal, everything(module), before))
    assert changed == trains_weights == (f"backward.plan{'.hoisted' * hoisted}" in heard)
    assert (psw.grad is not None) == trains_psw
    assert module.weights.grad is None


@pytest.mark.parametrize("hoisted", [False, True])
def test_nothing_is_planned_without_gradients(hoisted: bool, device: torch.device) -> None:
    module, heard = make(device, config={"hoist_transpose_to_forward": hoisted}).eval(), []
    with torch.no_grad(), observing(lambda path, work: heard.append(path)):
        output = module(**batch(device))
    assert output.tolist() == [[0, 1, 2, 20, 21, 9, 11, 13], [9, 10, 11, 14, 15, 0, 0, 0]]
    assert heard == ["check.offsets", "check.indices", "forward.pooled"]


def test_features_may_want_no_psw_gradient(device: torch.device) -> None:
    psw = torch.ones(6, device=device, requires_grad=True)
    wanted = torch.tensor([True, False, True], device=device)
    make(device)(**batch(device, per_sample_weights=psw, feature_requires_grad=wanted)).sum().backward()
    assert psw.grad is not None
    assert psw.grad.tolist() == [3, 30, 0, 0, 12, 21]


def test_a_variable_batch_by_hand(device: torch.device) -> None:
    """Feature 0 has one sample on rank 1; feature 1 two on rank 0, one on rank 1; feature 2 none at all."""
    sizes = ((0, 1), (2, 1), (0, 0))
    indices = torch.tensor([3, 0, 1, 4, 2], device=device)
    offsets = torch.tensor([0, 1, 3, 4, 5], device=device)
    output = make(device)(indices, offsets, batch_size_per_feature_per_rank=sizes)
    assert output.tolist() == [12 + 14, 13 + 15, 20, 21, 9, 10, 11, 16, 17]


def test_rows_without_pooling_by_hand(device: torch.device) -> None:
    module = make(device, embedding_specs=[(4, 3), (5, 3)], pooling_mode=tbe.PoolingMode.NONE)
    output = module(torch.tensor([0, -1, 4, 9], device=device), torch.tensor([0, 1, 2, 2, 4, 4, 4], device=device))
    assert output.tolist() == [[0, 1, 2], [0, 0, 0], [24, 25, 26], [12, 13, 14]]
    assert int(module.bounds_check_warning) == 1
