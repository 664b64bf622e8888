"""What a row of `corpus.optimizers` says of an optimizer is what the real optimizer does; a wrong field is seen.

Draws, proofs of exactness and relations believe these rows, so each claim is tried on the real optimizer in fp64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from corpus.case import Batch, Case, Optimizer, Table, Values
from corpus.optimizers import GRADIENT, KINDS, NORMS, NOTHING, SQUARES, WEIGHT, OptimizerKind, Unit
from oracles import interpreter
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.check import Status
from oracles.relations.relate import RELATIONS, relate
from oracles.values.optimizer_rules import RULES
from oracles.values.optimizers import real_step
from tbe_kernels.optimizers import OPTIMIZERS, OptimType

ROWS, D, ITERATION = 4, 5, 3
WEIGHT_UNIT, GRADIENT_UNIT = 4.0, 0.125
#: Numbers of no special kind, with effect.
USUAL = {"eps": 0.25, "beta1": 0.5, "beta2": 0.75, "weight_decay": 0.125, "eta": 0.5, "momentum": 0.5}
ALL_HYPER = (*USUAL, "max_norm")


def setting(name: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Rows, gradients and states; one row is zero, which has a norm of zero."""
    generator = torch.Generator().manual_seed(7)
    w, g = (torch.randint(1, 64, (ROWS, D), generator=generator).to(torch.float64) / 8 for _ in range(2))
    w[1] = 0
    rule = RULES[name]
    shapes = {ours: (ROWS,) if ours in rule.per_row else (ROWS, D) for ours, _ in rule.state_names}
    states = {ours: torch.randint(1, 64, shape, generator=generator) / 8 for ours, shape in shapes.items()}
    return w, g, {ours: state.to(torch.float64) for ours, state in states.items()}


def optimizer(name: str, mode: str = "NONE", **changes: float) -> Optimizer:
    """With hyper-parameters that have effect; without decay where that needs another mode."""
    hyper = {**USUAL, **changes}
    if len(KINDS[name].decay_modes) > 1 and mode == "NONE":
        hyper["weight_decay"] = 0.0
    return Optimizer(name, 0.5, weight_decay_mode=mode, **hyper)


def stepped(name: str, w: Tensor, g: Tensor, state: dict[str, Tensor], lr: float, given: Optimizer) -> list[Tensor]:
    """Weights and states after a step."""
    weights, after = real_step(w, g, state, lr, given, ITERATION)
    return [weights, *after.values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def columns_of(name: str) -> str:
    """What the step of one column takes from the others."""
    w, g, state = setting(name)
    given = optimizer(name)
    plain = stepped(name, w, g, state, 0.5, given)[0][:, 1:]

    def depends(on_w: float, on_g: float) -> bool:
        other_w, other_g = w.clone(), g.clone()
        other_w[:, 0] += on_w
        other_g[:, 0] += on_g
        return not torch.equal(stepped(name, other_w, other_g, state, 0.5, given)[0][:, 1:], plain)

    return NORMS if depends(3.0, 0.0) else SQUARES if depends(0.0, 3.0) else NOTHING


def is_linear(name: str) -> bool:
    """Whether steps of two gradients add up to that of their sum."""
    w, g, state = setting(name)
    other, given = g.flip(0), optimizer(name)
    changes = [stepped(name, w, x, state, 0.5, given)[0] - w for x in (g, other, g + other)]
    return torch.equal(changes[0] + changes[1], changes[2])


def reads(name: str) -> set[str]:
    """The hyper-parameters that change a step, in some mode."""
    w, g, state = setting(name)
    found = set()
    for mode in KINDS[name].decay_modes:
        plain = stepped(name, w, g, state, 0.5, optimizer(name, mode))
        for parameter in ALL_HYPER:
            change: Any = {parameter: 0.0625}
            given = replace(optimizer(name, mode), **change)
            if not same(stepped(name, w, g, state, 0.5, given), plain):
                found.add(parameter)
    return found


def keeps_units(name: str, kind: OptimizerKind, mode: str) -> bool:
    """Whether a step in other units is the step, in these units."""
    w, g, state = setting(name)
    given = optimizer(name, mode, **({"max_norm": 2.0} if "max_norm" in kind.hyper else {}))
    weight_unit = 1.0 if kind.keeps_unit else WEIGHT_UNIT

    def times(unit: Unit) -> float:
        return weight_unit ** unit[0] * GRADIENT_UNIT ** unit[1]

    def of(parameter: str) -> float:
        return times(kind.unit(parameter, mode))

    scaled: Any = {p: getattr(given, p) * of(p) for p in kind.hyper}
    other = replace(given, **scaled)
    other_state = {ours: x * of(ours) for ours, x in state.items()}
    there = stepped(name, w * times(WEIGHT), g * times(GRADIENT), other_state, 0.5 * of("learning_rate"), other)
    here = stepped(name, w, g, state, 0.5, given)
    return same(there, [x * times(WEIGHT) if k == 0 else x * of([*state][k - 1]) for k, x in enumerate(here)])


def wrong_claims(name: str, kind: OptimizerKind) -> set[str]:
    """The fields of a row that the real optimizer contradicts."""
    wrong = set()
    if kind.columns != columns_of(name):
        wrong.add("columns")
    if kind.linear != is_linear(name):
        wrong.add("linear")
    if kind.hyper.keys() != reads(name):
        wrong.add("hyper")
    if kind.units.keys() != {"learning_rate", *kind.hyper, *dict(RULES[name].state_names)}:
        wrong.add("units")
    if not all(keeps_units(name, kind, mode) for mode in kind.decay_modes):
        wrong.add("units")
    return wrong


@pytest.mark.parametrize("name", KINDS)
def test_a_row_says_what_the_real_optimizer_does(name: str) -> None:
    assert wrong_claims(name, KINDS[name]) == set()


def wrong_rows() -> Iterator[tuple[str, str, OptimizerKind]]:
    """(optimizer, the field, a row that is wrong in it)."""
    for name, kind in KINDS.items():
        for columns in sorted({NOTHING, SQUARES, NORMS} - {kind.columns}):
            yield name, "columns", replace(kind, columns=columns)
        yield name, "linear", replace(kind, linear=not kind.linear)
        for parameter in kind.hyper:
            fewer = {p: menu for p, menu in kind.hyper.items() if p != parameter}
            yield name, "hyper", replace(kind, hyper=fewer)
        if name == "NONE":  # which comes in any unit
            continue
        if kind.keeps_unit:
            yield name, "units", replace(kind, keeps_unit=False)
        for parameter, (of_weights, of_gradients) in kind.units.items():
            yield name, "units", replace(kind, units={**kind.units, parameter: (of_weights, of_gradients + 1)})
        for mode in kind.decay_units:
            yield name, "units", replace(kind, decay_units={**kind.decay_units, mode: (0, 0)})


@pytest.mark.parametrize(("name", "field", "kind"), list(wrong_rows()))
def test_a_wrong_field_is_seen(name: str, field: str, kind: OptimizerKind) -> None:
    assert field in wrong_claims(name, kind)


def test_a_hyper_parameter_without_a_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="units: expected one of each hyper-parameter, got none of eps"):
        OptimizerKind(share=1, hyper={"eps": (1.0,)}, units={"learning_rate": (0, 0)})


def test_every_side_has_the_same_optimizers() -> None:
    """The kernels' rows are compared, never read: what they say is what is under test."""
    assert KINDS.keys() == RULES.keys() == {kind.name for kind in OPTIMIZERS}
    for name, kind in KINDS.items():
        theirs = OPTIMIZERS[OptimType[name]]
        assert {mode.name for mode in theirs.decay_modes} == set(kind.decay_modes)
        assert set(theirs.hyperparameters) == kind.hyper.keys()


#: A case to which every relation applies with some optimizer: two tables, one of them shared, weights and MEAN apart.
CASE = Case(
    tables=(Table(4, 3), Table(3, 2)),
    feature_table_map=(0, 1, 0),
    batches=tuple(
        Batch((((0, 1), (2,)), ((a,), (2, 2)), ((1,), (0, 3))), psw=psw, grad_layout="transposed")
        for a, psw in ((1, "none"), (0, "none"))
    ),
    order=(0, 1, 0, 1),
    values=Values(seed=3, weight_bits=2, grad_bits=2),
)
#: Relations that need another pooling mode.
POOLING = {"mean": "MEAN"}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", KINDS)
def test_every_optimizer_goes_through_every_relation(name: str, relation: str) -> None:
    interpreter.install()
    hyper: dict[str, Any] = {parameter: menu[-1] for parameter, menu in KINDS[name].hyper.items()}
    mode = KINDS[name].decay_modes[-1]
    given = Optimizer(name, 0.5, weight_decay_mode=mode, **hyper)
    case = dataclasses.replace(CASE, optimizer=given, pooling_mode=POOLING.get(relation, "SUM"))
    verdict = relate(relation, case, IMPLEMENTATION, torch.device("cpu"))
    assert verdict.status is Status.PASSED, verdict.reason or verdict.findings
