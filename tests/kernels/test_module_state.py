"""One owner of every tensor: what is assigned, loaded or copied is what is used, trained and saved."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tbe_kernels as tbe
from oracles import interpreter
from tests.kernels.test_module import batch, everything, make

ADAM = tbe.OptimType.ADAM
ADAGRAD = tbe.OptimType.EXACT_ROWWISE_ADAGRAD
Module = tbe.TableBatchedEmbeddingBags


@pytest.fixture(autouse=True)
def _hooks(device: torch.device) -> None:
    if device.type == "cpu":
        interpreter.install()


def step(module: Module) -> Tensor:
    """One step of learning rate 1; what the forward gave."""
    module.set_learning_rate(1.0)
    output = module(**batch(module.weights.device))
    output.sum().backward()
    return output.detach()


def expect_twins(one: Module, other: Module) -> None:
    """Both give and learn the same, and show it in their state dicts."""
    assert torch.equal(step(one), step(other))
    assert all(map(torch.equal, everything(one), everything(other)))
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def assigned(module: Module, saved: dict[str, Tensor]) -> None:
    module.load_state_dict({name: tensor.clone() for name, tensor in saved.items()}, assign=True)


def loaded(module: Module, saved: dict[str, Tensor]) -> None:
    module.load_state_dict(saved)


def set_one_by_one(module: Module, saved: dict[str, Tensor]) -> None:
    module.weights = nn.Parameter(saved["weights"].clone())
    for name in saved.keys() - {"weights", "_extra_state"}:
        setattr(module, name, saved[name].clone())


@pytest.mark.parametrize("take", [loaded, assigned, set_one_by_one])
@pytest.mark.parametrize("optimizer", [tbe.OptimType.EXACT_SGD, ADAM])
def test_what_is_put_in_place_is_used_trained_and_saved(
    take: Callable[[Module, dict[str, Tensor]], None], optimizer: tbe.OptimType, device: torch.device
) -> None:
    first, second = make(device, optimizer=optimizer), make(device, optimizer=optimizer, learning_rate=0.5)
    step(first)
    with torch.no_grad():
        second.weights.fill_(-1.0)
    take(second, first.state_dict())
    expect_twins(first, second)
    assert int(second.iter) == int(first.iter) == 2


@pytest.mark.parametrize("take", [loaded, assigned, set_one_by_one])
def test_a_lookup_for_inference_may_be_the_first_after_tensors_were_put_in_place(
    take: Callable[[Module, dict[str, Tensor]], None], device: torch.device
) -> None:
    """What it makes is not left to be written to in training."""
    first, second = make(device, optimizer=ADAM), make(device, optimizer=ADAM, learning_rate=0.5)
    take(second, first.state_dict())
    with torch.inference_mode():
        second(**batch(device))
    expect_twins(first, second)


def test_a_functional_call_uses_and_trains_what_it_is_given(device: torch.device) -> None:
    module, twin = make(device), make(device)
    before = module.weights.detach().clone()
    other = nn.Parameter(2 * before)
    with torch.no_grad():
        twin.weights.copy_(2 * before)
    output = torch.func.functional_call(module, {"weights": other}, kwargs=batch(device))
    output.sum().backward()
    expected = twin(**batch(device))
    expected.sum().backward()
    assert torch.equal(output, expected)
    assert torch.equal(other, twin.weights)
    assert torch.equal(module.weights, before)
    step(module)  # and then its own again
    assert not torch.equal(module.weights, before)


BAD_WEIGHTS = {
    "another length": (lambda w: w[:3], r"weights: expected shape torch.Size\(\[22\]\)"),
    "another type": (lambda w: w.half(), "weights: expected dtype torch.float32, got torch.float16"),
    "another device": (lambda w: w.to("meta"), "weights: expected device .*, got meta"),
    "gaps": (lambda w: torch.zeros(44, device=w.device)[::2], "weights: expected a contiguous tensor"),
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_weights_that_do_not_fit_are_refused(name: str, device: torch.device) -> None:
    make_bad, told = BAD_WEIGHTS[name]
    module = make(device)
    module.weights = nn.Parameter(make_bad(module.weights.detach()))
    with pytest.raises(ValueError, match=told):
        module(**batch(device))


def by_torch_save(module: Module) -> Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Module], Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": by_torch_save,
}


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("optimizer", tbe.OptimType)
def test_copies_go_on_alike_and_apart(
    make_copy: Callable[[Module], Module], optimizer: tbe.OptimType, device: torch.device
) -> None:
    module = make(device, optimizer=optimizer, rounding_seed=7, gradient_clipping=True, max_gradient=0.5)
    step(module)
    other = make_copy(module)
    before = [tensor.clone() for tensor in everything(other)]
    step(module)
    assert all(map(torch.equal, everything(other), before))  # independent of the original
    step(other)
    assert all(map(torch.equal, everything(other), everything(module)))


def test_nothing_of_a_kernel_travels(device: torch.device) -> None:
    """Compiled kernels hold locks, which no pickle takes; interpreted ones hide it."""
    assert b"triton" not in pickle.dumps(make(device, optimizer=ADAM)).lower()


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "tables in another order": (
        {"embedding_specs": [(5, 2), (4, 3)], "feature_table_map": (1, 0, 1)},
        r"\[0\]: \(5, 2\) here",
    ),
    "other rows of the same total": ({"embedding_specs": [(2, 6), (5, 2)]}, r"\[0\]: \(2, 6\) here, \(4, 3\) in the"),
    "more tables": (
        {"embedding_specs": [(4, 3), (4, 2), (1, 2)]},
        "embedding_specs: 3 tables here, 2 in the checkpoint",
    ),
    "another optimizer": ({"optimizer": tbe.OptimType.LAMB}, "optimizer: LAMB here, ADAM in the checkpoint"),
    "another pooling": ({"pooling_mode": tbe.PoolingMode.MEAN}, "pooling_mode: MEAN here, SUM in the checkpoint"),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("nested", [False, True])
def test_a_checkpoint_of_another_module_is_refused_and_changes_nothing(
    name: str, nested: bool, device: torch.device
) -> None:
    changes, told = OTHERS[name]
    saved_of, module = make(device, optimizer=ADAM), make(device, **{"optimizer": ADAM, **changes})
    step(saved_of)
    before = [tensor.clone() for tensor in everything(module)]
    outer = [nn.ModuleDict({"bags": m}) if nested else m for m in (saved_of, module)]
    with pytest.raises(RuntimeError, match=told):
        outer[1].load_state_dict(outer[0].state_dict())
    assert all(map(torch.equal, everything(module), before))


def test_hyper_parameters_are_the_checkpoint_s(device: torch.device) -> None:
    """A bound of norms too, which decides what is compiled."""
    first = make(device, optimizer=ADAGRAD, max_norm=1.0, eps=0.5)
    second = make(device, optimizer=ADAGRAD)
    second.load_state_dict(first.state_dict())
    expect_twins(first, second)
    touched = second.split_embedding_weights()[0][0]
    assert float(torch.linalg.vector_norm(touched)) <= 1.0 + 1e-6
    first.load_state_dict(make(device, optimizer=ADAGRAD).state_dict())
    expect_twins(first, make(device, optimizer=ADAGRAD))


def test_a_lookup_begun_before_a_checkpoint_was_loaded_goes_on_with_what_it_says(device: torch.device) -> None:
    """What is set afterwards reaches its backward too: the bound of norms, the scale, where row gradients are left."""
    bounded = make(device, optimizer=ADAGRAD, max_norm=1.0)
    module = make(device, optimizer=ADAGRAD)
    output = module(**batch(device))
    module.load_state_dict(bounded.state_dict())
    output.sum().backward()
    step_of = make(device, optimizer=ADAGRAD, max_norm=1.0)
    step_of(**batch(device)).sum().backward()
    assert torch.equal(module.weights, step_of.weights)

    module, plain = make(device), make(device)
    output = module(**batch(device))
    module.load_state_dict(plain.state_dict())
    module.gradient_scale = torch.tensor(4.0, device=device)
    (4 * output.sum()).backward()
    plain(**batch(device)).sum().backward()
    assert torch.equal(module.weights, plain.weights)

    module = make(device, optimizer=tbe.OptimType.NONE)
    output = module(**batch(device))
    module.load_state_dict(module.state_dict())
    output.sum().backward()
    assert module.row_gradients is not None
