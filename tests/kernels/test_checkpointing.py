"""Activation checkpointing: a lookup that is made again in the backward gives and counts what the first one did."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tbe_kernels as tbe
from oracles import interpreter
from tests.kernels.test_module import batch, make
from tests.kernels.test_module_habits import is_unchanged, state_of

BOTH = pytest.mark.parametrize("reentrant", [False, True], ids=["saved tensors", "reentrant"])


@pytest.fixture(autouse=True)
def _hooks(device: torch.device) -> None:
    if device.type == "cpu":
        interpreter.install()


class Block(nn.Module):
    """Tables whose rows a dense layer multiplies: what the layer learns depends on the rows as they were looked up."""

    def __init__(self, device: torch.device, bags: tbe.TableBatchedEmbeddingBags | None = None) -> None:
        super().__init__()
        self.bags = bags or make(device, optimizer=tbe.OptimType.ADAM, learning_rate=1.0)
        self.dense = nn.Linear(8, 8, device=device)
        nn.init.eye_(self.dense.weight)

    def forward(self, psw: Tensor, inputs: dict[str, Any]) -> Tensor:
        return torch.tanh(self.dense(self.bags(**inputs, per_sample_weights=psw) * 0.25))


def inputs_of(device: torch.device) -> tuple[Tensor, dict[str, Any]]:
    """Two bad ids, and per-sample weights that are trained."""
    psw = torch.linspace(0.5, 1.5, 6, device=device, requires_grad=True)
    return psw, batch(device, indices=torch.tensor([1, 9, 4, 1, -3, 2], device=device))


@BOTH
def test_a_checkpointed_block_learns_as_one_that_is_not(reentrant: bool, device: torch.device) -> None:
    """Rows, state and gradients, to the bit; bad ids are counted once."""
    block, twin = Block(device), Block(device)
    twin.load_state_dict(block.state_dict())
    for steps in (1, 2):
        (psw, inputs), (psw_twin, inputs_twin) = inputs_of(device), inputs_of(device)
        for layer in (block, twin):
            layer.zero_grad()
        checkpoint(block, psw, inputs, use_reentrant=reentrant).sum().backward()
        twin(psw_twin, inputs_twin).sum().backward()
        assert is_unchanged(block.bags, twin.bags.state_dict())
        assert int(block.bags.bounds_check_warning) == 2 * steps
        assert int(block.bags.iter) == steps
        for given, expected in ((psw, psw_twin), (block.dense.weight, twin.dense.weight)):
            assert given.grad is not None
            assert expected.grad is not None
            assert torch.equal(given.grad, expected.grad)


@BOTH
def test_two_blocks_of_the_same_tables_are_refused_where_the_second_would_see_the_step(
    reentrant: bool, device: torch.device
) -> None:
    first = Block(device)
    second = Block(device, first.bags)
    psw, inputs = inputs_of(device)
    outputs = [checkpoint(block, psw, inputs, use_reentrant=reentrant) for block in (first, second)]
    before = state_of(first.bags)
    with pytest.raises(RuntimeError, match=r"checkpoint: this lookup is made again .* stepped the same tables already"):
        (outputs[0] + outputs[1]).sum().backward()
    assert not is_unchanged(first.bags, before)  # by the one that came first
    assert first.dense.weight.grad is None  # rather than a wrong one
    for block in (first, second):  # one after the other, or as one
        checkpoint(block, psw, inputs, use_reentrant=reentrant).sum().backward()

    def one(psw: Tensor) -> Tensor:
        return first(psw, inputs) + second(psw, inputs)

    checkpoint(one, psw, use_reentrant=reentrant).sum().backward()
    assert int(first.bags.iter) == 5


@BOTH
def test_tables_that_step_nothing_may_be_looked_up_again_twice(reentrant: bool, device: torch.device) -> None:
    """Frozen: their rows stay."""
    first = Block(device)
    first.bags.weights.requires_grad_(False)
    second = Block(device, first.bags)
    psw, inputs = inputs_of(device)
    outputs = [checkpoint(block, psw, inputs, use_reentrant=reentrant) for block in (first, second)]
    (outputs[0] + outputs[1]).sum().backward()
    assert first.dense.weight.grad is not None
    assert int(first.bags.bounds_check_warning) == 4
    assert int(first.bags.iter) == 0
