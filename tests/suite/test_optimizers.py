"""The oracle's optimizers: tied to the real ones where they coincide, and unable to disagree with them in silence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from corpus.case import OPTIMIZERS, Optimizer
from oracles import optimizers
from oracles.interval import Interval
from oracles.optimizers import RULES, OracleError, real_step, step
from oracles.real_optimizers import RowwiseAdagrad


def rows(seed: int, dim: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    w, g = (torch.randn(6, dim, generator=generator, dtype=torch.float32).to(torch.float64) for _ in range(2))
    return w, g


def run(optimizer: torch.optim.Optimizer, w: Tensor, gradients: list[Tensor]) -> Tensor:
    for g in gradients:
        w.grad = g.clone()
        optimizer.step()
    return w.detach()


def test_rowwise_adagrad_is_adagrad_where_a_row_is_one_number() -> None:
    w, g = rows(1, 1)
    ours, real = w.clone().requires_grad_(), w.clone().requires_grad_()
    gradients = [g, 2 * g, -g]
    expected = run(torch.optim.Adagrad([real], lr=0.3, eps=1e-3), real, gradients)
    torch.testing.assert_close(
        run(RowwiseAdagrad([ours], 0.3, 1e-3, 0.0, "NONE"), ours, gradients), expected, rtol=1e-12, atol=0
    )


def test_rowwise_adagrad_with_decoupled_decay_is_adagrad_on_decayed_weights() -> None:
    w, g = rows(2, 1)
    ours, real = w.clone().requires_grad_(), (w * (1 - 0.3 * 0.1)).requires_grad_()
    expected = run(torch.optim.Adagrad([real], lr=0.3, eps=1e-3), real, [g])
    actual = run(RowwiseAdagrad([ours], 0.3, 1e-3, 0.1, "DECOUPLE"), ours, [g])
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


def test_rowwise_adagrad_with_l2_decay_is_adagrad_with_weight_decay() -> None:
    w, g = rows(3, 1)
    ours, real = w.clone().requires_grad_(), w.clone().requires_grad_()
    expected = run(torch.optim.Adagrad([real], lr=0.3, eps=1e-3, weight_decay=0.1), real, [g])
    actual = run(RowwiseAdagrad([ours], 0.3, 1e-3, 0.1, "L2"), ours, [g])
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


MODES = [(name, "NONE") for name in OPTIMIZERS] + [("EXACT_ROWWISE_ADAGRAD", mode) for mode in ("L2", "DECOUPLE")]


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_the_two_ways_agree_and_a_misread_rule_does_not(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w, g = rows(4, 8)
    given = Optimizer(name, 0.3, eps=1e-3, weight_decay=0.0 if mode == "NONE" else 0.1, weight_decay_mode=mode)
    shape = (6,) if "momentum1" in RULES[name].per_row else (6, 8)
    state = {ours: torch.ones(shape, dtype=torch.float64) for ours, _ in RULES[name].state_names}
    before = w.clone()
    step(w, Interval.point(g), g, state, 0.3, given)
    assert torch.equal(w, before)

    # A learning rate that is off by 1 %, in one of the two ways, has to be noticed.
    monkeypatch.setattr(optimizers, "real_step", lambda w, g, s, lr, o: real_step(w, g, s, lr * 1.01, o))
    with pytest.raises(OracleError, match=r"weights\[.*the real optimizer gives"):
        step(w, Interval.point(g), g, state, 0.3, given)
