"""The module's optimizers as users meet them: what is refused, steps by hand, and what NONE leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tbe_kernels as tbe
from oracles import interpreter
from tests.kernels.test_module import batch, everything, make


@pytest.fixture(autouse=True)
def _hooks(device: torch.device) -> None:
    if device.type == "cpu":
        interpreter.install()


BAD_OPTIMIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "a decay mode for a formula that has decay": (
        {"optimizer": tbe.OptimType.ADAM, "weight_decay": 0.1, "weight_decay_mode": tbe.WeightDecayMode.DECOUPLE},
        "weight_decay_mode: ADAM knows NONE, .*; it has weight_decay in its formula",
    ),
    "decay for no step": ({"optimizer": tbe.OptimType.NONE, "weight_decay": 0.1}, "weight_decay: NONE does not read"),
    "a beta of one": ({"optimizer": tbe.OptimType.ADAM, "beta1": 1.0}, "beta1: .* to below 1, got 1.0"),
    "a beta that fp32 rounds to one": ({"optimizer": tbe.OptimType.LAMB, "beta2": 1 - 1e-9}, "beta2: .* to below 1"),
    "a negative beta": ({"optimizer": tbe.OptimType.LAMB, "beta2": -0.5}, "beta2: .* from 0 up, got -0.5"),
    "a beta for SGD": ({"beta1": 0.5}, "beta1: EXACT_SGD does not read it, got 0.5"),
    "a beta for LARS": ({"optimizer": tbe.OptimType.LARS_SGD, "beta2": 0.5}, "beta2: LARS_SGD does not read it"),
    "an eta for ADAM": ({"optimizer": tbe.OptimType.ADAM, "eta": 0.5}, "eta: ADAM does not read it, got 0.5"),
    "a momentum for ADAM": ({"optimizer": tbe.OptimType.ADAM, "momentum": 0.5}, "momentum: ADAM does not read it"),
    "an infinite momentum": ({"optimizer": tbe.OptimType.LARS_SGD, "momentum": float("inf")}, "momentum: .* got inf"),
    "a rate beyond fp32": ({"learning_rate": 1e39}, r"learning_rate: .* finite .* got 1e\+39"),
    "a norm's bound for ADAGRAD": ({"optimizer": tbe.OptimType.EXACT_ADAGRAD, "max_norm": 1.0}, "max_norm: EXACT_ADA"),
    "a negative bound of norms": (
        {"optimizer": tbe.OptimType.EXACT_ROWWISE_ADAGRAD, "max_norm": -1.0},
        "max_norm: .* from 0 up, got -1.0",
    ),
    "clipping by number": ({"gradient_clipping": 1}, "gradient_clipping: expected True or False, got 1"),
    "a bound without clipping": ({"max_gradient": 2.0}, "max_gradient: 2.0 has no effect without gradient_clipping"),
    "a bound of zero": ({"gradient_clipping": True, "max_gradient": 0.0}, "max_gradient: .* above 0, got 0.0"),
    "an infinite bound": ({"gradient_clipping": True, "max_gradient": float("inf")}, "max_gradient: .* got inf"),
}


@pytest.mark.parametrize("name", BAD_OPTIMIZERS)
def test_a_bad_hyperparameter_is_refused(name: str, device: torch.device) -> None:
    changes, message = BAD_OPTIMIZERS[name]
    with pytest.raises(ValueError, match=message):
        make(device, **changes)


def left_by(module: tbe.TableBatchedEmbeddingBags) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rows, gradients, count) of the last backward."""
    left = module.row_gradients
    assert left is not None
    return left.rows, left.gradients, left.count


def test_row_gradients_are_left_and_nothing_else_changes(device: torch.device) -> None:
    """Features 0 and 2 share table 0 (D = 3): its row 1 is looked up once, row 0 once, row 2 once; -1 is nobody's."""
    module = make(device, optimizer=tbe.OptimType.NONE, weights_precision=torch.float16, learning_rate=7.0)
    module.weights.data[0] = torch.tensor([0x7E01], dtype=torch.int16).view(torch.float16)  # a NaN of its own
    assert module.row_gradients is None
    before = [t.view(torch.int16) if t.dtype == torch.float16 else t for t in everything(module)]
    psw = torch.tensor([1.0, 2, 3, 4, 5, 6, 7], device=device)
    indices = torch.tensor([0, 3, 4, 1, 1, 0, -1], device=device)
    offsets = torch.tensor([0, 1, 2, 3, 4, 6, 7], device=device)
    output = module(indices, offsets, psw)
    output.backward(torch.arange(16.0, device=device).view(2, 8))
    after = [t.view(torch.int16) if t.dtype == torch.float16 else t for t in everything(module)]
    assert torch.equal(after[1], before[1] + 1)
    assert all(torch.equal(a, b) for n, (a, b) in enumerate(zip(after, before, strict=True)) if n != 1)
    rows, gradients, count = left_by(module)
    assert (rows.dtype, gradients.dtype, count.dtype) == (torch.int64, torch.float32, torch.int64)
    assert (rows.shape, gradients.shape, count.tolist()) == ((7,), (7, 3), [5])
    left = dict(zip(rows[:5].tolist(), gradients[:5].tolist(), strict=True))
    assert left == {
        0: [0 + 6 * 5, 1 + 6 * 6, 2 + 6 * 7],
        1: [5 * 5, 5 * 6, 5 * 7],
        3: [2 * 8, 2 * 9, 2 * 10],
        4 + 4: [3 * 3, 3 * 4, 0],
        4 + 1: [4 * 11, 4 * 12, 0],
    }
    assert rows[5:].tolist() == [-1, -1]
    assert not gradients[5:].any()
    module(indices[:0], torch.zeros_like(offsets)).backward(torch.ones(2, 8, device=device))
    rows, gradients, count = left_by(module)
    assert (rows.shape, gradients.shape, count.tolist()) == ((0,), (0, 3), [0])


def test_no_more_room_for_row_gradients_than_there_are_rows(device: torch.device) -> None:
    module = make(device, optimizer=tbe.OptimType.NONE)
    offsets = torch.tensor([0, 20, 20, 20, 20, 20, 40], device=device)
    module(torch.arange(40, device=device) % 4, offsets).sum().backward()
    rows, gradients, count = left_by(module)
    assert rows.tolist() == [0, 1, 2, 3, -1, -1, -1, -1, -1]
    assert gradients[:4].tolist() == [[10, 10, 10]] * 4
    assert count.tolist() == [4]


def test_an_optimizer_that_steps_leaves_no_row_gradients(device: torch.device) -> None:
    module = make(device, optimizer=tbe.OptimType.ADAM)
    module(**batch(device)).sum().backward()
    assert module.row_gradients is None


def test_clipping_by_hand(device: torch.device) -> None:
    """Elements beyond the bound become the bound, infinities too; NaN stays; the psw gradient sees the same."""
    module = make(device, embedding_specs=[(2, 5)], feature_table_map=(0,), gradient_clipping=True, max_gradient=0.5)
    module.set_learning_rate(1.0)
    psw = torch.tensor([2.0], device=device, requires_grad=True)
    output = module(torch.tensor([1], device=device), torch.tensor([0, 1], device=device), psw)
    inf, nan = float("inf"), float("nan")
    output.backward(torch.tensor([[0.25, -3.0, inf, -inf, nan]], device=device))
    (row,) = module.weights.detach()[5:].view(1, 5).tolist()
    assert row[:4] == [5 - 0.5, 6 + 1, 7 - 1, 8 + 1]
    assert row[4] != row[4]
    assert psw.grad is not None
    assert psw.grad.isnan().all()
    assert module.weights.detach()[:5].tolist() == [0, 1, 2, 3, 4]


def test_two_steps_of_adam_by_hand(device: torch.device) -> None:
    """With betas of 1/2 and eps 0: the first step is lr * sign(g); the second uses 1 - 1/4. Untouched rows stay."""
    module = make(
        device,
        embedding_specs=[(2, 2)],
        feature_table_map=(0,),
        optimizer=tbe.OptimType.ADAM,
        learning_rate=1.0,
        beta1=0.5,
        beta2=0.5,
        eps=0.0,
    )
    inputs = {"indices": torch.tensor([1], device=device), "offsets": torch.tensor([0, 1], device=device)}
    module(**inputs).backward(torch.tensor([[4.0, -2.0]], device=device))
    assert module.weights.tolist() == [0, 1, 2 - 1, 3 + 1]
    ((first, second),) = module.split_optimizer_states()
    assert first.tolist() == [[0, 0], [2, -1]]
    assert second.tolist() == [[0, 0], [8, 2]]
    module(**inputs).backward(torch.tensor([[-2.0, 1.0]], device=device))
    # m = 0 and 0: a step of nothing, though v is not zero.
    assert module.weights.tolist() == [0, 1, 1, 4]
    assert second.tolist() == [[0, 0], [6, 1.5]]


@pytest.mark.parametrize("optimizer", list(tbe.OptimType), ids=lambda o: o.name)
def test_training_goes_on_from_a_state_dict(optimizer: tbe.OptimType, device: torch.device) -> None:
    """Step counts, moments and hyper-parameters all travel: the next step is the same to the bit."""
    first, second = make(device, optimizer=optimizer, learning_rate=0.5), make(device, optimizer=optimizer)
    for module in (first, first, second):
        if module is second:
            module.load_state_dict(first.state_dict())
        module(**batch(device)).sum().backward()
    first(**batch(device)).sum().backward()
    assert int(first.iter) == int(second.iter) == 3
    assert all(map(torch.equal, everything(first), everything(second)))
    assert optimizer is tbe.OptimType.NONE or not torch.equal(first.weights, make(device).weights)
