"""Every planted fault is found by the strategy of the path it sits on, and shrinks small."""

from __future__ import annotations

import pytest

from oracles.kernels import TbeKernels
from tests.mutants import FAULTS
from tests.mutants.fault import Fault
from tests.mutants.plant import plant
from tests.suite.hunt import hunt, search

CONTROL = Fault("no fault at all", "spec.py", "MAX_D = 2**20", "MAX_D = 2 * 2**19", "backward.plan")
#: Found late, or only by two routings: up to two minutes each. `pytest tests/suite/test_faults.py -m slow` runs them.
SLOW = {
    "the noise depends on the program",
    "long runs round with noise of their own",
    "subnormal numbers are rounded as coarsely as they are small",
    "the largest finite number becomes infinite",
    "rounding is stochastic where nobody asked",
    "lanes beyond D divide by zero",
    "LARS leaves the decay out of its divisor",
    "the norm of a row is bounded before the step",
    "gradients are clipped after their per-sample weights",
    "the sum of a run's gradients is clipped",
    "the psw gradient is of gradients not clipped",
    "clipping turns NaN into the bound",
    "NONE numbers the runs of a long merge among themselves",
    "a count beyond 2048 is taken for fp16",
    "small gradients beside large ones are taken for fp16",
    "a NaN gradient reaches rows that its bag does not name",
    "counted gradients are not divided by the mean's count",
    "rows that nobody names are stepped",
    "the last partial sum is lost",
    "the counts kept are those of the last window",
}


def test_a_copy_without_a_fault_passes() -> None:
    """The control: what the other tests find is the fault, not the planting."""
    assert search(CONTROL, TbeKernels(plant(*CONTROL.edits)), most=40) == (None, 40)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=pytest.mark.slow if f.name in SLOW else ()) for f in FAULTS],
    ids=lambda fault: fault.name.replace(" ", "-"),
)
def test_fault_is_found_and_shrinks(fault: Fault) -> None:
    """By its drawn routing, or else by the sweep: some take two routings to see."""
    hunt(fault, TbeKernels(plant(*fault.edits)), sweeps=("own", "some"))
