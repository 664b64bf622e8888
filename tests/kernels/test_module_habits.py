"""What people do with modules and gradients: nothing moves unless it was asked for, nothing is lost in silence."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import tbe_kernels as tbe
from oracles import interpreter
from tests.kernels.test_module import batch, make


@pytest.fixture(autouse=True)
def _hooks(device: torch.device) -> None:
    if device.type == "cpu":
        interpreter.install()


def state_of(module: tbe.TableBatchedEmbeddingBags) -> dict[str, Tensor]:
    """A copy of all that a backward may change."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def is_unchanged(module: tbe.TableBatchedEmbeddingBags, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def weighted(device: torch.device) -> tuple[dict[str, Any], Tensor]:
    """A batch whose per-sample weights, 1 to 6, are trained."""
    psw = torch.arange(1.0, 7.0, device=device, requires_grad=True)
    return batch(device, per_sample_weights=psw), psw


def dots(module: tbe.TableBatchedEmbeddingBags, inputs: dict[str, Any]) -> Tensor:
    """The gradients of the per-sample weights for an output gradient of ones: the sum of each row looked up."""
    first, second = module.split_embedding_weights()
    tables = (first, first, second, second, first, first)
    return torch.stack([table[i].sum() for table, i in zip(tables, inputs["indices"].tolist(), strict=True)])


@pytest.mark.parametrize("optimizer", [tbe.OptimType.EXACT_SGD, tbe.OptimType.ADAM])
def test_a_gradient_of_the_per_sample_weights_alone_trains_nothing(
    optimizer: tbe.OptimType, device: torch.device
) -> None:
    module = make(device, optimizer=optimizer)
    inputs, psw = weighted(device)
    before = state_of(module)
    (gradient,) = torch.autograd.grad(module(**inputs).sum(), psw)
    assert torch.equal(gradient, dots(module, inputs))
    assert is_unchanged(module, before)


def test_the_gradient_of_the_per_sample_weights_is_of_the_rows_before_the_step(device: torch.device) -> None:
    module = make(device, learning_rate=1.0)
    inputs, psw = weighted(device)
    expected, before = dots(module, inputs), state_of(module)
    output = module(**inputs)
    output.sum().backward(retain_graph=True)
    assert psw.grad is not None
    assert torch.equal(psw.grad, expected)
    assert not is_unchanged(module, before)
    assert int(module.iter) == 1
    psw.grad.zero_()
    expected = dots(module, inputs)  # of the rows that the first one left
    output.sum().backward()
    assert torch.equal(psw.grad, expected)
    assert int(module.iter) == 2


def test_an_output_with_trained_weights_may_be_changed_in_place(device: torch.device) -> None:
    module = make(device, learning_rate=1.0)
    inputs, psw = weighted(device)
    expected = 2 * dots(module, inputs)
    module(**inputs).mul_(2).sum().backward()
    assert psw.grad is not None
    assert torch.equal(psw.grad, expected)


class _AsksForNothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


@pytest.mark.parametrize("trained", [False, True])
def test_an_output_without_a_gradient_moves_nothing(trained: bool, device: torch.device) -> None:
    """With decay, a gradient of zeros would move every row that was looked up."""
    module = make(device, optimizer=tbe.OptimType.ADAM, weight_decay=0.25, learning_rate=1.0)
    inputs, psw = weighted(device)
    before = state_of(module)
    output = module(**inputs) if trained else module(**batch(device))
    _AsksForNothing.apply(output).sum().backward()
    assert is_unchanged(module, before)
    assert psw.grad is None


def test_an_output_with_a_gradient_of_zeros_is_stepped(device: torch.device) -> None:
    """The control: this is a step like any other."""
    module = make(device, optimizer=tbe.OptimType.ADAM, weight_decay=0.25, learning_rate=1.0)
    before = state_of(module)
    module(**batch(device)).mul(0.0).sum().backward()
    assert not is_unchanged(module, before)
    assert int(module.iter) == 1


@pytest.mark.parametrize("trained", [False, True])
def test_tables_that_are_frozen_between_forward_and_backward_are_not_trained(
    trained: bool, device: torch.device
) -> None:
    """As with `nn.EmbeddingBag`, whose weights then get no gradient; per-sample weights still learn."""
    module = make(device, optimizer=tbe.OptimType.ADAM, learning_rate=1.0)
    inputs, psw = weighted(device)
    before = state_of(module)
    output = module(**inputs) if trained else module(**batch(device))
    module.weights.requires_grad_(False)
    output.sum().backward(retain_graph=True)
    assert is_unchanged(module, before)
    assert (psw.grad is not None) == trained
    module.weights.requires_grad_(True)
    output.sum().backward()
    assert int(module.iter) == 1


def test_two_lookups_in_one_backward_leave_no_half_of_their_gradients(device: torch.device) -> None:
    module = make(device, optimizer=tbe.OptimType.NONE)
    outputs = [module(**batch(device)) for _ in range(2)]
    with pytest.raises(RuntimeError, match=r"row_gradients: .* two lookups of the same tables"):
        (outputs[0].sum() + outputs[1].sum()).backward()
    for _ in range(2):
        module(**batch(device)).sum().backward()  # one after the other
        assert module.row_gradients is not None
        assert int(module.row_gradients.count) == 6


def test_flags_of_features_may_have_gaps(device: torch.device) -> None:
    module = make(device)
    inputs, psw = weighted(device)
    flags = torch.tensor([1, 0, 0, 1, 1, 0], dtype=torch.int32, device=device)[::2]  # 1, 0, 1
    expected = dots(module, inputs) * torch.tensor([1, 1, 0, 0, 1, 1], device=device)
    module(**inputs, feature_requires_grad=flags).sum().backward()
    assert psw.grad is not None
    assert torch.equal(psw.grad, expected)


@pytest.mark.parametrize("merge", ["atomic", "fused"])
def test_deterministic_algorithms_with_warn_only_warn(merge: str, device: torch.device) -> None:
    module = make(device, config={"long_run_merge": merge, "long_run_threshold": 1})
    before = state_of(module)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with pytest.warns(UserWarning, match=f"long_run_merge='{merge}' adds in no fixed order"):
            module(**batch(device)).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not is_unchanged(module, before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(**batch(device)).sum().backward()


def test_the_default_device_is_not_that_of_host_tensors(device: torch.device) -> None:
    """At construction, and where the bags of a variable batch are laid out for the first time."""
    inputs = batch(device, offsets=torch.tensor([0, 1, 2, 3, 4, 6], device=device))
    inputs["batch_size_per_feature_per_rank"] = [[2], [2], [1]]
    numbers = torch.arange(22.0, device=device)
    with torch.device("meta"):
        module = tbe.TableBatchedEmbeddingBags(
            [(4, 3), (5, 2)], feature_table_map=(0, 1, 0), gradient_clipping=True, max_gradient=0.5, device=device
        )
        module.weights.detach().copy_(numbers)
        output = module(**inputs)
    assert torch.equal(output, make(device)(**inputs))
    assert output.device == inputs["indices"].device
