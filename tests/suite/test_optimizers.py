"""The oracle's optimizers: tied to the real ones where they coincide, and unable to disagree with them in silence."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from corpus.case import OPTIMIZERS, Optimizer
from oracles.values import optimizers
from oracles.values.interval import Interval
from oracles.values.optimizer_rules import bias_correction, fp32
from oracles.values.optimizers import RULES, OracleError, real_step, step
from oracles.values.real_optimizers import AdamFamily, LarsSgd, RowwiseAdagrad

BETAS = (0.9, 0.75)


def rows(seed: int, dim: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    w, g = (torch.randn(6, dim, generator=generator, dtype=torch.float32).to(torch.float64) for _ in range(2))
    return w, g


def run(optimizer: torch.optim.Optimizer, w: Tensor, gradients: list[Tensor]) -> Tensor:
    for g in gradients:
        w.grad = g.clone()
        optimizer.step()
    return w.detach()


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


def test_rowwise_adagrad_is_adagrad_where_a_row_is_one_number() -> None:
    w, g = rows(1, 1)
    ours, real = w.clone().requires_grad_(), w.clone().requires_grad_()
    gradients = [g, 2 * g, -g]
    expected = run(torch.optim.Adagrad([real], lr=0.3, eps=1e-3), real, gradients)
    same(run(RowwiseAdagrad([ours], 0.3, 1e-3, 0.0, "NONE"), ours, gradients), expected)


def test_rowwise_adagrad_with_decoupled_decay_is_adagrad_on_decayed_weights() -> None:
    w, g = rows(2, 1)
    ours, real = w.clone().requires_grad_(), (w * (1 - 0.3 * 0.1)).requires_grad_()
    expected = run(torch.optim.Adagrad([real], lr=0.3, eps=1e-3), real, [g])
    same(run(RowwiseAdagrad([ours], 0.3, 1e-3, 0.1, "DECOUPLE"), ours, [g]), expected)


def test_rowwise_adagrad_with_l2_decay_is_adagrad_with_weight_decay() -> None:
    w, g = rows(3, 1)
    ours, real = w.clone().requires_grad_(), w.clone().requires_grad_()
    expected = run(torch.optim.Adagrad([real], lr=0.3, eps=1e-3, weight_decay=0.1), real, [g])
    same(run(RowwiseAdagrad([ours], 0.3, 1e-3, 0.1, "L2"), ours, [g]), expected)


def test_a_bound_on_norms_is_renorm_after_the_step() -> None:
    w, g = rows(4, 5)
    ours, free = w.clone().requires_grad_(), w.clone().requires_grad_()
    unbounded = run(RowwiseAdagrad([free], 0.3, 1e-3, 0.0, "NONE"), free, [g])
    bound = float(torch.linalg.vector_norm(unbounded, dim=1).median())
    actual = run(RowwiseAdagrad([ours], 0.3, 1e-3, 0.0, "NONE", bound), ours, [g])
    # torch.renorm divides by the norm plus 1e-7.
    torch.testing.assert_close(actual, torch.renorm(unbounded, 2, 0, bound), rtol=1e-6, atol=0)
    assert 0 < int((actual != unbounded).any(dim=1).sum()) < 6


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("rowwise", "dim"), [(False, 5), (False, 1), (True, 1)])
def test_the_adam_family_is_adam_by_element_and_where_a_row_is_one_number(
    rowwise: bool, dim: int, decay: float
) -> None:
    w, g = rows(5, dim)
    ours, real = w.clone().requires_grad_(), w.clone().requires_grad_()
    gradients = [g, 2 * g, -g]
    adam = torch.optim.AdamW([real], 0.3, BETAS, 1e-3, decay) if decay else torch.optim.Adam([real], 0.3, BETAS, 1e-3)
    expected = run(adam, real, gradients)
    same(run(AdamFamily([ours], 0.3, BETAS, 1e-3, decay, rowwise, lamb=False), ours, gradients), expected)


@pytest.mark.parametrize("rowwise", [False, True])
def test_a_step_of_lamb_is_adams_made_as_long_as_the_row(rowwise: bool) -> None:
    """AdamW gives the direction; row-wise, at D = 1 or where a row's gradients have one magnitude."""
    w, g = rows(6, 5)
    g = g.sign() * torch.arange(1.0, 7, dtype=torch.float64)[:, None] if rowwise else g
    ours, real = w.clone().requires_grad_(), w.clone().requires_grad_()
    change = run(torch.optim.AdamW([real], 1.0, BETAS, 1e-3, 0.1), real, [g]) - w
    wanted = 0.3 * torch.linalg.vector_norm(w, dim=1) / torch.linalg.vector_norm(change, dim=1)
    actual = run(AdamFamily([ours], 0.3, BETAS, 1e-3, 0.1, rowwise, lamb=True), ours, [g])
    torch.testing.assert_close(actual, w + wanted[:, None] * change, rtol=1e-9, atol=1e-12)


def test_lamb_on_rows_of_zeros_is_adam() -> None:
    _, g = rows(7, 5)
    ours, real = (torch.zeros(6, 5, dtype=torch.float64).requires_grad_() for _ in range(2))
    expected = run(torch.optim.AdamW([real], 0.3, BETAS, 1e-3, 0.1), real, [g])
    same(run(AdamFamily([ours], 0.3, BETAS, 1e-3, 0.1, False, lamb=True), ours, [g]), expected)
    still = torch.ones(6, 5, dtype=torch.float64).requires_grad_()
    same(run(AdamFamily([still], 0.3, BETAS, 1e-3, 0.0, False, lamb=True), still, [0 * g]), torch.ones_like(g))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lars_is_momentum_sgd_on_scaled_gradients(decay: float) -> None:
    """torch's SGD with momentum and a rate of 1, given gradients that were scaled row by row before."""
    w, g = rows(8, 5)
    ours, real = w.clone().requires_grad_(), w.clone().requires_grad_()
    lars, sgd = LarsSgd([ours], 0.3, 0.02, 0.75, decay), torch.optim.SGD([real], lr=1.0, momentum=0.75)
    for gradient in (g, 2 * g, -g):
        with torch.no_grad():
            scale = 0.3 * 0.02 / (gradient.norm(dim=1) / real.norm(dim=1) + decay)
            scaled = scale[:, None] * (gradient + decay * real)
        same(run(lars, ours, [gradient]), run(sgd, real, [scaled]))


def test_lars_leaves_rows_alone_where_its_divisor_is_zero() -> None:
    w = torch.ones(6, 5, dtype=torch.float64).requires_grad_()
    same(run(LarsSgd([w], 0.3, 1.0, 0.5, 0.0), w, [torch.zeros(6, 5, dtype=torch.float64)]), torch.ones(6, 5).double())


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_one_step_from_a_stored_state_is_the_third_of_three(decay: float) -> None:
    """The step number reaches the real optimizer: bias corrections are those of the third step."""
    w, g = rows(9, 5)
    real = w.clone().requires_grad_()
    optimizer = torch.optim.AdamW([real], fp32(0.3), (fp32(0.9), fp32(0.75)), fp32(1e-3), fp32(decay))
    before = run(optimizer, real, [g, 2 * g]).clone()
    state = {"momentum1": optimizer.state[real]["exp_avg"].clone()}
    state["momentum2"] = optimizer.state[real]["exp_avg_sq"].clone()
    given = Optimizer("ADAM", eps=1e-3, weight_decay=decay, beta1=0.9, beta2=0.75)
    actual, _ = real_step(before, -g, state, 0.3, given, iteration=3)
    same(actual, run(optimizer, real, [-g]))


@given(
    beta=st.sampled_from((0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)) | st.floats(0, 0.999755859375, width=32),
    iteration=st.integers(1, 300) | st.integers(1, 10**6),
)
def test_bias_corrections_hold_what_powers_of_any_make_come_to(beta: float, iteration: int) -> None:
    beta = fp32(beta)
    allowed = bias_correction(beta, iteration)
    exact = 1 - Fraction(beta) ** iteration if iteration <= 300 else None
    one = torch.tensor(beta, dtype=torch.float64)
    squared, factor, left = torch.ones_like(one), one, iteration
    while left:
        squared, factor, left = squared * factor if left % 2 else squared, factor * factor, left // 2
    makes = [1 - torch.pow(one, iteration), 1 - squared, torch.tensor(1 - beta**iteration, dtype=torch.float64)]
    makes += [] if exact is None else [torch.tensor(float(exact), dtype=torch.float64)]
    assert all(bool(allowed.admits(made.to(torch.float32))) for made in makes)


def test_bias_corrections_are_nearly_always_one_number() -> None:
    betas = (0.5, 0.9, 0.99, 0.999, 0.9999)
    points = [bool(bias_correction(beta, k).is_point()) for beta in betas for k in range(1, 400)]
    assert sum(points) >= len(points) - 2


MODES = [(name, "NONE", 0.0) for name in OPTIMIZERS]
MODES += [("EXACT_ROWWISE_ADAGRAD", mode, 0.1) for mode in ("L2", "DECOUPLE")]
MODES += [(name, "NONE", 0.1) for name in OPTIMIZERS if name.endswith(("ADAM", "LAMB", "LARS_SGD"))]


def given_and_state(name: str, mode: str, decay: float) -> tuple[Optimizer, dict[str, Tensor]]:
    given = Optimizer(name, 0.3, eps=1e-3, weight_decay=decay, weight_decay_mode=mode, eta=1.0, max_norm=2.0)
    state = {
        ours: torch.ones((6,) if ours in RULES[name].per_row else (6, 8), dtype=torch.float64)
        for ours, _ in RULES[name].state_names
    }
    return given, state


@pytest.mark.parametrize("iteration", [1, 5])
@pytest.mark.parametrize(("name", "mode", "decay"), MODES)
def test_the_two_ways_agree_and_a_misread_rule_does_not(
    name: str, mode: str, decay: float, iteration: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, g = rows(4, 8)
    given, state = given_and_state(name, mode, decay)
    before = w.clone()
    step(w, Interval.point(g), g, state, 0.3, given, iteration)
    assert torch.equal(w, before)
    if not RULES[name].steps:
        return

    # A learning rate that is off by 1 %, in one of the two ways, has to be noticed.
    monkeypatch.setattr(optimizers, "real_step", lambda w, g, s, lr, o, k: real_step(w, g, s, lr * 1.01, o, k))
    with pytest.raises(OracleError, match=r"weights\[.*the real optimizer has"):
        step(w, Interval.point(g), g, state, 0.3, given, iteration)


def test_a_gradient_that_fp32_rounds_is_no_disagreement_where_terms_cancel() -> None:
    """g + 0.1 * w is -5.71e-7, and -5.78e-7 with g rounded to fp32, as a gradient of MEAN is."""
    w, g = torch.tensor([[-1.7745592594146729]]).double(), torch.tensor([[0.17745535714285712]], dtype=torch.float64)
    given = Optimizer("LARS_SGD", 1.0, weight_decay=0.1, eta=0.001, momentum=0.5)
    state = {"momentum1": torch.zeros(1, 1, dtype=torch.float64)}
    after = step(w, Interval.point(g.float()), g, state, 1.0, given)
    rate = 0.001 * 1.77456 / (0.177455 + 0.177456)
    assert float(after.state["momentum1"].hi) < -5.77e-7 * rate  # what is allowed is still made of fp32's gradient


@pytest.mark.parametrize("name", ["LAMB", "PARTIAL_ROWWISE_LAMB"])
def test_a_direction_of_which_fp32_leaves_nothing_is_no_disagreement(name: str) -> None:
    """-1 / (1 + eps) + 0.5 * 2 is 0 in fp32, where the ratio is 1, and 1e-8 in fp64, where it is 2e8."""
    w, g = torch.tensor([[2.0], [2.0]]).double(), torch.tensor([[-1.0], [-0.5]], dtype=torch.float64)
    given = Optimizer(name, 1.0, weight_decay=0.5, eps=1e-8, beta1=0.0, beta2=0.0)
    state = {"momentum1": torch.zeros_like(g), "momentum2": torch.zeros_like(g)}
    state["momentum2"] = state["momentum2"][:, 0] if "momentum2" in RULES[name].per_row else state["momentum2"]
    allowed = step(w, Interval.point(g), g, state, 1.0, given).weights
    assert torch.equal(allowed.lo, w)  # what is allowed is fp32's, and exact
    assert torch.equal(allowed.hi, w)
    real, _ = real_step(w, g, state, 1.0, given)
    assert float(real[0]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("name", "mode", "decay"), MODES)
def test_a_gradient_that_is_not_the_one_allowed_is_noticed(name: str, mode: str, decay: float) -> None:
    w, g = rows(4, 8)
    given, state = given_and_state(name, mode, decay)
    with pytest.raises(OracleError, match=r"^gradient"):
        step(w, Interval.point(g * 1.01), g, state, 0.3, given)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name.endswith(("ADAM", "LAMB"))])
def test_a_wrong_iteration_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w, g = rows(4, 8)
    given, state = given_and_state(name, "NONE", 0.1)  # without decay, LAMB's ratio undoes any common factor
    monkeypatch.setattr(optimizers, "real_step", lambda w, g, s, lr, o, k: real_step(w, g, s, lr, o, k + 1))
    with pytest.raises(OracleError, match=r"weights\[.*the real optimizer has"):
        step(w, Interval.point(g), g, state, 0.3, given, 2)


@pytest.mark.parametrize(("name", "mode", "decay"), MODES)
def test_intervals_stay_sharp(name: str, mode: str, decay: float) -> None:
    """At D = 8, a gradient known to 4 units of 2 ** -24 either way leaves a step known to 32 of what it is made of."""
    w, g = rows(10, 8)
    given, state = given_and_state(name, mode, decay)
    for uncertain in (0.0, 4 * 2.0**-24):
        around = Interval.around(g, uncertain * g.abs()).rounded(torch.float32)
        allowed = step(w, around, g, state, 0.3, given, 3).weights
        involved = w.abs() + (allowed.hi - w).abs() + 1.0  # the states are ones
        assert float(((allowed.hi - allowed.lo) / involved).max()) < 32 * 2.0**-24
