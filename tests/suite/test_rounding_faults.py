"""Faults of stochastic rounding that take statistics to see, planted: each is seen by the experiment that is for it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from oracles import interpreter
from tests import rounding_statistics as experiments
from tests.chance import LIMIT, MISS, Trial, shifts, surprise
from tests.mutants.plant import Edit, plant
from tests.rounding_statistics import Rounding

pytestmark = pytest.mark.skipif(not interpreter.interpreting(), reason="plants in the interpreter; needs --device cpu")
FILE = "rounding.py"
NOISE = "noise = rounding_noise(tl.load(rows.rounding_seed), tl.load(rows.iteration), elements)"
WORD = "(word >> (32 - NOISE_BITS)).to(tl.int32)"


@dataclass(frozen=True)
class Fault:
    """In `rounding.py`, `old` becomes `new`; the experiments named `seen_by` see it."""

    name: str
    old: str
    new: str
    seen_by: tuple[str, ...]


FAULTS = (
    Fault(
        "noise shared by a row",
        NOISE,
        NOISE.replace("elements", "elements * 0 + tl.min(elements, axis=0)"),
        ("independent_steps",),
    ),
    Fault(
        "noise by the column alone",
        NOISE,
        NOISE.replace("elements", "elements - tl.min(elements, axis=0)"),
        ("independent_steps",),
    ),
    Fault(
        "noise shared by neighbours in a row",
        NOISE,
        NOISE.replace("elements", "elements // 4"),
        ("independent_steps",),
    ),
    Fault(
        "the same noise at each step",
        NOISE,
        NOISE.replace("tl.load(rows.iteration)", "tl.load(rows.iteration) * 0"),
        ("independent_steps",),
    ),
    Fault(
        "the seed has no effect",
        NOISE,
        NOISE.replace("tl.load(rows.rounding_seed)", "tl.load(rows.rounding_seed) * 0"),
        ("independent_steps",),
    ),
    Fault(
        "the next step's noise is that of the next element",
        NOISE,
        NOISE.replace("elements)", "elements + tl.load(rows.iteration))").replace(
            "tl.load(rows.iteration), e", "tl.load(rows.iteration) * 0, e"
        ),
        ("independent_steps",),
    ),
    Fault(
        "8 bits of noise",
        WORD,
        f"{WORD} & 0x3FC00000",
        ("shares", "independent_noise", "exact_noise"),
    ),
    Fault(
        "one bit of the noise is stuck",
        WORD,
        f"{WORD} | 4",
        ("independent_noise", "exact_noise"),
    ),
    Fault(
        "two bits of the noise are one",
        WORD,
        WORD.replace("word", "(word ^ (word ^ word >> 1) & 4)"),
        ("independent_noise", "exact_noise"),
    ),
    Fault(
        "element numbers wrap at 2**32",
        "(elements >> 32).to(tl.uint32)",
        "(elements >> 63).to(tl.uint32)",
        ("independent_noise", "exact_noise"),
    ),
    Fault(
        "iterations wrap at 2**32",
        "(iteration >> 32).to(tl.uint32)",
        "(iteration >> 63).to(tl.uint32)",
        ("independent_noise", "exact_noise"),
    ),
    Fault(
        "seeds wrap at 2**32",
        "        seed,\n",
        "        seed & 0xFFFFFFFF,\n",
        ("independent_noise", "exact_noise"),
    ),
    Fault(
        "it truncates",
        "(noise >> tl.maximum(-missing, 0))",
        "(noise >> 30)",
        ("shares", "independent_steps", "exact_rounding"),
    ),
    Fault(
        "it rounds to nearest",
        "(noise >> tl.maximum(-missing, 0))",
        "((1 << cut) >> 1)",
        ("shares", "independent_steps", "exact_rounding"),
    ),
    Fault(
        "one too much towards the upper neighbour",
        "(noise >> tl.maximum(-missing, 0))",
        "(noise >> tl.maximum(-missing, 0)) + 1",
        ("shares", "exact_rounding"),
    ),
    Fault(
        "subnormal numbers are cut off",
        "bits = tl.where(magnitude > LARGEST, INFINITY - 1, bits)",
        "bits = tl.where(magnitude > LARGEST, INFINITY - 1, tl.where(bits < 1 << FRACTION, 0, bits))",
        ("shares", "exact_rounding"),
    ),
    Fault(
        "what is below the least subnormal number is lost",
        "significand >>= tl.minimum(tl.maximum(missing, 0), 31)",
        "significand = tl.where(cut > 24, 0, significand)",
        ("exact_rounding",),
    ),
    Fault(
        "the largest finite number becomes infinite",
        "bits = tl.where(magnitude >= OVERFLOW, INFINITY, bits)",
        "bits = tl.where(magnitude >= LARGEST, INFINITY, bits)",
        ("exact_rounding",),
    ),
    Fault(
        "what is beyond the largest finite number stays finite",
        "bits = tl.where(magnitude >= OVERFLOW, INFINITY, bits)",
        "bits = tl.where(magnitude >= 0x7F800000, INFINITY, bits)",
        ("exact_rounding",),
    ),
    Fault(
        "NaN becomes infinite",
        "magnitude > 0x7F800000",
        "magnitude > 0x7FFFFFFE",
        ("exact_rounding",),
    ),
    Fault(
        "zeros lose their sign",
        "bits |= (pattern >> 16) & 0x8000",
        "bits |= tl.where(magnitude == 0, 0, (pattern >> 16) & 0x8000)",
        ("exact_rounding",),
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault_is_seen(fault: Fault) -> None:
    rounding = Rounding(plant(Edit(FILE, fault.old, fault.new)), torch.device("cpu"))
    for name in fault.seen_by:
        trial = Trial()
        getattr(experiments, name)(rounding, trial)
        assert trial.problems, name
        print(f"\n{fault.name}, {name}: {len(trial.problems)} of {trial.comparisons}: {trial.problems[0]}")


def test_every_experiment_has_a_fault_that_it_sees() -> None:
    assert {name for fault in FAULTS for name in fault.seen_by} == {e.__name__ for e in experiments.EXPERIMENTS}


def test_limits_are_exceeded_as_seldom_as_they_say() -> None:
    """The exact probability of all shares beyond the limit, summed up, for few and many observations."""
    for n, p in ((60, 0.5), (200, 0.1), (3000, 0.01), (2000, 0.5)):
        terms = torch.arange(n + 1, dtype=torch.float64)
        log = torch.lgamma(torch.tensor(n + 1.0, dtype=torch.float64)) - torch.lgamma(terms + 1)
        log = (
            log
            - torch.lgamma(n - terms + 1)
            + terms * torch.tensor(p).double().log()
            + (n - terms) * torch.tensor(1 - p).double().log()
        )
        beyond = torch.tensor([surprise(k, n, p) >= LIMIT for k in range(n + 1)])
        assert beyond.any()
        assert float(log[beyond].exp().sum()) <= MISS


def test_shifts_name_each_pair_of_places_once() -> None:
    near = shifts(3)
    assert len(near) == (3**3 - 1) // 2 == len({max(s, tuple(-x for x in s)) for s in near})
    assert (0, 0, 7) in shifts(3, (7,))


def test_a_shift_compares_each_place_with_the_one_so_far_on() -> None:
    bits = torch.zeros(2, 3, dtype=torch.bool)
    bits[0, 2] = bits[1, 1] = True
    trial = Trial()
    for shift in ((1, -1), (0, 1)):
        trial.shifted("bit", bits, shift)
    assert trial.comparisons == 2
    far = torch.arange(4096) % 2 == 0
    trial.shifted("bit", far, (1,))
    assert trial.problems == ["bit and (1,) further on differ: 4095 of 4095, expected 2047.5"]
    trial.shifted("bit", far, (2,))
    assert trial.problems[1:] == ["bit and (2,) further on differ: 0 of 4094, expected 2047.0"]
