"""What the oracle knows of each optimizer, as data: a row each, which draws, proofs and relations read.

Written from the formulas and never from the kernels' own rows: there, one wrong field would make the judge blind to the
same mistake. Its functions, the interval rule and the real optimizer, stand in `oracles.values.optimizer_rules`; tests
hold what a row says against what the real optimizer does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: The powers of the units of weights and of gradients that a number comes in.
Unit = tuple[int, int]
ONE, WEIGHT, GRADIENT, SQUARE = (0, 0), (1, 0), (0, 1), (0, 2)
PER_WEIGHT, PER_GRADIENT, GRADIENT_PER_WEIGHT = (-1, 0), (1, -1), (-1, 1)
#: What a step adds up over the columns of a row: nothing; squares of its gradients; norms of what has been rounded.
NOTHING, SQUARES, NORMS = "nothing", "squares", "norms"

EPS = (1e-8, 0.0, 1e-3, 1.0)
DECAYS = (0.01, 0.5, 0.1)
SELDOM_DECAYS = (0.0, 0.0, 0.0, *DECAYS)
BETAS1, BETAS2 = (0.9, 0.5, 0.0, 0.99), (0.999, 0.5, 0.0, 0.9)


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """One optimizer.

    `share`: how often it is drawn, as against others. `hyper`: the hyper-parameters that it reads beside the learning
    rate, each with the values worth drawing, in the order in which they are drawn. `decay_modes`: with more than one,
    `weight_decay` is drawn for those other than NONE; with NONE alone it is part of the formula, if it is read.
    `linear`: in the gradient, so that exact steps stay exact and steps of parts add up. `columns`: NOTHING, SQUARES or
    NORMS. `units`: of the learning rate, of each of `hyper` and of each state. `decay_units`: of the weight decay where
    a mode has another. `keeps_unit`: weights cannot come in another unit, for a ratio of norms may be 1.

    Raises ValueError for a hyper-parameter without a unit.
    """

    share: int
    hyper: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    decay_modes: tuple[str, ...] = ("NONE",)
    linear: bool = False
    columns: str = NOTHING
    units: Mapping[str, Unit]
    decay_units: Mapping[str, Unit] = field(default_factory=dict)
    keeps_unit: bool = False

    def __post_init__(self) -> None:
        missing = {"learning_rate", *self.hyper} - self.units.keys()
        if missing:
            raise ValueError(f"units: expected one of each hyper-parameter, got none of {', '.join(sorted(missing))}")

    def unit(self, name: str, decay_mode: str) -> Unit:
        """The unit of the learning rate, a hyper-parameter or a state; ONE of what it does not read."""
        if name == "weight_decay" and decay_mode in self.decay_units:
            return self.decay_units[decay_mode]
        return self.units.get(name, ONE)


_MOMENTS = {"eps": EPS, "beta1": BETAS1, "beta2": BETAS2, "weight_decay": SELDOM_DECAYS}
_ADAM = {
    "learning_rate": WEIGHT,
    "eps": GRADIENT,
    "beta1": ONE,
    "beta2": ONE,
    "weight_decay": PER_WEIGHT,
    "momentum1": GRADIENT,
    "momentum2": SQUARE,
}
_LAMB = {**_ADAM, "learning_rate": ONE}

KINDS: Mapping[str, OptimizerKind] = {
    "EXACT_SGD": OptimizerKind(share=4, linear=True, units={"learning_rate": PER_GRADIENT}),
    "EXACT_ROWWISE_ADAGRAD": OptimizerKind(
        share=4,
        hyper={"eps": EPS, "weight_decay": DECAYS, "max_norm": (0.0, 0.0, 1.0, 0.1, 100.0)},
        decay_modes=("NONE", "L2", "DECOUPLE"),
        columns=SQUARES,
        units={
            "learning_rate": WEIGHT,
            "eps": GRADIENT,
            "weight_decay": PER_WEIGHT,
            "max_norm": WEIGHT,
            "momentum1": SQUARE,
        },
        decay_units={"L2": GRADIENT_PER_WEIGHT},
    ),
    "EXACT_ADAGRAD": OptimizerKind(
        share=2, hyper={"eps": EPS}, units={"learning_rate": WEIGHT, "eps": GRADIENT, "momentum1": SQUARE}
    ),
    "ADAM": OptimizerKind(share=2, hyper=_MOMENTS, units=_ADAM),
    "PARTIAL_ROWWISE_ADAM": OptimizerKind(share=1, hyper=_MOMENTS, columns=SQUARES, units=_ADAM),
    # The ratio of norms brings the unit of weights along, but is 1 where a norm is 0.
    "LAMB": OptimizerKind(share=2, hyper=_MOMENTS, columns=NORMS, units=_LAMB, keeps_unit=True),
    "PARTIAL_ROWWISE_LAMB": OptimizerKind(share=1, hyper=_MOMENTS, columns=NORMS, units=_LAMB, keeps_unit=True),
    "LARS_SGD": OptimizerKind(
        share=2,
        hyper={"eta": (0.001, 1.0, 0.25), "momentum": (0.9, 0.5, 0.0), "weight_decay": SELDOM_DECAYS},
        columns=NORMS,
        units={
            "learning_rate": ONE,
            "eta": ONE,
            "momentum": ONE,
            "weight_decay": GRADIENT_PER_WEIGHT,
            "momentum1": WEIGHT,
        },
    ),
    "NONE": OptimizerKind(share=2, linear=True, units={"learning_rate": ONE}),
}
